//! Claims: one statement for all tasks that are waiting to be claimed.
//!
//! Ids are deduped and sorted, so that two groups lock rows in the same order. What is not granted
//! is classified by a second statement. Tasks with a lock key go another way: see `resource`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgConnection;
use tokio::time::Instant;

use super::error::text;
use super::session::{Trouble, within};
use super::{Inner, millis, resource, statements};
use crate::coalesce::{Pending, Reply};
use crate::domain::{Fence, Held, LockKey, Task, TaskId};
use crate::ledger::{Claimed, Grant, LedgerError, Status};

/// From how many crashes in a row on a task is a suspect.
pub(super) const SUSPECT_CRASHES: i32 = 2;

/// What a claim answers.
pub(super) type Answer = Result<Claimed, LedgerError>;

/// A wish to run a task.
pub(super) struct Wish {
    /// The task.
    pub(super) task: Arc<Task>,
    /// Whether it would run beside others: then a suspect is refused.
    pub(super) in_company: bool,
}

type Waiting = (Arc<Task>, Reply<Answer>);

/// How a group of claims is made.
#[derive(Debug, Clone, Copy)]
struct Manner {
    /// The tasks have lock keys.
    keyed: bool,
    /// From how many crashes in a row on a task is refused as a suspect.
    suspects: i32,
}

/// Serves a group of claims.
pub(super) async fn serve(inner: Arc<Inner>, group: Vec<Pending<Wish, Answer>>) {
    let mut waiting: Vec<(Wish, Reply<Answer>)> = group.into_iter().map(Pending::split).collect();
    waiting.sort_by(|(a, _), (b, _)| a.task.id.cmp(&b.task.id));
    let mut plain = Vec::with_capacity(waiting.len());
    let (mut keyed, mut alone) = (Vec::new(), Vec::new());
    let mut last: Option<TaskId> = None;
    for (Wish { task, in_company }, reply) in waiting {
        if last.as_ref() == Some(&task.id) {
            reply.answer(Ok(Claimed::Running { remaining: inner.lease }));
            continue;
        }
        last = Some(task.id.clone());
        match (in_company, task.lock_key.is_some()) {
            (false, _) => alone.push((task, reply)),
            (true, true) => keyed.push((task, reply)),
            (true, false) => plain.push((task, reply)),
        }
    }
    let mut taken_over = Vec::new();
    for (waiting, keyed) in [(plain, false), (keyed, true)] {
        let manner = Manner { keyed, suspects: SUSPECT_CRASHES };
        for piece in inner.pieces.cut(waiting, |(task, _)| bytes(task)) {
            claim_and_answer(&inner, piece, manner, &mut taken_over).await;
        }
    }
    for (task, reply) in alone {
        let manner = Manner { keyed: task.lock_key.is_some(), suspects: i32::MAX };
        claim_and_answer(&inner, vec![(task, reply)], manner, &mut taken_over).await;
    }
    // Last: the rows run under their leases, and whoever waits for them is to keep these alive.
    note_takeovers(&inner, &taken_over).await;
}

/// How much of a task is written, about.
fn bytes(task: &Arc<Task>) -> usize {
    task.payload.len()
}

/// Claims a group and answers it; adds the grants of tasks that others had crashed with.
async fn claim_and_answer(
    inner: &Inner,
    waiting: Vec<Waiting>,
    manner: Manner,
    taken_over: &mut Vec<Grant>,
) {
    let (tasks, replies): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
    match claim_group(inner, &tasks, manner).await {
        Ok(answers) => {
            for (reply, answer) in replies.into_iter().zip(answers) {
                if let Claimed::Granted(grant) = &answer
                    && grant.crashes > 0
                {
                    taken_over.push(grant.clone());
                }
                reply.answer(Ok(answer));
            }
        }
        // One row in somebody's hands, or one value that is refused, must not hold up the others.
        Err(LedgerError::Conflict { .. } | LedgerError::Refused { .. }) if tasks.len() > 1 => {
            for one in tasks.into_iter().zip(replies) {
                Box::pin(claim_and_answer(inner, vec![one], manner, taken_over)).await;
            }
        }
        Err(error) => {
            for reply in replies {
                reply.answer(match &error {
                    // Another transaction is working on the very row.
                    LedgerError::Conflict { .. } => {
                        Ok(Claimed::Running { remaining: inner.lock_timeout })
                    }
                    error => Err(error.clone()),
                });
            }
        }
    }
}

async fn claim_group(
    inner: &Inner,
    tasks: &[Arc<Task>],
    manner: Manner,
) -> Result<Vec<Claimed>, LedgerError> {
    let Manner { keyed, suspects } = manner;
    let begun = Instant::now();
    let mut session = inner.ledger.open().await?;
    let connection = session.connection();
    let answer = if keyed {
        within(inner.call_timeout, resource::claim_keyed(inner, connection, tasks, suspects)).await
    } else {
        within(inner.call_timeout, claim_plain(inner, connection, tasks, suspects)).await
    };
    let answer = session.finish("claim", answer).await;
    inner.pieces.learn(tasks, bytes, begun, &answer);
    match &answer {
        Ok(_) => inner.doubts.settle(tasks),
        Err(LedgerError::Unavailable { .. }) => inner.doubts.remember(tasks),
        Err(_) => {}
    }
    answer
}

async fn claim_plain(
    inner: &Inner,
    connection: &mut PgConnection,
    tasks: &[Arc<Task>],
    suspects: i32,
) -> Result<Vec<Claimed>, Trouble> {
    let grants = claim_rows(inner, connection, tasks, false, suspects).await?;
    if grants.iter().all(Option::is_some) {
        return Ok(grants.into_iter().flatten().map(Claimed::Granted).collect());
    }
    let refused: Vec<&Arc<Task>> =
        tasks.iter().zip(&grants).filter(|(_, g)| g.is_none()).map(|(task, _)| task).collect();
    let mut refusals = classify(inner, connection, &refused, suspects).await?.into_iter();
    Ok(grants
        .into_iter()
        .map(|grant| match grant {
            Some(grant) => Claimed::Granted(grant),
            None => refusals.next().flatten().unwrap_or(MOVED_ON),
        })
        .collect())
}

/// The row could be claimed when it was looked at, a moment after it could not: try again later.
pub(super) const MOVED_ON: Claimed = Claimed::Running { remaining: Duration::ZERO };

/// Runs the claim statement for tasks sorted by id. `done` claims and succeeds in one; from
/// `suspects` crashes in a row on a task is refused.
pub(super) async fn claim_rows(
    inner: &Inner,
    connection: &mut PgConnection,
    tasks: &[Arc<Task>],
    done: bool,
    suspects: i32,
) -> Result<Vec<Option<Grant>>, sqlx::Error> {
    let ids: Vec<&str> = tasks.iter().map(|task| task.id.as_str()).collect();
    let queues: Vec<&str> = tasks.iter().map(|task| task.queue.as_str()).collect();
    let kinds: Vec<&str> = tasks.iter().map(|task| task.kind.as_str()).collect();
    let hashes: Vec<&[u8]> = tasks.iter().map(|task| task.hash.0.as_slice()).collect();
    let keys: Vec<Option<&str>> =
        tasks.iter().map(|task| task.lock_key.as_ref().map(LockKey::as_str)).collect();
    // What a task needs to be run again is kept until it has ended: Redis may lose its entry.
    let payloads: Vec<Option<&[u8]>> =
        tasks.iter().map(|task| (!done).then_some(&*task.payload)).collect();
    let traceparents: Vec<Option<Cow<'_, str>>> =
        tasks.iter().map(|task| task.traceparent.as_deref().map(text)).collect();
    let rows = sqlx::query(statements::CLAIM)
        .bind(inner.lease_ms())
        .bind(inner.worker.0)
        .bind(inner.doubts.among(&ids))
        .bind(inner.max_crashes())
        .bind(ids)
        .bind(queues)
        .bind(kinds)
        .bind(hashes)
        .bind(keys)
        .bind(done)
        .bind(suspects)
        .bind(payloads)
        .bind(tasks.iter().map(|task| super::max_attempts(task)).collect::<Vec<_>>())
        .bind(tasks.iter().map(|task| task.timeout.map(millis)).collect::<Vec<_>>())
        .bind(traceparents.iter().map(Option::as_deref).collect::<Vec<_>>())
        .bind(inner.lease_ms())
        .fetch_all(connection)
        .await?;
    // Rows come back in the order of the array, without those that were refused.
    let mut rows = rows.into_iter().peekable();
    tasks
        .iter()
        .map(|task| {
            let Some(row) = rows.peek() else { return Ok(None) };
            if row.try_get::<&str, _>(0)? != task.id.as_str() {
                return Ok(None);
            }
            let attempts: i32 = row.try_get(2)?;
            let crashes: i32 = row.try_get(3)?;
            let grant = Grant {
                held: Held {
                    task_id: task.id.clone(),
                    fence: Fence(row.try_get(1)?),
                    resource: None,
                },
                attempt: u32::try_from(attempts).unwrap_or(0).saturating_add(1),
                crashes: u32::try_from(crashes).unwrap_or(0),
            };
            rows.next();
            Ok(Some(grant))
        })
        .collect()
}

/// Says what stands in the way of each task; `None` where nothing does (any more). From `suspects`
/// crashes in a row on, that is one.
pub(super) async fn classify(
    inner: &Inner,
    connection: &mut PgConnection,
    tasks: &[&Arc<Task>],
    suspects: i32,
) -> Result<Vec<Option<Claimed>>, sqlx::Error> {
    let ids: Vec<&str> = tasks.iter().map(|task| task.id.as_str()).collect();
    let rows = sqlx::query(statements::CLASSIFY)
        .bind(inner.lease_ms())
        .bind(inner.worker.0)
        .bind(inner.doubts.among(&ids))
        .bind(&ids)
        .fetch_all(connection)
        .await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in &rows {
        let id: &str = row.try_get(0)?;
        let crashes: i32 = row.try_get(4)?;
        let state = State {
            status: status(row.try_get(1)?)?,
            hash: row.try_get(2)?,
            lease_left: duration(row.try_get(3)?),
            crashes: u32::try_from(crashes).unwrap_or(0),
            claimable: row.try_get(5)?,
            waited: duration(row.try_get(6)?),
        };
        found.insert(id, state);
    }
    Ok(tasks
        .iter()
        .map(|task| found.get(task.id.as_str())?.refusal(&task.hash.0, inner.max_crashes, suspects))
        .collect())
}

/// What a row says at the moment.
struct State<'a> {
    status: Status,
    hash: &'a [u8],
    lease_left: Duration,
    crashes: u32,
    claimable: bool,
    waited: Duration,
}

impl State<'_> {
    fn refusal(&self, hash: &[u8], max_crashes: u32, suspects: i32) -> Option<Claimed> {
        if self.hash != hash {
            return Some(Claimed::Conflict);
        }
        match self.status {
            Status::Succeeded | Status::Failed | Status::Dead => {
                return Some(Claimed::Done(self.status));
            }
            Status::Delayed if !self.claimable => return Some(Claimed::Delayed),
            Status::Running if !self.claimable => {
                return Some(Claimed::Running { remaining: self.lease_left });
            }
            Status::Running if self.crashes > max_crashes => {
                return Some(Claimed::Poisoned { crashes: self.crashes });
            }
            Status::Released | Status::Delayed | Status::Running => {}
        }
        // Nothing else stands in the way of a suspect; a claim that may take one was not refused.
        let suspect = i32::try_from(self.crashes).is_ok_and(|crashes| crashes >= suspects);
        suspect.then_some(Claimed::Suspect { crashes: self.crashes, waited: self.waited })
    }
}

/// Writes down that crashed tasks were taken over: history only, so a failure to do so is not one
/// of the claim.
async fn note_takeovers(inner: &Inner, taken_over: &[Grant]) {
    if taken_over.is_empty() {
        return;
    }
    let events: Vec<super::event::Event> = taken_over
        .iter()
        .map(|grant| super::event::Event {
            task_id: grant.held.task_id.as_str(),
            what: "claimed",
            fence: Some(grant.held.fence.0),
            attempt: i32::try_from(grant.attempt).ok(),
            detail: Some(format!("crashes in a row so far: {}", grant.crashes).into()),
        })
        .collect();
    super::event::note(inner, &events).await;
}

/// Reads a status as the database writes it.
pub(super) fn status(text: &str) -> Result<Status, sqlx::Error> {
    match text {
        "running" => Ok(Status::Running),
        "released" => Ok(Status::Released),
        "delayed" => Ok(Status::Delayed),
        "succeeded" => Ok(Status::Succeeded),
        "failed" => Ok(Status::Failed),
        "dead" => Ok(Status::Dead),
        other => Err(sqlx::Error::Decode(format!("unknown task status {other:?}").into())),
    }
}

/// A duration of the database; zero if it is negative.
pub(super) fn duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

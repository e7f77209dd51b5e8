//! Claims: one statement for all tasks that are waiting to be claimed.
//!
//! Ids are deduped and sorted, so that two groups lock rows in the same order. What is not granted
//! is classified by a second statement. Tasks with a lock key are claimed in a transaction that
//! takes the resource first; it commits only if every task in it is granted, so that a refused task
//! never raises the fence of a resource.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};

use super::session::{Trouble, within};
use super::{Inner, statements};
use crate::coalesce::{Pending, Reply};
use crate::domain::{Fence, Held, LockKey, Task, TaskId};
use crate::ledger::{Claimed, Grant, LedgerError, Status};

/// What a claim answers.
pub(super) type Answer = Result<Claimed, LedgerError>;

/// How many ids with an unanswered claim are remembered. Past it the oldest knowledge is given up:
/// those tasks wait for their lease to end, at the cost of a counted crash.
const DOUBTS: usize = 10_000;

type Waiting = (Arc<Task>, Reply<Answer>);

/// Serves a group of claims.
pub(super) async fn serve(inner: Arc<Inner>, group: Vec<Pending<Arc<Task>, Answer>>) {
    let mut waiting: Vec<Waiting> = group.into_iter().map(Pending::split).collect();
    waiting.sort_by(|(a, _), (b, _)| a.id.cmp(&b.id));
    let mut plain = Vec::with_capacity(waiting.len());
    let mut keyed = Vec::new();
    let mut last: Option<TaskId> = None;
    for (task, reply) in waiting {
        if last.as_ref() == Some(&task.id) {
            reply.answer(Ok(Claimed::Running { remaining: inner.lease }));
            continue;
        }
        last = Some(task.id.clone());
        if task.lock_key.is_some() { keyed.push((task, reply)) } else { plain.push((task, reply)) }
    }
    claim_and_answer(&inner, plain, false).await;
    claim_and_answer(&inner, keyed, true).await;
}

async fn claim_and_answer(inner: &Inner, waiting: Vec<Waiting>, keyed: bool) {
    if waiting.is_empty() {
        return;
    }
    let (tasks, replies): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
    match claim_group(inner, &tasks, keyed).await {
        Ok(answers) => {
            note_takeovers(inner, &answers).await;
            replies.into_iter().zip(answers).for_each(|(reply, answer)| reply.answer(Ok(answer)));
        }
        // One row in somebody's hands must not hold up the others.
        Err(LedgerError::Conflict { .. }) => {
            for (task, reply) in tasks.into_iter().zip(replies) {
                reply.answer(claim_singly(inner, &task, keyed).await);
            }
        }
        Err(error) => replies.into_iter().for_each(|reply| reply.answer(Err(error.clone()))),
    }
}

async fn claim_singly(inner: &Inner, task: &Arc<Task>, keyed: bool) -> Answer {
    match claim_group(inner, std::slice::from_ref(task), keyed).await {
        Ok(mut answers) => {
            note_takeovers(inner, &answers).await;
            answers.pop().map_or(Ok(Claimed::Running { remaining: Duration::ZERO }), Ok)
        }
        // Another transaction is working on the very row.
        Err(LedgerError::Conflict { .. }) => Ok(Claimed::Running { remaining: inner.lock_timeout }),
        Err(error) => Err(error),
    }
}

async fn claim_group(
    inner: &Inner,
    tasks: &[Arc<Task>],
    keyed: bool,
) -> Result<Vec<Claimed>, LedgerError> {
    let mut session = inner.ledger.open().await?;
    let connection = session.connection();
    let answer = if keyed {
        within(inner.call_timeout, claim_keyed(inner, connection, tasks)).await
    } else {
        within(inner.call_timeout, claim_plain(inner, connection, tasks)).await
    };
    let answer = session.finish("claim", answer).await;
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
) -> Result<Vec<Claimed>, Trouble> {
    let grants = claim_rows(inner, connection, tasks, false).await?;
    if grants.iter().all(Option::is_some) {
        return Ok(grants.into_iter().flatten().map(Claimed::Granted).collect());
    }
    let refused: Vec<&Arc<Task>> =
        tasks.iter().zip(&grants).filter(|(_, g)| g.is_none()).map(|(task, _)| task).collect();
    let mut refusals = classify(inner, connection, &refused).await?.into_iter();
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

/// Runs the claim statement for tasks sorted by id. `done` claims and succeeds in one.
pub(super) async fn claim_rows(
    inner: &Inner,
    connection: &mut PgConnection,
    tasks: &[Arc<Task>],
    done: bool,
) -> Result<Vec<Option<Grant>>, sqlx::Error> {
    let ids: Vec<&str> = tasks.iter().map(|task| task.id.as_str()).collect();
    let queues: Vec<&str> = tasks.iter().map(|task| task.queue.as_str()).collect();
    let kinds: Vec<&str> = tasks.iter().map(|task| task.kind.as_str()).collect();
    let hashes: Vec<&[u8]> = tasks.iter().map(|task| task.hash.0.as_slice()).collect();
    let keys: Vec<Option<&str>> =
        tasks.iter().map(|task| task.lock_key.as_ref().map(LockKey::as_str)).collect();
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

/// Says what stands in the way of each task; `None` where nothing does (any more).
pub(super) async fn classify(
    inner: &Inner,
    connection: &mut PgConnection,
    tasks: &[&Arc<Task>],
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
        };
        found.insert(id, state);
    }
    Ok(tasks
        .iter()
        .map(|task| found.get(task.id.as_str())?.refusal(&task.hash.0, inner.max_crashes))
        .collect())
}

/// What a row says at the moment.
struct State<'a> {
    status: Status,
    hash: &'a [u8],
    lease_left: Duration,
    crashes: u32,
    claimable: bool,
}

impl State<'_> {
    fn refusal(&self, hash: &[u8], max_crashes: u32) -> Option<Claimed> {
        if self.hash != hash {
            return Some(Claimed::Conflict);
        }
        match self.status {
            Status::Succeeded | Status::Failed | Status::Dead => Some(Claimed::Done(self.status)),
            Status::Released => None,
            Status::Delayed => (!self.claimable).then_some(Claimed::Delayed),
            Status::Running if !self.claimable => {
                Some(Claimed::Running { remaining: self.lease_left })
            }
            Status::Running => {
                (self.crashes > max_crashes).then_some(Claimed::Poisoned { crashes: self.crashes })
            }
        }
    }
}

/// Claims tasks with a lock key; each answer is final and committed.
async fn claim_keyed(
    inner: &Inner,
    connection: &mut PgConnection,
    tasks: &[Arc<Task>],
) -> Result<Vec<Claimed>, Trouble> {
    let mut answers: Vec<Option<Claimed>> = vec![None; tasks.len()];
    let mut keys = HashSet::new();
    let mut candidates: Vec<usize> =
        (0..tasks.len()).filter(|&at| keys.insert(tasks[at].lock_key.as_ref())).collect();
    // Each round either commits or leaves out at least one candidate.
    while !candidates.is_empty() {
        let group: Vec<Arc<Task>> = candidates.iter().map(|&at| Arc::clone(&tasks[at])).collect();
        let mut transaction = connection.begin().await?;
        let mut grants = claim_with_resources(inner, &mut transaction, &group, false).await?;
        let complete = grants.iter().all(|grant| !matches!(grant, Keyed::Refused));
        if complete {
            transaction.commit().await?;
            for (&at, grant) in candidates.iter().zip(grants) {
                if let Keyed::Granted(grant) = grant {
                    answers[at] = Some(Claimed::Granted(grant));
                }
            }
            break;
        }
        transaction.rollback().await?;
        let mut kept = grants.drain(..).map(|grant| !matches!(grant, Keyed::Refused));
        candidates.retain(|_| kept.next().unwrap_or(false));
    }
    let open: Vec<&Arc<Task>> =
        tasks.iter().zip(&answers).filter(|(_, a)| a.is_none()).map(|(task, _)| task).collect();
    if open.is_empty() {
        return Ok(answers.into_iter().flatten().collect());
    }
    let mut refusals = refuse_keyed(inner, connection, &open).await?.into_iter();
    Ok(answers
        .into_iter()
        .map(|answer| answer.or_else(|| refusals.next()).unwrap_or(MOVED_ON))
        .collect())
}

/// What became of a claim with a resource, in a transaction that is still open.
pub(super) enum Keyed {
    /// Resource and task are ours.
    Granted(Grant),
    /// The resource is another task's; nothing was written.
    Busy,
    /// The resource would be ours, but the task is not: the transaction must not commit.
    Refused,
}

/// Takes the resources of tasks with distinct lock keys, then the tasks; sorted by id.
pub(super) async fn claim_with_resources(
    inner: &Inner,
    connection: &mut PgConnection,
    tasks: &[Arc<Task>],
    done: bool,
) -> Result<Vec<Keyed>, sqlx::Error> {
    let mut wanted: Vec<(&LockKey, &str)> = tasks
        .iter()
        .filter_map(|task| task.lock_key.as_ref().map(|key| (key, task.id.as_str())))
        .collect();
    wanted.sort_unstable();
    let rows = sqlx::query(statements::CLAIM_RESOURCES)
        .bind(wanted.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>())
        .bind(wanted.iter().map(|(_, id)| *id).collect::<Vec<_>>())
        .bind(inner.lease_ms())
        .fetch_all(&mut *connection)
        .await?;
    let mut fences = HashMap::with_capacity(rows.len());
    for row in &rows {
        fences.insert(row.try_get::<&str, _>(0)?, Fence(row.try_get(1)?));
    }
    let fence = |task: &Task| {
        task.lock_key.as_ref().and_then(|key| Some((key.clone(), *fences.get(key.as_str())?)))
    };
    let won: Vec<Arc<Task>> = tasks.iter().filter(|task| fence(task).is_some()).cloned().collect();
    let grants =
        if won.is_empty() { Vec::new() } else { claim_rows(inner, connection, &won, done).await? };
    let mut grants = grants.into_iter();
    Ok(tasks
        .iter()
        .map(|task| match fence(task) {
            None => Keyed::Busy,
            Some(resource) => match grants.next().flatten() {
                None => Keyed::Refused,
                Some(mut grant) => {
                    grant.held.resource = Some(resource);
                    Keyed::Granted(grant)
                }
            },
        })
        .collect())
}

/// Says what stands in the way of each task: its own row first, else its resource.
pub(super) async fn refuse_keyed(
    inner: &Inner,
    connection: &mut PgConnection,
    tasks: &[&Arc<Task>],
) -> Result<Vec<Claimed>, sqlx::Error> {
    let refusals = classify(inner, connection, tasks).await?;
    let keys: Vec<&str> =
        tasks.iter().filter_map(|task| task.lock_key.as_ref().map(LockKey::as_str)).collect();
    let rows =
        sqlx::query(statements::RESOURCE_LEASES).bind(keys).fetch_all(&mut *connection).await?;
    let mut leases = HashMap::with_capacity(rows.len());
    for row in &rows {
        leases.insert(row.try_get::<&str, _>(0)?, duration(row.try_get(1)?));
    }
    let left = |task: &Task| {
        let key = task.lock_key.as_ref()?;
        leases.get(key.as_str()).copied()
    };
    Ok(tasks
        .iter()
        .zip(refusals)
        .map(|(task, refusal)| {
            refusal.unwrap_or(Claimed::Contended { remaining: left(task).unwrap_or_default() })
        })
        .collect())
}

/// Writes down that a crashed task was taken over: history only, so a failure to do so is not one
/// of the claim.
async fn note_takeovers(inner: &Inner, answers: &[Claimed]) {
    let events: Vec<super::event::Event> = answers
        .iter()
        .filter_map(|answer| match answer {
            Claimed::Granted(grant) if grant.crashes > 0 => Some(super::event::Event {
                task_id: grant.held.task_id.as_str(),
                what: "claimed",
                fence: Some(grant.held.fence.0),
                attempt: i32::try_from(grant.attempt).ok(),
                detail: Some(format!("crashes in a row so far: {}", grant.crashes).into()),
            }),
            _ => None,
        })
        .collect();
    if !events.is_empty() {
        super::event::note(inner, &events).await;
    }
}

/// Ids whose claim was sent and never answered. If it was committed all the same, the row runs under
/// our name though nobody runs it: the next claim may take it at once, and that is no crash.
#[derive(Default)]
pub(super) struct Doubts(std::sync::Mutex<HashSet<TaskId>>);

impl Doubts {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<TaskId>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn remember(&self, tasks: &[Arc<Task>]) {
        let mut doubts = self.lock();
        if doubts.len() + tasks.len() > DOUBTS {
            doubts.clear();
        }
        doubts.extend(tasks.iter().map(|task| task.id.clone()));
    }

    fn settle(&self, tasks: &[Arc<Task>]) {
        let mut doubts = self.lock();
        if !doubts.is_empty() {
            for task in tasks {
                doubts.remove(&task.id);
            }
        }
    }

    /// Which of these ids are in doubt.
    pub(super) fn among<'a>(&self, ids: &[&'a str]) -> Vec<&'a str> {
        let doubts = self.lock();
        if doubts.is_empty() {
            return Vec::new();
        }
        ids.iter()
            .copied()
            .filter(|id| TaskId::new(id).is_ok_and(|id| doubts.contains(&id)))
            .collect()
    }
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

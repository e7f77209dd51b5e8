//! How runs ended: one statement for all successes, one transaction for all the rest.
//!
//! Every write names the fence of its claim. The resource is freed in the same transaction, before
//! the row: everywhere resources are locked before rows. A write that finds no running row under its
//! fence asks what became of it: if that is this very outcome, an earlier COMMIT got through and
//! only its reply was lost.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};
use tokio::time::Instant;
use uuid::Uuid;

use super::dead::{self, Letter};
use super::error::text;
use super::event::{self, Event};
use super::session::{Trouble, within};
use super::{Inner, claim, millis, resource, statements};
use crate::coalesce::{Pending, Reply};
use crate::domain::{Held, Task};
use crate::ledger::{LedgerError, Recorded, Status, Verdict};

/// One outcome to record.
pub(super) struct Outcome {
    /// The task.
    pub(super) task: Arc<Task>,
    /// Its claim.
    pub(super) held: Held,
    /// How it ended.
    pub(super) verdict: Verdict,
}

impl Outcome {
    /// How much of it is written, about.
    fn bytes(&self) -> usize {
        match &self.verdict {
            Verdict::Succeeded { result } => result.as_ref().map_or(0, bytes::Bytes::len),
            Verdict::Retry { .. }
            | Verdict::Postponed { .. }
            | Verdict::Failed { .. }
            | Verdict::Released => self.task.payload.len(),
        }
    }
}

/// What a record answers.
pub(super) type Answer = Result<Recorded, LedgerError>;

/// Serves a group of outcomes.
pub(super) async fn serve(inner: Arc<Inner>, group: Vec<Pending<Outcome, Answer>>) {
    let mut waiting: Vec<(Outcome, Reply<Answer>)> =
        group.into_iter().map(Pending::split).collect();
    waiting.sort_by(|(a, _), (b, _)| a.held.task_id.cmp(&b.held.task_id));
    let (fast, slow): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(outcome, _)| {
        outcome.held.resource.is_none() && matches!(outcome.verdict, Verdict::Succeeded { .. })
    });
    for outcomes in inner.pieces.cut(fast, |(outcome, _)| outcome.bytes()) {
        record_and_answer(&inner, outcomes, true).await;
    }
    for outcomes in inner.pieces.cut(slow, |(outcome, _)| outcome.bytes()) {
        record_and_answer(&inner, outcomes, false).await;
    }
}

async fn record_and_answer(inner: &Inner, waiting: Vec<(Outcome, Reply<Answer>)>, fast: bool) {
    let (outcomes, replies): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
    match record_group(inner, &outcomes, fast).await {
        Ok(answers) => {
            replies.into_iter().zip(answers).for_each(|(reply, answer)| reply.answer(Ok(answer)));
        }
        // One row in somebody's hands, or one value that is refused, must not hold up the others.
        Err(LedgerError::Conflict { .. } | LedgerError::Refused { .. }) if outcomes.len() > 1 => {
            for (outcome, reply) in outcomes.into_iter().zip(replies) {
                let answers = record_group(inner, std::slice::from_ref(&outcome), fast).await;
                reply.answer(answers.map(|mut a| a.pop().unwrap_or(Recorded::Stale)));
            }
        }
        Err(error) => replies.into_iter().for_each(|reply| reply.answer(Err(error.clone()))),
    }
}

async fn record_group(
    inner: &Inner,
    outcomes: &[Outcome],
    fast: bool,
) -> Result<Vec<Recorded>, LedgerError> {
    let begun = Instant::now();
    let mut session = inner.ledger.open().await?;
    let connection = session.connection();
    let answer = if fast {
        within(inner.call_timeout, record_successes(inner, connection, outcomes)).await
    } else {
        within(inner.call_timeout, record_slowly(inner, connection, outcomes)).await
    };
    let answer = session.finish("record outcome", answer).await;
    inner.pieces.learn(outcomes, Outcome::bytes, begun, &answer);
    answer
}

async fn record_successes(
    inner: &Inner,
    connection: &mut PgConnection,
    outcomes: &[Outcome],
) -> Result<Vec<Recorded>, Trouble> {
    let all: Vec<&Outcome> = outcomes.iter().collect();
    if succeed(connection, &all).await? == outcomes.len() as u64 {
        return Ok(vec![Recorded::Committed; outcomes.len()]);
    }
    Ok(look_up(inner, connection, &all).await?)
}

/// Runs the success statement; answers how many rows it found.
async fn succeed(connection: &mut PgConnection, outcomes: &[&Outcome]) -> Result<u64, sqlx::Error> {
    let results: Vec<Option<&[u8]>> = outcomes
        .iter()
        .map(|outcome| match &outcome.verdict {
            Verdict::Succeeded { result } => result.as_deref(),
            Verdict::Retry { .. }
            | Verdict::Postponed { .. }
            | Verdict::Failed { .. }
            | Verdict::Released => None,
        })
        .collect();
    let done = sqlx::query(statements::SUCCEED)
        .bind(ids(outcomes))
        .bind(fences(outcomes))
        .bind(results)
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}

fn ids<'a>(outcomes: &[&'a Outcome]) -> Vec<&'a str> {
    outcomes.iter().map(|outcome| outcome.held.task_id.as_str()).collect()
}

fn fences(outcomes: &[&Outcome]) -> Vec<i64> {
    outcomes.iter().map(|outcome| outcome.held.fence.0).collect()
}

/// Whether this very outcome is there already, its reply lost.
pub(super) async fn is_recorded(inner: &Inner, outcome: &Outcome) -> Answer {
    let mut session = inner.ledger.open().await?;
    let outcomes = [outcome];
    let work = look_up(inner, session.connection(), &outcomes);
    let answer = within(inner.call_timeout, work).await;
    let mut answers = session.finish("look up outcome", answer).await?;
    Ok(answers.pop().unwrap_or(Recorded::Stale))
}

/// Reads what became of the rows: an outcome that is there under our name was committed.
async fn look_up(
    inner: &Inner,
    connection: &mut PgConnection,
    outcomes: &[&Outcome],
) -> Result<Vec<Recorded>, sqlx::Error> {
    let rows = sqlx::query(statements::OUTCOMES).bind(ids(outcomes)).fetch_all(connection).await?;
    let mut found: HashMap<&str, (Status, i64)> = HashMap::with_capacity(rows.len());
    for row in &rows {
        if row.try_get::<Option<Uuid>, _>(3)? == Some(inner.worker.0) {
            found.insert(row.try_get(0)?, (claim::status(row.try_get(1)?)?, row.try_get(2)?));
        }
    }
    Ok(outcomes
        .iter()
        .map(|outcome| {
            let (status, fence) = (target(&outcome.verdict), outcome.held.fence.0);
            let fence = fence + i64::from(status == Status::Released);
            if found.get(outcome.held.task_id.as_str()) == Some(&(status, fence)) {
                Recorded::Committed
            } else {
                Recorded::Stale
            }
        })
        .collect())
}

fn target(verdict: &Verdict) -> Status {
    match verdict {
        Verdict::Succeeded { .. } => Status::Succeeded,
        Verdict::Retry { .. } | Verdict::Postponed { .. } => Status::Delayed,
        Verdict::Failed { .. } => Status::Failed,
        Verdict::Released => Status::Released,
    }
}

async fn record_slowly(
    inner: &Inner,
    connection: &mut PgConnection,
    outcomes: &[Outcome],
) -> Result<Vec<Recorded>, Trouble> {
    let (mut succeeded, settled): (Vec<&Outcome>, Vec<&Outcome>) =
        outcomes.iter().partition(|outcome| matches!(outcome.verdict, Verdict::Succeeded { .. }));
    let mut transaction = connection.begin().await?;
    let held = outcomes.iter().map(|outcome| &outcome.held);
    let freed = resource::free(&mut transaction, held).await?;
    succeeded.retain(|outcome| {
        outcome.held.resource.as_ref().is_none_or(|(key, _)| freed.contains(key.as_str()))
    });
    let mut written = 0;
    if !succeeded.is_empty() {
        written += succeed(&mut transaction, &succeeded).await?;
    }
    if !settled.is_empty() {
        written += settle(inner, &mut transaction, &settled).await?;
    }
    transaction.commit().await?;
    if written == outcomes.len() as u64 {
        return Ok(vec![Recorded::Committed; outcomes.len()]);
    }
    let all: Vec<&Outcome> = outcomes.iter().collect();
    Ok(look_up(inner, connection, &all).await?)
}

/// One row of the settling statement.
#[derive(Default)]
struct Settled<'a> {
    status: &'static str,
    burns: bool,
    delay_ms: Option<i64>,
    payload: Option<&'a [u8]>,
    traceparent: Option<Cow<'a, str>>,
    error: Option<Cow<'a, str>>,
    error_status: Option<Cow<'a, str>>,
}

impl<'a> Settled<'a> {
    fn of(outcome: &'a Outcome, released_recheck: Duration) -> Self {
        let task = &outcome.task;
        let failure = match &outcome.verdict {
            Verdict::Retry { failure, .. }
            | Verdict::Postponed { failure, .. }
            | Verdict::Failed { failure } => Some(failure),
            Verdict::Succeeded { .. } | Verdict::Released => None,
        };
        let waits = match &outcome.verdict {
            Verdict::Retry { delay, .. } | Verdict::Postponed { delay, .. } => Some(*delay),
            Verdict::Released => Some(released_recheck),
            Verdict::Succeeded { .. } | Verdict::Failed { .. } => None,
        };
        Self {
            status: target(&outcome.verdict).as_str(),
            burns: matches!(outcome.verdict, Verdict::Retry { .. } | Verdict::Failed { .. }),
            delay_ms: waits.map(millis),
            payload: waits.map(|_| &*task.payload),
            traceparent: task.traceparent.as_deref().map(text),
            error: failure.map(|failure| text(&failure.message)),
            error_status: failure.and_then(|failure| failure.status.as_deref()).map(text),
        }
    }
}

/// Writes retries, failures and releases, with their history and dead letters.
async fn settle(
    inner: &Inner,
    connection: &mut PgConnection,
    outcomes: &[&Outcome],
) -> Result<u64, sqlx::Error> {
    let rows: Vec<Settled<'_>> =
        outcomes.iter().map(|outcome| Settled::of(outcome, inner.released_recheck)).collect();
    let written = sqlx::query(statements::SETTLE)
        .bind(ids(outcomes))
        .bind(fences(outcomes))
        .bind(rows.iter().map(|row| row.status).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.delay_ms).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.payload).collect::<Vec<_>>())
        .bind(outcomes.iter().map(|outcome| super::max_attempts(&outcome.task)).collect::<Vec<_>>())
        .bind(outcomes.iter().map(|outcome| outcome.task.timeout.map(millis)).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.traceparent.as_deref()).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.error.as_deref()).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.error_status.as_deref()).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.burns).collect::<Vec<_>>())
        .fetch_all(&mut *connection)
        .await?;
    let mut attempts: HashMap<&str, i32> = HashMap::with_capacity(written.len());
    for row in &written {
        attempts.insert(row.try_get(0)?, row.try_get(1)?);
    }
    let mut events = Vec::with_capacity(written.len());
    let mut letters = Vec::new();
    for (outcome, row) in outcomes.iter().zip(&rows) {
        let Some(&attempt) = attempts.get(outcome.held.task_id.as_str()) else { continue };
        events.push(Event {
            task_id: outcome.held.task_id.as_str(),
            what: match &outcome.verdict {
                Verdict::Retry { .. } => "retry",
                Verdict::Postponed { .. } => "postponed",
                Verdict::Failed { .. } => "failed",
                Verdict::Succeeded { .. } | Verdict::Released => "released",
            },
            fence: Some(outcome.held.fence.0),
            attempt: Some(attempt),
            detail: row.error.clone(),
        });
        if let Verdict::Failed { failure } = &outcome.verdict {
            letters.push(Letter::of_failure(&outcome.task, failure, attempt));
        }
    }
    event::write(inner, connection, &events).await?;
    if !letters.is_empty() {
        dead::write(inner, connection, &letters).await?;
    }
    Ok(written.len() as u64)
}

//! Tasks that wait in Postgres instead of in the stream.
//!
//! A delay is committed, payload and all, before its entry may be acknowledged. It changes no row
//! that somebody runs under a lease that stands. The way back into the stream is in `promote`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};
use tokio::time::Instant;

use super::claim;
use super::dead::{self, Letter};
use super::error::text;
use super::event::{self, Event};
use super::session::{Trouble, within};
use super::{Inner, millis, statements};
use crate::coalesce::{Pending, Reply};
use crate::domain::{LockKey, Task};
use crate::ledger::{Claimed, DelayReason, Delayed, LedgerError};
use crate::protocol::backoff::Growing;

/// A wish to wait.
pub(super) struct Wait {
    /// The task.
    pub(super) task: Arc<Task>,
    /// For how long.
    pub(super) delay: Growing,
    /// Why.
    pub(super) reason: DelayReason,
}

impl Wait {
    /// Whether the time of the wait is kept in the row.
    fn is_timed(&self) -> bool {
        match self.reason {
            DelayReason::UnknownKind { .. } | DelayReason::Suspect => true,
            DelayReason::NotBefore | DelayReason::Contended => false,
        }
    }

    /// What is to be answered, and whether the history gets a line. A crowd that waits for one
    /// resource would write it a few times a second, and a kind that nobody knows once a minute.
    fn committed(&self, waited: Duration) -> (Delayed, bool) {
        match self.reason {
            DelayReason::UnknownKind { .. } if !self.delay.is_news(waited) => {
                (Delayed::Still, false)
            }
            DelayReason::UnknownKind { .. } | DelayReason::NotBefore | DelayReason::Suspect => {
                (Delayed::Committed, true)
            }
            DelayReason::Contended => (Delayed::Committed, false),
        }
    }

    /// How much of it is written, about.
    fn bytes(&self) -> usize {
        self.task.payload.len()
    }

    fn give_up(&self) -> Option<Duration> {
        match self.reason {
            DelayReason::UnknownKind { give_up } => Some(give_up),
            DelayReason::NotBefore | DelayReason::Contended | DelayReason::Suspect => None,
        }
    }

    fn why(&self) -> &'static str {
        match self.reason {
            DelayReason::UnknownKind { .. } => "no handler knows its kind",
            DelayReason::NotBefore => "not before its time",
            DelayReason::Contended => "its resource is held",
            DelayReason::Suspect => "waits to run alone after crashes",
        }
    }
}

/// What a delay answers.
pub(super) type Answer = Result<Delayed, LedgerError>;

/// Serves a group of delays.
pub(super) async fn serve(inner: Arc<Inner>, group: Vec<Pending<Wait, Answer>>) {
    let mut waiting: Vec<(Wait, Reply<Answer>)> = group.into_iter().map(Pending::split).collect();
    waiting.sort_by(|(a, _), (b, _)| a.task.id.cmp(&b.task.id));
    let mut waits: Vec<Wait> = Vec::with_capacity(waiting.len());
    let mut replies = Vec::with_capacity(waiting.len());
    for (wait, reply) in waiting {
        // A statement can write a row only once.
        if waits.last().is_some_and(|last| last.task.id == wait.task.id) {
            reply.answer(Ok(Delayed::Stale));
        } else {
            waits.push(wait);
            replies.push(reply);
        }
    }
    let waiting: Vec<_> = waits.into_iter().zip(replies).collect();
    for piece in inner.pieces.cut(waiting, |(wait, _)| wait.bytes()) {
        delay_and_answer(&inner, piece).await;
    }
}

async fn delay_and_answer(inner: &Inner, waiting: Vec<(Wait, Reply<Answer>)>) {
    let (waits, replies): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
    match delay_group(inner, &waits).await {
        Ok(answers) => {
            replies.into_iter().zip(answers).for_each(|(reply, answer)| reply.answer(Ok(answer)));
        }
        Err(LedgerError::Conflict { .. } | LedgerError::Refused { .. }) if waits.len() > 1 => {
            for (wait, reply) in waits.into_iter().zip(replies) {
                let answers = delay_group(inner, std::slice::from_ref(&wait)).await;
                reply.answer(answers.map(|mut a| a.pop().unwrap_or(Delayed::Stale)));
            }
        }
        Err(error) => replies.into_iter().for_each(|reply| reply.answer(Err(error.clone()))),
    }
}

async fn delay_group(inner: &Inner, waits: &[Wait]) -> Result<Vec<Delayed>, LedgerError> {
    let begun = Instant::now();
    let mut session = inner.ledger.open().await?;
    let answer = within(inner.call_timeout, delay_rows(inner, session.connection(), waits)).await;
    let answer = session.finish("delay", answer).await;
    inner.pieces.learn(waits, Wait::bytes, begun, &answer);
    answer
}

/// A row that was delayed.
struct Waiting {
    fence: i64,
    attempts: i32,
    crashes: i32,
    waited_ms: i64,
}

async fn delay_rows(
    inner: &Inner,
    connection: &mut PgConnection,
    waits: &[Wait],
) -> Result<Vec<Delayed>, Trouble> {
    let mut transaction = connection.begin().await?;
    let rows = write_delays(inner, &mut transaction, waits).await?;
    let mut written = HashMap::with_capacity(rows.len());
    for row in &rows {
        let waiting = Waiting {
            fence: row.try_get(1)?,
            attempts: row.try_get(2)?,
            crashes: row.try_get(3)?,
            waited_ms: row.try_get(4)?,
        };
        written.insert(row.try_get::<&str, _>(0)?, waiting);
    }
    let mut others = obstacles(inner, &mut transaction, waits, &written).await?.into_iter();
    let mut answers = Vec::with_capacity(waits.len());
    let mut events = Vec::new();
    let mut given_up = Vec::new();
    for wait in waits {
        let Some(row) = written.get(wait.task.id.as_str()) else {
            answers.push(others.next().unwrap_or(Delayed::Stale));
            continue;
        };
        let dead = wait.give_up().is_some_and(|give_up| row.waited_ms >= millis(give_up));
        let (committed, is_told) = wait.committed(claim::duration(row.waited_ms));
        answers.push(if dead { Delayed::GaveUp } else { committed });
        if dead || is_told {
            events.push(Event {
                task_id: wait.task.id.as_str(),
                what: if dead { "dead" } else { "delayed" },
                fence: Some(row.fence),
                attempt: Some(row.attempts),
                detail: Some(wait.why().into()),
            });
        }
        if dead {
            given_up.push((wait, row));
        }
    }
    if !events.is_empty() {
        event::write(inner, &mut transaction, &events).await?;
    }
    if !given_up.is_empty() {
        give_up(inner, &mut transaction, &given_up).await?;
    }
    transaction.commit().await?;
    Ok(answers)
}

/// What stands in the way of those that were not written, in their order. What will never change
/// must not be asked for again and again until the time that the task wanted to wait for.
async fn obstacles(
    inner: &Inner,
    connection: &mut PgConnection,
    waits: &[Wait],
    written: &HashMap<&str, Waiting>,
) -> Result<Vec<Delayed>, sqlx::Error> {
    let others: Vec<&Arc<Task>> = waits
        .iter()
        .map(|wait| &wait.task)
        .filter(|task| !written.contains_key(task.id.as_str()))
        .collect();
    if others.is_empty() {
        return Ok(Vec::new());
    }
    let found = claim::classify(inner, connection, &others, claim::SUSPECT_CRASHES).await?;
    let answer = |found| match found {
        Some(Claimed::Done(_)) => Delayed::Done,
        Some(Claimed::Conflict) => Delayed::Conflict,
        Some(Claimed::Running { remaining }) => Delayed::Running { remaining },
        Some(
            Claimed::Granted(_)
            | Claimed::Delayed
            | Claimed::Contended { .. }
            | Claimed::Suspect { .. }
            | Claimed::Poisoned { .. },
        )
        | None => Delayed::Stale,
    };
    Ok(found.into_iter().map(answer).collect())
}

async fn write_delays(
    inner: &Inner,
    connection: &mut PgConnection,
    waits: &[Wait],
) -> Result<Vec<PgRow>, sqlx::Error> {
    let ids: Vec<&str> = waits.iter().map(|wait| wait.task.id.as_str()).collect();
    let keys = waits.iter().map(|wait| wait.task.lock_key.as_ref().map(LockKey::as_str));
    let traceparents: Vec<Option<Cow<'_, str>>> =
        waits.iter().map(|wait| wait.task.traceparent.as_deref().map(text)).collect();
    sqlx::query(statements::DELAY)
        .bind(inner.lease_ms())
        .bind(inner.worker.0)
        .bind(inner.doubts.among(&ids))
        .bind(inner.max_crashes())
        .bind(ids)
        .bind(waits.iter().map(|wait| wait.task.queue.as_str()).collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| wait.task.kind.as_str()).collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| wait.task.hash.0.as_slice()).collect::<Vec<_>>())
        .bind(keys.collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| millis(wait.delay.first)).collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| &*wait.task.payload).collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| super::max_attempts(&wait.task)).collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| wait.task.timeout.map(millis)).collect::<Vec<_>>())
        .bind(traceparents.iter().map(Option::as_deref).collect::<Vec<_>>())
        .bind(waits.iter().map(Wait::is_timed).collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| millis(wait.delay.most)).collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| wait.delay.jitter).collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| wait.reason == DelayReason::Suspect).collect::<Vec<_>>())
        .fetch_all(connection)
        .await
}

async fn give_up(
    inner: &Inner,
    connection: &mut PgConnection,
    given_up: &[(&Wait, &Waiting)],
) -> Result<(), sqlx::Error> {
    let message = "no handler knew its kind for too long";
    sqlx::query(statements::GIVE_UP)
        .bind(given_up.iter().map(|(wait, _)| wait.task.id.as_str()).collect::<Vec<_>>())
        .bind(message)
        .execute(&mut *connection)
        .await?;
    let letters: Vec<Letter<'_>> = given_up
        .iter()
        .map(|(wait, row)| {
            Letter::of_the_dead(&wait.task, "unknown_kind", message, row.attempts, row.crashes)
        })
        .collect();
    dead::write(inner, connection, &letters).await
}

//! Tasks that wait in Postgres instead of in the stream, and their way back.
//!
//! A delay is committed, payload and all, before its entry may be acknowledged. The promotion
//! reserves due rows for a short while, so that two sweeps never take the same one; it leaves them
//! due, so that whoever gets the new entry can claim at once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};
use uuid::Uuid;

use super::dead::{self, Letter};
use super::error::text;
use super::event::{self, Event};
use super::session::{Trouble, within};
use super::{Inner, millis, statements};
use crate::coalesce::{Pending, Reply};
use crate::domain::{
    EntryId, Fence, Kind, LockKey, PayloadHash, QueueName, RawEntry, Task, TaskId,
};
use crate::ledger::{DelayReason, Delayed, Due, LedgerError};

/// For how long a sweep has its rows to itself: longer than adding them to the stream takes.
const RESERVATION: Duration = Duration::from_secs(5);

/// The most rows that one sweep takes, and so holds in memory with their payloads.
const SWEEP: usize = 1_000;

/// The most bytes of payload that one sweep takes; the row that passes it is the last.
const SWEEP_BYTES: i64 = 16 << 20;

/// The fence of a due entry that comes from a dead letter and has no row: rows start at 0.
const NO_ROW: Fence = Fence(-1);

/// A wish to wait.
pub(super) struct Wait {
    /// The task.
    pub(super) task: Arc<Task>,
    /// For how long.
    pub(super) delay: Duration,
    /// Why.
    pub(super) reason: DelayReason,
}

impl Wait {
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
    for piece in super::by_bytes(waiting, |(wait, _)| wait.task.payload.len()) {
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
    let mut session = inner.ledger.open().await?;
    let answer = within(inner.call_timeout, delay_rows(inner, session.connection(), waits)).await;
    session.finish("delay", answer).await
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
    let mut answers = Vec::with_capacity(waits.len());
    let mut events = Vec::new();
    let mut given_up = Vec::new();
    for wait in waits {
        let Some(row) = written.get(wait.task.id.as_str()) else {
            answers.push(Delayed::Stale);
            continue;
        };
        let dead = wait.give_up().is_some_and(|give_up| row.waited_ms >= millis(give_up));
        answers.push(if dead { Delayed::GaveUp } else { Delayed::Committed });
        // A crowd that waits for one resource would write its history a few times a second.
        if wait.reason != DelayReason::Contended {
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
        .bind(waits.iter().map(|wait| millis(wait.delay)).collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| &*wait.task.payload).collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| super::max_attempts(&wait.task)).collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| wait.task.timeout.map(millis)).collect::<Vec<_>>())
        .bind(traceparents.iter().map(Option::as_deref).collect::<Vec<_>>())
        .bind(waits.iter().map(|wait| wait.give_up().is_some()).collect::<Vec<_>>())
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

/// See [`crate::ledger::Ledger::due`].
pub(super) async fn due(inner: &Inner, limit: usize) -> Result<Vec<Due>, LedgerError> {
    let limit = i64::try_from(limit.min(SWEEP)).unwrap_or(0);
    let mut session = inner.ledger.open().await?;
    let answer = within(inner.call_timeout, due_rows(session.connection(), limit)).await;
    session.finish("look for due tasks", answer).await
}

async fn due_rows(connection: &mut PgConnection, limit: i64) -> Result<Vec<Due>, sqlx::Error> {
    let rows = sqlx::query(statements::DUE_TASKS)
        .bind(limit)
        .bind(millis(RESERVATION))
        .bind(SWEEP_BYTES)
        .fetch_all(&mut *connection)
        .await?;
    let mut due = Vec::with_capacity(rows.len());
    for row in &rows {
        match due_task(row) {
            Ok(task) => due.push(task),
            // Only a hand at the table can have done that; it must not stop the others.
            Err(error) => tracing::warn!(%error, "a delayed row cannot be read; mend or delete it"),
        }
    }
    let left = limit - i64::try_from(rows.len()).unwrap_or(limit);
    if left > 0 {
        let letters = sqlx::query(statements::DUE_LETTERS)
            .bind(left)
            .bind(millis(RESERVATION))
            .fetch_all(connection)
            .await?;
        for row in &letters {
            due.push(due_letter(row)?);
        }
    }
    Ok(due)
}

fn due_task(row: &PgRow) -> Result<Due, sqlx::Error> {
    let id: &str = row.try_get(0)?;
    let kind = Kind::new(row.try_get(3)?).map_err(decode)?;
    let payload = Bytes::from(row.try_get::<Vec<u8>, _>(4)?);
    let lock_key =
        row.try_get::<Option<&str>, _>(5)?.map(LockKey::new).transpose().map_err(decode)?;
    let task = Task {
        id: TaskId::new(id).map_err(decode)?,
        queue: QueueName::new(row.try_get(2)?).map_err(decode)?,
        hash: PayloadHash::of(&kind, &payload, lock_key.as_ref()),
        kind,
        payload,
        lock_key,
        max_attempts: row.try_get::<Option<i32>, _>(6)?.and_then(|n| u32::try_from(n).ok()),
        timeout: row
            .try_get::<Option<i64>, _>(7)?
            .and_then(|ms| u64::try_from(ms).ok())
            .map(Duration::from_millis),
        not_before_ms: None,
        traceparent: row.try_get(8)?,
    };
    let entry: Option<&str> = row.try_get(9)?;
    Ok(Due {
        queue: task.queue.clone(),
        entry: entry.map(str::parse).transpose().map_err(decode)?,
        raw: task.to_raw(),
        task_id: id.to_owned(),
        fence: Fence(row.try_get(1)?),
    })
}

fn due_letter(row: &PgRow) -> Result<Due, sqlx::Error> {
    let id: Uuid = row.try_get(0)?;
    let mut parts = row.try_get::<Vec<Vec<u8>>, _>(2)?.into_iter().map(Bytes::from);
    let mut fields = Vec::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        fields.push((name, value));
    }
    Ok(Due {
        queue: QueueName::new(row.try_get(1)?).map_err(decode)?,
        entry: None,
        raw: RawEntry { fields },
        task_id: id.to_string(),
        fence: NO_ROW,
    })
}

fn decode(error: crate::domain::IdError) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(error))
}

/// A promotion to write down.
pub(super) struct Promotion {
    /// The row's id, or the letter's.
    pub(super) task_id: String,
    /// The row's fence, or [`NO_ROW`].
    pub(super) fence: Fence,
    /// Where it is in the stream.
    pub(super) entry: EntryId,
}

/// What a promotion answers.
pub(super) type Promoted = Result<(), LedgerError>;

/// Serves a group of promotions.
pub(super) async fn serve_promotions(inner: Arc<Inner>, group: Vec<Pending<Promotion, Promoted>>) {
    let mut waiting: Vec<_> = group.into_iter().map(Pending::split).collect();
    waiting.sort_by(|(a, _), (b, _)| a.task_id.cmp(&b.task_id));
    let (promotions, replies): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
    let answer = promote_group(&inner, &promotions).await;
    for reply in replies {
        reply.answer(answer.clone());
    }
}

async fn promote_group(inner: &Inner, promotions: &[Promotion]) -> Promoted {
    let mut session = inner.ledger.open().await?;
    let work = promote_rows(inner, session.connection(), promotions);
    let answer = within(inner.call_timeout, work).await;
    session.finish("note promotions", answer).await
}

async fn promote_rows(
    inner: &Inner,
    connection: &mut PgConnection,
    promotions: &[Promotion],
) -> Result<(), sqlx::Error> {
    let (letters, rows): (Vec<&Promotion>, Vec<&Promotion>) =
        promotions.iter().partition(|promotion| promotion.fence == NO_ROW);
    if !rows.is_empty() {
        sqlx::query(statements::PROMOTED_TASKS)
            .bind(rows.iter().map(|row| row.task_id.as_str()).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.fence.0).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.entry.to_string()).collect::<Vec<_>>())
            .bind(millis(inner.released_recheck))
            .execute(&mut *connection)
            .await?;
    }
    let letters: Vec<Uuid> =
        letters.iter().filter_map(|letter| Uuid::parse_str(&letter.task_id).ok()).collect();
    if !letters.is_empty() {
        sqlx::query(statements::PROMOTED_LETTERS).bind(letters).execute(connection).await?;
    }
    Ok(())
}

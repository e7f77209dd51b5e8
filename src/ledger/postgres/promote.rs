//! The way back into the stream, for rows that are due and for refused entries that were requeued.
//!
//! A sweep reserves what it takes for a short while, so that two sweeps never take the same row; it
//! leaves the row due, so that whoever gets the new entry can claim it at once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::session::within;
use super::{Inner, millis, statements};
use crate::coalesce::Pending;
use crate::domain::{
    EntryId, Fence, Kind, LockKey, PayloadHash, QueueName, RawEntry, Task, TaskId,
};
use crate::ledger::{Due, LedgerError};

/// For how long a sweep has its rows to itself: longer than adding them to the stream takes. No
/// longer than a lease either: the worker may be killed meanwhile.
const RESERVATION: Duration = Duration::from_secs(5);

/// The most rows that one sweep takes, and so holds in memory with their payloads.
const SWEEP: usize = 1_000;

/// The most bytes of payload that one sweep takes; the row that passes it is the last.
const SWEEP_BYTES: i64 = 16 << 20;

/// The most letters of one sweep: each may hold some megabytes, which are counted nowhere.
const LETTERS: usize = 16;

/// The fence of a due entry that comes from a dead letter and has no row: rows start at 0.
const NO_ROW: Fence = Fence(-1);

/// See [`crate::ledger::Ledger::due`].
pub(super) async fn due(inner: &Inner, limit: usize) -> Result<Vec<Due>, LedgerError> {
    let limit = limit.min(SWEEP);
    let mut due = due_tasks(inner, limit).await?;
    let left = limit - due.len().min(limit);
    // What was found is reserved already: an error of the rest must not hold it up.
    match due_letters(inner, left.min(LETTERS)).await {
        Ok(letters) => due.extend(letters),
        Err(error) if due.is_empty() => return Err(error),
        Err(error) => tracing::debug!(%error, "requeued letters are looked for again later"),
    }
    Ok(due)
}

async fn due_tasks(inner: &Inner, limit: usize) -> Result<Vec<Due>, LedgerError> {
    let limit = i64::try_from(limit).unwrap_or(0);
    let mut session = inner.ledger.open().await?;
    let answer = within(inner.call_timeout, due_rows(inner, session.connection(), limit)).await;
    session.finish("look for due tasks", answer).await
}

async fn due_letters(inner: &Inner, limit: usize) -> Result<Vec<Due>, LedgerError> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let mut session = inner.ledger.open().await?;
    let looking = due_letter_rows(inner, session.connection(), i64::try_from(limit).unwrap_or(0));
    let answer = within(inner.call_timeout, looking).await;
    session.finish("look for requeued letters", answer).await
}

async fn due_letter_rows(
    inner: &Inner,
    connection: &mut PgConnection,
    limit: i64,
) -> Result<Vec<Due>, sqlx::Error> {
    let rows = sqlx::query(statements::DUE_LETTERS)
        .bind(limit)
        .bind(millis(RESERVATION.min(inner.lease)))
        .fetch_all(connection)
        .await?;
    rows.iter().map(due_letter).collect()
}

async fn due_rows(
    inner: &Inner,
    connection: &mut PgConnection,
    limit: i64,
) -> Result<Vec<Due>, sqlx::Error> {
    let rows = sqlx::query(statements::DUE_TASKS)
        .bind(limit)
        .bind(millis(RESERVATION.min(inner.lease)))
        .bind(SWEEP_BYTES)
        .bind(millis(inner.released_recheck))
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

/// How long after it was made a row is looked at: longer than the first heartbeat, a lease and a
/// claim's transaction take.
const STRAY_AFTER: Duration = Duration::from_secs(60);

/// See [`crate::ledger::Ledger::find_strays`].
pub(super) async fn find_strays(inner: &Inner) -> Result<u64, LedgerError> {
    let after = STRAY_AFTER.max(inner.lease * 3);
    let mut session = inner.ledger.open().await?;
    let statement =
        sqlx::query(statements::STRAYS).bind(millis(after)).execute(session.connection());
    let answer = within(inner.call_timeout, statement).await;
    let done = session.finish("look for strays", answer).await?;
    Ok(done.rows_affected())
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
pub(super) async fn serve(inner: Arc<Inner>, group: Vec<Pending<Promotion, Promoted>>) {
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

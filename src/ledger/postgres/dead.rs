//! Dead letters: what can never run, and what will not run again unless somebody requeues it.
//!
//! A task's letter is written in the transaction of the status that it explains. An entry that is
//! refused keeps its fields byte for byte, and is one letter however often it is buried; of one that
//! is larger than any letter may be, the rest is cut off, and it can no longer be requeued.

use std::borrow::Cow;
use std::sync::Arc;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};
use uuid::Uuid;

use super::error::text;
use super::event::{self, Event};
use super::kept::Kept;
use super::session::{Trouble, within};
use super::{Inner, statements};
use crate::domain::{EntryId, Failure, Malformed, QueueName, RawEntry, Task};
use crate::ledger::{DeadLetterId, LedgerError, Recorded};

/// The status of a letter that does not hold the whole entry.
pub(super) const CUT: &str = "cut";

/// A task's dead letter, to be written.
pub(super) struct Letter<'a> {
    task: &'a Task,
    reason: &'static str,
    message: Cow<'a, str>,
    status: Option<Cow<'a, str>>,
    tail: &'a [u8],
    attempts: i32,
    crashes: i32,
}

impl<'a> Letter<'a> {
    /// Of a task that has no attempt left.
    pub(super) fn of_failure(task: &'a Task, failure: &'a Failure, attempts: i32) -> Self {
        Self {
            task,
            reason: "failed",
            message: text(&failure.message),
            status: failure.status.as_deref().map(text),
            tail: &failure.tail,
            attempts,
            crashes: 0,
        }
    }

    /// Of a task that is given up without a verdict of its handler.
    pub(super) fn of_the_dead(
        task: &'a Task,
        reason: &'static str,
        message: &'a str,
        attempts: i32,
        crashes: i32,
    ) -> Self {
        Self { task, reason, message: text(message), status: None, tail: &[], attempts, crashes }
    }
}

/// Writes letters in the caller's transaction.
pub(super) async fn write(
    inner: &Inner,
    connection: &mut PgConnection,
    letters: &[Letter<'_>],
) -> Result<(), sqlx::Error> {
    let traceparents: Vec<Option<Cow<'_, str>>> =
        letters.iter().map(|letter| letter.task.traceparent.as_deref().map(text)).collect();
    sqlx::query(statements::LETTERS)
        .bind(letters.iter().map(|_| Uuid::now_v7()).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| letter.task.id.as_str()).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| letter.task.queue.as_str()).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| letter.task.kind.as_str()).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| letter.reason).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| &*letter.message).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| letter.status.as_deref()).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| letter.tail).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| letter.attempts).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| letter.crashes).collect::<Vec<_>>())
        .bind(traceparents.iter().map(Option::as_deref).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| &*letter.task.payload).collect::<Vec<_>>())
        .bind(inner.worker.0)
        .execute(connection)
        .await?;
    Ok(())
}

/// See [`crate::ledger::Ledger::condemn`].
pub(super) async fn condemn(inner: &Inner, task: &Arc<Task>) -> Result<Recorded, LedgerError> {
    let mut session = inner.ledger.open().await?;
    let answer = within(inner.call_timeout, condemn_row(inner, session.connection(), task)).await;
    session.finish("condemn", answer).await
}

async fn condemn_row(
    inner: &Inner,
    connection: &mut PgConnection,
    task: &Task,
) -> Result<Recorded, Trouble> {
    let message = format!("its worker crashed more than {} times in a row", inner.max_crashes);
    let mut transaction = connection.begin().await?;
    let row = sqlx::query(statements::CONDEMN)
        .bind(inner.lease_ms())
        .bind(inner.worker.0)
        .bind(inner.doubts.among(&[task.id.as_str()]))
        .bind(inner.max_crashes())
        .bind(task.id.as_str())
        .bind(task.hash.0.as_slice())
        .bind(&message)
        .bind(super::max_attempts(task))
        .bind(task.timeout.map(super::millis))
        .bind(task.traceparent.as_deref().map(text))
        .fetch_optional(&mut *transaction)
        .await?;
    let Some(row) = row else {
        transaction.rollback().await?;
        return Ok(Recorded::Stale);
    };
    let (fence, attempts, crashes) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let event = Event {
        task_id: task.id.as_str(),
        what: "dead",
        fence: Some(fence),
        attempt: Some(attempts),
        detail: Some(message.as_str().into()),
    };
    event::write(inner, &mut transaction, &[event]).await?;
    let letter = Letter::of_the_dead(task, "crashed", &message, attempts, crashes);
    write(inner, &mut transaction, &[letter]).await?;
    transaction.commit().await?;
    Ok(Recorded::Committed)
}

/// See [`crate::ledger::Ledger::bury`].
pub(super) async fn bury(
    inner: &Inner,
    queue: &QueueName,
    entry: EntryId,
    raw: &RawEntry,
    malformed: &Malformed,
) -> Result<(), LedgerError> {
    let kept = Kept::of(raw).await;
    let message = match &kept.cut {
        Some(cut) => format!("{}; {cut}", malformed.message),
        None => malformed.message.clone(),
    };
    let mut session = inner.ledger.open().await?;
    let statement = sqlx::query(statements::BURY)
        .bind(Uuid::now_v7())
        .bind(queue.as_str())
        .bind(entry.to_string())
        .bind(malformed.reason.as_str())
        .bind(text(&message))
        .bind(kept.fields.iter().map(|part| &**part).collect::<Vec<&[u8]>>())
        .bind(inner.worker.0)
        .bind(readable(raw, b"task_id"))
        .bind(readable(raw, b"kind"))
        .bind(kept.cut.is_some().then_some(CUT))
        .execute(session.connection());
    let answer = within(inner.call_timeout, statement).await;
    session.finish("bury", answer).await.map(drop)
}

/// A field's value if it is short text: a hint for people, since the entry as a whole is refused.
fn readable(raw: &RawEntry, field: &[u8]) -> Option<String> {
    let (_, value) = raw.fields.iter().find(|(name, _)| **name == *field)?;
    let value = std::str::from_utf8(value).ok()?;
    (value.len() <= 255).then(|| text(value).into_owned())
}

/// Puts letters back to work, unless it only has to be `tried`; answers those that were, or would be.
/// Passed over are letters requeued before and those whose task has moved on since.
pub(super) async fn requeue(
    inner: &Inner,
    letters: &[DeadLetterId],
    tried: bool,
) -> Result<Vec<DeadLetterId>, LedgerError> {
    let mut session = inner.ledger.open().await?;
    let work = requeue_rows(session.connection(), letters, tried);
    let answer = within(inner.call_timeout, work).await;
    session.finish("requeue", answer).await
}

async fn requeue_rows(
    connection: &mut PgConnection,
    letters: &[DeadLetterId],
    tried: bool,
) -> Result<Vec<DeadLetterId>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let rows = sqlx::query(statements::REQUEUE).bind(letters).fetch_all(&mut *transaction).await?;
    if tried {
        transaction.rollback().await?;
    } else {
        transaction.commit().await?;
    }
    rows.iter().map(|row| row.try_get(0)).collect()
}

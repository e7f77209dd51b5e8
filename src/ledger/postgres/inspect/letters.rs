//! Dead letters as people ask for them: how many nobody has looked after, which ones, and this one.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::ledger::postgres::session::within;
use crate::ledger::postgres::{Inner, dead, millis, statements};
use crate::ledger::{DeadLetterId, LedgerError};

/// Which dead letters are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterFilter {
    /// Of this queue only.
    pub queue: Option<String>,
    /// With this reason only.
    pub reason: Option<String>,
    /// Those already requeued too.
    pub requeued: bool,
    /// At most so many, newest first.
    pub limit: u32,
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its primary key.
    pub id: DeadLetterId,
    /// The task; of a refused entry, what it gives as its id.
    pub task_id: Option<String>,
    /// The queue.
    pub queue: String,
    /// The kind; of a refused entry, what it gives as its kind.
    pub kind: Option<String>,
    /// The refused entry.
    pub entry: Option<String>,
    /// `malformed`, `oversized`, `refused`, `failed`, `crashed` or `unknown_kind`.
    pub reason: String,
    /// One sentence: what happened.
    pub message: String,
    /// The exit, HTTP or SQL status that led to it; of a refused entry, `cut` if not all is kept.
    pub status: Option<String>,
    /// Failures recorded.
    pub attempts: i32,
    /// Crashes in a row.
    pub crashes: i32,
    /// Who wrote it.
    pub worker: Option<Uuid>,
    /// When.
    pub created_at_ms: i64,
    /// When it was put back to work.
    pub requeued_at_ms: Option<i64>,
    /// The last bytes of what the task said; only when one letter is shown.
    pub tail: Option<Vec<u8>>,
    /// The task's payload; only when one letter is shown.
    pub payload: Option<Vec<u8>>,
    /// The refused entry's names and values in turn; only when one letter is shown.
    pub fields: Option<Vec<Vec<u8>>>,
}

impl DeadLetter {
    /// Whether it holds only a part of a refused entry, so that the entry cannot be put back.
    pub fn is_cut(&self) -> bool {
        self.entry.is_some() && self.status.as_deref() == Some(dead::CUT)
    }
}

/// Dead letters by queue that nobody has requeued.
pub(super) async fn open_letters(inner: &Inner) -> Result<Vec<(String, u64)>, LedgerError> {
    let mut session = inner.effects.open().await?;
    let work = sqlx::query(statements::OPEN_LETTERS).fetch_all(session.connection());
    let answer = match within(inner.call_timeout, work).await {
        Ok(rows) => rows.iter().map(letter_count).collect::<Result<_, _>>().map_err(Into::into),
        Err(trouble) => Err(trouble),
    };
    session.finish("count dead letters", answer).await
}

fn letter_count(row: &PgRow) -> Result<(String, u64), sqlx::Error> {
    Ok((row.try_get(0)?, u64::try_from(row.try_get::<i64, _>(1)?).unwrap_or(0)))
}

/// Dead letters, without their bytes.
pub(super) async fn letters(
    inner: &Inner,
    filter: &LetterFilter,
) -> Result<Vec<DeadLetter>, LedgerError> {
    let mut session = inner.effects.open().await?;
    let work = read_letters(session.connection(), filter, None);
    let answer = within(inner.call_timeout, work).await;
    session.finish("list dead letters", answer).await
}

/// See [`crate::ledger::PostgresLedger::letter_ids`].
pub(super) async fn letter_ids(
    inner: &Inner,
    filter: &LetterFilter,
    age: Duration,
    after: DeadLetterId,
) -> Result<Vec<DeadLetterId>, LedgerError> {
    let mut session = inner.effects.open().await?;
    let work = sqlx::query_scalar(statements::LETTER_IDS)
        .bind(filter.requeued)
        .bind(filter.queue.as_deref())
        .bind(filter.reason.as_deref())
        .bind(millis(age))
        .bind(after)
        .bind(i64::from(filter.limit))
        .fetch_all(session.connection());
    let answer = within(inner.call_timeout, work).await;
    session.finish("list dead letters", answer).await
}

/// One dead letter, with its bytes.
pub(super) async fn letter(
    inner: &Inner,
    id: DeadLetterId,
) -> Result<Option<DeadLetter>, LedgerError> {
    let filter = LetterFilter { queue: None, reason: None, requeued: true, limit: 1 };
    let mut session = inner.effects.open().await?;
    let work = read_letters(session.connection(), &filter, Some(id));
    let answer = within(inner.call_timeout, work).await;
    Ok(session.finish("show dead letter", answer).await?.pop())
}

async fn read_letters(
    connection: &mut PgConnection,
    filter: &LetterFilter,
    id: Option<DeadLetterId>,
) -> Result<Vec<DeadLetter>, sqlx::Error> {
    let rows = sqlx::query(statements::SHOW_LETTERS)
        .bind(filter.requeued)
        .bind(filter.queue.as_deref())
        .bind(filter.reason.as_deref())
        .bind(i64::from(filter.limit))
        .bind(id)
        .bind(id.is_some())
        .fetch_all(connection)
        .await?;
    rows.iter()
        .map(|row| {
            Ok(DeadLetter {
                id: row.try_get(0)?,
                task_id: row.try_get(1)?,
                queue: row.try_get(2)?,
                kind: row.try_get(3)?,
                entry: row.try_get(4)?,
                reason: row.try_get(5)?,
                message: row.try_get(6)?,
                status: row.try_get(7)?,
                attempts: row.try_get(8)?,
                crashes: row.try_get(9)?,
                worker: row.try_get(10)?,
                created_at_ms: row.try_get(11)?,
                requeued_at_ms: row.try_get(12)?,
                tail: row.try_get(13)?,
                payload: row.try_get(14)?,
                fields: row.try_get(15)?,
            })
        })
        .collect()
}

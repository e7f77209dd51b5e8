//! Forgetting what is old: tasks that have ended, dead letters, and letters that a person throws away.
//!
//! In small batches, so that nothing waits for a long transaction and vacuum keeps pace. While the
//! row of a task is there, an entry with the same id is recognised as its duplicate; so the age of
//! succeeded rows is the window in which duplicates are harmless.

use sqlx::Row;
use sqlx::postgres::PgConnection;

use super::session::within;
use super::{Inner, millis, statements};
use crate::ledger::{DeadLetterId, LedgerError, Pruned, Retention};

/// Deletes one batch of each sort.
pub(super) async fn prune(inner: &Inner, retention: &Retention) -> Result<Pruned, LedgerError> {
    let mut session = inner.effects.open().await?;
    let answer = within(inner.call_timeout, delete(session.connection(), retention)).await;
    session.finish("prune", answer).await
}

async fn delete(
    connection: &mut PgConnection,
    retention: &Retention,
) -> Result<Pruned, sqlx::Error> {
    let batch = i64::from(retention.batch);
    let tasks: i64 = sqlx::query_scalar(statements::PRUNE_TASKS)
        .bind(batch)
        .bind(millis(retention.succeeded))
        .bind(millis(retention.failed))
        .fetch_one(&mut *connection)
        .await?;
    let letters: i64 = sqlx::query_scalar(statements::PRUNE_LETTERS)
        .bind(batch)
        .bind(millis(retention.letters))
        .fetch_one(&mut *connection)
        .await?;
    Ok(Pruned {
        tasks: u64::try_from(tasks).unwrap_or(0),
        letters: u64::try_from(letters).unwrap_or(0),
        more: tasks >= batch || letters >= batch,
    })
}

/// Throws letters away; answers those that were.
pub(super) async fn purge(
    inner: &Inner,
    letters: &[DeadLetterId],
) -> Result<Vec<DeadLetterId>, LedgerError> {
    let mut session = inner.ledger.open().await?;
    let statement = sqlx::query(statements::PURGE).bind(letters).fetch_all(session.connection());
    let answer = match within(inner.call_timeout, statement).await {
        Ok(rows) => rows.iter().map(|row| Ok(row.try_get(0)?)).collect(),
        Err(trouble) => Err(trouble),
    };
    session.finish("purge", answer).await
}

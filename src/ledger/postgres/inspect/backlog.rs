//! What waits in the ledger, for the metrics: bounded, however much it is.

use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::ledger::LedgerError;
use crate::ledger::postgres::session::within;
use crate::ledger::postgres::{Inner, statements};

/// Rows and letters that are looked at in one count. Above it the exact number helps nobody, and
/// reading all would cost the database more with each worker.
pub const MOST_COUNTED: u32 = 100_000;

/// What waits of one queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The queue.
    pub queue: String,
    /// Tasks that wait for their time, a retry, a handler or their lock key.
    pub delayed: u64,
    /// Dead letters that nobody has requeued.
    pub letters: u64,
}

/// See [`crate::ledger::PostgresLedger::backlog`].
pub(super) async fn backlog(inner: &Inner, queues: &[String]) -> Result<Vec<Waiting>, LedgerError> {
    let mut session = inner.effects.open().await?;
    let answer = within(inner.call_timeout, count(session.connection(), queues)).await;
    session.finish("count what waits", answer).await
}

async fn count(
    connection: &mut PgConnection,
    queues: &[String],
) -> Result<Vec<Waiting>, sqlx::Error> {
    let mut all: Vec<Waiting> =
        queues.iter().map(|queue| Waiting { queue: queue.clone(), ..Waiting::default() }).collect();
    let rows = sqlx::query(statements::BACKLOG)
        .bind(queues)
        .bind(i64::from(MOST_COUNTED))
        .fetch_all(connection)
        .await?;
    for row in rows {
        let queue: String = row.try_get(0)?;
        if let Some(waiting) = all.iter_mut().find(|waiting| waiting.queue == queue) {
            waiting.delayed = u64::try_from(row.try_get::<i64, _>(1)?).unwrap_or(0);
            waiting.letters = u64::try_from(row.try_get::<i64, _>(2)?).unwrap_or(0);
        }
    }
    Ok(all)
}

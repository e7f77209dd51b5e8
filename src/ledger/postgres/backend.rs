//! The other end of a session: whether the server still has it.
//!
//! An effect may run for days, and while it does its connection is silent. If the server's machine
//! vanishes meanwhile, or a failover puts another in its place, nothing on this connection tells so. So
//! the server that answers now is asked on another one, whether it still has the process that serves
//! this session.

use sqlx::Row;
use sqlx::postgres::PgConnection;

use super::session::within;
use super::{Inner, statements};
use crate::ledger::LedgerError;

/// The server's process for a session. Another server, or the same after a restart, has none like it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backend {
    pid: i32,
    started_us: i64,
}

impl Backend {
    /// The process that serves this connection; `None` where the role of the session may not see when
    /// it was started, as one that was set by `ALTER ROLE … SET role`.
    pub(super) async fn of(connection: &mut PgConnection) -> Result<Option<Self>, sqlx::Error> {
        let row = sqlx::query(statements::OWN_BACKEND).fetch_one(connection).await?;
        let (pid, started_us) = (row.try_get(0)?, row.try_get::<Option<i64>, _>(1)?);
        Ok(started_us.map(|started_us| Self { pid, started_us }))
    }

    async fn is_there(self, inner: &Inner) -> Result<bool, LedgerError> {
        let mut session = inner.ledger.open().await?;
        let asking = sqlx::query_scalar(statements::HAS_BACKEND)
            .bind(self.pid)
            .bind(self.started_us)
            .fetch_one(session.connection());
        let answer = within(inner.call_timeout, asking).await;
        session.finish("look for a session", answer).await
    }
}

/// Resolves when the server says that it has no such process; looks once in a lease. A server that
/// does not answer proves nothing: then leases run out, and whoever waits gives up.
pub(super) async fn vanished(inner: &Inner, backend: Option<Backend>) {
    let Some(backend) = backend else { return std::future::pending().await };
    loop {
        tokio::time::sleep(inner.lease).await;
        if let Ok(false) = backend.is_there(inner).await {
            return;
        }
    }
}

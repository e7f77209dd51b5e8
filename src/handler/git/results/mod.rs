//! What is kept of commits, in Postgres: the schema `queue_worker_git`.
//!
//! One row of `analyses` per commit and profile says whether it is done. Each claim raises its fence,
//! and a write that carries an older one changes nothing. All rows of a commit are written in one
//! transaction, its status last; so a commit has either none of them or all. The mailmap is applied by
//! the views, never in the rows.

mod claims;
mod columns;
mod facts;
pub mod mailmap;
mod queued;
mod reopen;
mod reports;
mod schema;
mod writes;

use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::oid::ObjectId;
use super::outcome::Outcome;
use crate::connection::PasswordSource;
use crate::ledger::LedgerError;
use crate::ledger::session::{Purpose, STATEMENT_SHARE, Sessions, Trouble, within};

pub use claims::Progress;
pub use reopen::Reopen;
pub use reports::{Cell, Grid, Report, Scope};
pub use schema::migrate;

/// Time for a call; a transaction of many rows gets more.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a question that reads everything of a repository.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Time to wait for a row that another worker writes at this moment.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Errors are the ledger's, since the server is the same.
pub type ResultsError = LedgerError;

/// The results, in Postgres.
pub struct Results {
    sessions: Sessions,
    timeout: Duration,
}

/// A repository and a profile, by their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Of the repository.
    pub repository: i64,
    /// Of the profile.
    pub profile: i32,
}

/// A commit that is ours to analyse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The key of its row.
    pub key: i64,
    /// The commit.
    pub id: ObjectId,
    /// What may be written under.
    pub fence: i64,
}

/// How the analysis of a claimed commit ended.
#[derive(Debug, Clone, Copy)]
pub struct Finished<'a> {
    /// Its claim.
    pub claim: Claim,
    /// How it ended.
    pub outcome: &'a Outcome,
    /// How long it took.
    pub took: Duration,
}

impl Results {
    /// Results that connect when they are first asked for something, with at most `size` connections.
    pub fn new(connect: &PgConnectOptions, password: Option<PasswordSource>, size: usize) -> Self {
        Self::with_timeout(connect, password, size, CALL_TIMEOUT)
    }

    /// The same for questions that read everything, with one connection.
    pub fn for_reports(connect: &PgConnectOptions, password: Option<PasswordSource>) -> Self {
        Self::with_timeout(connect, password, 1, REPORT_TIMEOUT)
    }

    /// The same with another time for a call.
    pub fn with_timeout(
        connect: &PgConnectOptions,
        password: Option<PasswordSource>,
        size: usize,
        timeout: Duration,
    ) -> Self {
        let sessions =
            Sessions::new(connect, password, Purpose::Effects, size, timeout, LOCK_TIMEOUT);
        Self { sessions, timeout }
    }

    /// Whether Postgres answers.
    pub async fn check(&self) -> Result<(), ResultsError> {
        self.call("look", async |connection| connection.ping().await).await
    }

    /// Whether a call that failed after so long was too long a call: its time was over, or that which
    /// the server gives a statement.
    pub fn is_late(&self, took: Duration) -> bool {
        took >= self.timeout.mul_f64(STATEMENT_SHARE)
    }

    /// Runs `work` on a session, within the time that a call has.
    async fn call<T>(
        &self,
        action: &'static str,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, ResultsError> {
        self.call_within(self.timeout, action, work).await
    }

    /// The same with another time.
    async fn call_within<T>(
        &self,
        time: Duration,
        action: &'static str,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, ResultsError> {
        let mut session = self.sessions.open().await?;
        let answer: Result<T, Trouble> = within(time, work(session.connection())).await;
        session.finish(action, answer).await
    }
}

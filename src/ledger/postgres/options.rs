//! How a ledger is to work: every limit that it keeps to, with its default.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;

use crate::connection::PasswordSource;
use crate::domain::WorkerId;

/// How a ledger is to work.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// Where, and as whom.
    pub connect: PgConnectOptions,
    /// Asked at each connect; without it the password of `connect` is used.
    pub password: Option<PasswordSource>,
    /// Under which name tasks are claimed.
    pub worker: WorkerId,
    /// For how long a claim or a renewal lasts.
    pub lease: Duration,
    /// How many crashes in a row a task may have caused; one more is too many.
    pub max_crashes: u32,
    /// How many connections for the ledger, and again as many at most for effects. One more is for
    /// renewals. All are made when they are needed.
    pub pool_size: usize,
    /// How long a call may take, waiting for a connection not included. Effects have this on top
    /// of their own time limits.
    pub call_timeout: Duration,
    /// How long a group may wait for a row that another transaction has locked.
    pub lock_timeout: Duration,
    /// How many groups of the same sort are under way at most.
    pub committers: usize,
    /// How many calls make one group at most.
    pub group: usize,
    /// How long after its release a task is looked after, in case that Redis has lost its entry.
    pub released_recheck: Duration,
}

impl PostgresOptions {
    /// The defaults for a worker: a lease of 5 s, 3 crashes, 8 connections, groups of 256 by 3
    /// committers, 5 s for a call, 500 ms for a lock, 30 s until a release is looked after.
    pub fn new(connect: PgConnectOptions, worker: WorkerId) -> Self {
        Self {
            connect,
            password: None,
            worker,
            lease: Duration::from_secs(5),
            max_crashes: 3,
            pool_size: 8,
            call_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_millis(500),
            committers: 3,
            group: 256,
            released_recheck: Duration::from_secs(30),
        }
    }
}

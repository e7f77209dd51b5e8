//! Rank 2: the heartbeat lease in Redis. It avoids double work and notices trouble early; it is
//! never what correctness rests on.
//!
//! Key and value are those of the common clients: `SET key token NX PX ttl`, and deletion only by
//! the owner of the token. See <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>.

pub mod memory;
mod redis;

use std::time::Duration;

use async_trait::async_trait;

pub use self::redis::{RedisLeaseOptions, RedisLeases};
use crate::clock::BootInstant;
use crate::connection::RedisError;
use crate::domain::LockToken;

/// A lock that we hold, or may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// The Redis key.
    pub name: String,
    /// Our token: new for each attempt.
    pub token: LockToken,
    /// Until when it is ours at least: counted from before the command was sent.
    pub valid_until: BootInstant,
}

/// The answer to an acquisition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// Ours.
    Granted(Lock),
    /// Somebody else's, for as long as `remaining` unless it is renewed.
    Taken {
        /// What is left of the other's time to live.
        remaining: Duration,
    },
}

/// What a renewal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Still ours (or gone, and set again): extended to a full time to live.
    Renewed,
    /// Another token is there.
    Foreign,
}

/// Locks with a time to live.
#[async_trait]
pub trait LeaseStore: Send + Sync + 'static {
    /// Tries once to take the lock with a new token. On a timeout the outcome is unknown; the store
    /// then deletes what may have been set, compared by token, and answers the error.
    async fn acquire(&self, name: &str) -> Result<Acquired, LeaseError>;

    /// Deletes the lock if it is still ours.
    async fn release(&self, lock: &Lock) -> Result<(), LeaseError>;

    /// Extends the locks, one answer each in order; sets a lock that is gone. For the heartbeat.
    async fn renew(&self, locks: &[Lock]) -> Result<Vec<Renewal>, LeaseError>;
}

/// Errors are those of the connection to Redis.
pub type LeaseError = RedisError;

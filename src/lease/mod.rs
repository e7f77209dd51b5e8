//! Rank 2: the heartbeat lease in Redis. It avoids double work and notices trouble early; it is
//! never what correctness rests on.
//!
//! Key and value are those of the common clients: `SET key token NX PX ttl`, and deletion only by
//! the owner of the token, on one server or on a majority of several. See
//! <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>.

pub mod memory;
mod redis;

use std::time::Duration;

use async_trait::async_trait;

pub use self::redis::{QuorumLeaseOptions, QuorumLeases, RedisLeaseOptions, RedisLeases};
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
    /// Another token is there; of several nodes, on a majority.
    Foreign,
    /// Neither is known: too few nodes answered, or they disagree.
    Unconfirmed,
}

/// Locks with a time to live.
#[async_trait]
pub trait LeaseStore: Send + Sync + 'static {
    /// Tries to take the lock with a new token; never grants one whose validity is spent. On a
    /// timeout the outcome is unknown; the store then deletes what may have been set, compared by
    /// token, and answers the error.
    async fn acquire(&self, name: &str) -> Result<Acquired, LeaseError>;

    /// Deletes the lock where it is still ours.
    async fn release(&self, lock: &Lock) -> Result<(), LeaseError>;

    /// Extends the locks, one answer each in order; sets a lock that is gone, and releases none.
    /// For the heartbeat.
    async fn renew(&self, locks: &[Lock]) -> Result<Vec<Renewal>, LeaseError>;

    /// Whether locks can be taken now. An error names what is away and why.
    async fn check(&self) -> Result<(), LeaseError>;
}

/// The lock store could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LeaseError {
    /// The one Redis that holds the locks.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// Fewer than a majority of the lock nodes answered.
    #[error("{} of {nodes} lock nodes away, {needed} must answer: {}", .away.len(), told(.away))]
    NoQuorum {
        /// How many nodes there are.
        nodes: usize,
        /// How many are a majority.
        needed: usize,
        /// Which have no vote now, and why.
        away: Vec<RedisError>,
    },
    /// The lock was granted so late that it was worth nothing, and given back.
    #[error(
        "lock {name:?} was granted only after its validity had ended, and given back; raise \
         lease.ttl if this goes on"
    )]
    Spent {
        /// The Redis key.
        name: String,
    },
}

impl LeaseError {
    /// Whether the same call may succeed later without anybody's help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Redis(error) => error.is_transient(),
            Self::NoQuorum { away, .. } => away.iter().all(RedisError::is_transient),
            Self::Spent { .. } => true,
        }
    }
}

/// The errors of lock nodes, with the names that the settings of nodes have.
fn told(away: &[RedisError]) -> String {
    let one = |error: &RedisError| match error {
        RedisError::Unavailable { address, message } => format!("{address}: {message}"),
        RedisError::Replica { address } => format!(
            "{address}: it is a replica and takes no writes; name a master or its Sentinels in \
             `lease.nodes`"
        ),
        RedisError::Misconfigured { address, message } => {
            format!("{address} {}", message.replace("`redis.", "`lease."))
        }
        RedisError::Timeout { address, .. } => {
            format!("{address}: no answer within lease.node_timeout")
        }
        RedisError::Refused { .. } | RedisError::Unsure { .. } => error.to_string(),
    };
    away.iter().map(one).collect::<Vec<_>>().join("; ")
}

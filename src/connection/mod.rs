//! Rank 1: connections to Redis that have deadlines and are replaced when they stop answering.
//!
//! What `queue` and `lease` share, so that these two never need to know each other. Each user gets
//! links of its own: a blocked reader must not hold up anybody, and the heartbeat neither.

mod redis;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::redis::{LuaScript, RedisConnection, RedisLink, RedisTarget, TargetError, inquire};

/// Gives the password at each connect, or says in one sentence why it cannot: so a secret that is
/// mended or rotated takes effect by itself.
#[derive(Clone)]
pub struct PasswordSource(Arc<dyn Fn() -> Result<Option<String>, String> + Send + Sync>);

impl PasswordSource {
    /// A source that asks `read` each time.
    pub fn new(read: impl Fn() -> Result<Option<String>, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The password now; `None` where there is none.
    pub fn read(&self) -> Result<Option<String>, String> {
        (self.0)()
    }
}

impl fmt::Debug for PasswordSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordSource")
    }
}

/// Redis could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RedisError {
    /// No connection, or it broke; it is being made anew.
    #[error("redis {address}: {message}; check that it runs and that `redis.url` is right")]
    Unavailable {
        /// Where, without credentials.
        address: String,
        /// What the client said.
        message: String,
    },
    /// A replica takes no writes, and what it has may be replaced at any time. It may become a master,
    /// or the next attempt to connect may lead to another server.
    #[error(
        "redis {address}: it is a replica and takes no writes; name the master or its Sentinels in \
         `redis.url`"
    )]
    Replica {
        /// Where, without credentials.
        address: String,
    },
    /// No answer in time: the command may or may not have been applied.
    #[error("redis {address}: no answer to {command} within {after:?}")]
    Timeout {
        /// Where, without credentials.
        address: String,
        /// Which command.
        command: &'static str,
        /// The deadline that passed.
        after: Duration,
    },
    /// It was sent, no answer came, and once more it might do harm: it may have been applied.
    #[error("redis {address}: {command} may have been applied, and is not repeated: {message}")]
    Unsure {
        /// Where, without credentials.
        address: String,
        /// Which command.
        command: &'static str,
        /// What became of its answer.
        message: String,
    },
    /// Redis answered with an error.
    #[error("redis {address} refused {command}: {message}")]
    Refused {
        /// Where, without credentials.
        address: String,
        /// Which command.
        command: &'static str,
        /// What Redis said.
        message: String,
    },
    /// Redis is set up so that tasks could be lost.
    #[error("redis {address} {message}")]
    Misconfigured {
        /// Where, without credentials.
        address: String,
        /// What is wrong, and the remedy.
        message: String,
    },
}

impl RedisError {
    /// Whether the same call may succeed later without anybody's help. One that must not be made again
    /// is none of these.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Replica { .. } | Self::Timeout { .. } => true,
            Self::Refused { .. } | Self::Misconfigured { .. } | Self::Unsure { .. } => false,
        }
    }
}

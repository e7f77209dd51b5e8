//! Why a ledger could not do what was asked: infrastructure that went wrong, never a task.
//!
//! Every variant names the server, without credentials.

/// The ledger could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LedgerError {
    /// No connection, or it broke, or it did not answer in time.
    #[error("postgres {address}: {message}; check that it runs and that `postgres.url` is right")]
    Unavailable {
        /// Where, without credentials.
        address: String,
        /// What the client said.
        message: String,
    },
    /// The password or role was refused.
    #[error("postgres {address} refused the login: {message}")]
    LoginRefused {
        /// Where, without credentials.
        address: String,
        /// What Postgres said.
        message: String,
    },
    /// The schema is missing or of another version.
    #[error("postgres {address}: {message}")]
    Schema {
        /// Where, without credentials.
        address: String,
        /// What is wrong, and the remedy.
        message: String,
    },
    /// A deadlock, a serialization failure, a lock timeout or a shutdown: the same again may work.
    #[error("postgres {address} gave up on {action}: {message}")]
    Conflict {
        /// Where, without credentials.
        address: String,
        /// What was being done.
        action: &'static str,
        /// What Postgres said.
        message: String,
    },
    /// Postgres answered with an error that the same call will meet again.
    #[error("postgres {address} refused {action}: {message}")]
    Refused {
        /// Where, without credentials.
        address: String,
        /// What was being done.
        action: &'static str,
        /// What Postgres said.
        message: String,
    },
}

impl LedgerError {
    /// Whether the same call may succeed later without anybody's help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Conflict { .. } => true,
            Self::LoginRefused { .. } | Self::Schema { .. } | Self::Refused { .. } => false,
        }
    }
}

//! What an effect writes on: the transaction in which its task succeeds.

use sqlx::PgConnection;

use super::EffectError;
use super::memory::MemoryTransaction;
use crate::domain::Failure;

/// The open transaction of a completion. It is neither to be ended nor to be kept.
pub enum EffectConnection<'c> {
    /// Of Postgres.
    Postgres(&'c mut PgConnection),
    /// Of the ledger that simulations use.
    #[doc(hidden)]
    Memory(&'c mut MemoryTransaction),
}

impl<'c> EffectConnection<'c> {
    /// The connection to Postgres, which every ledger but a simulation's has.
    pub fn postgres(self) -> Result<&'c mut PgConnection, EffectError> {
        match self {
            Self::Postgres(connection) => Ok(connection),
            Self::Memory(_) => Err(EffectError::Failed(Failure::for_good(
                "this effect needs postgres, and the ledger is in memory",
            ))),
        }
    }
}

//! An effect: what a handler writes in the transaction in which its task succeeds.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::PgConnection;

use super::memory::MemoryTransaction;
use crate::domain::{Failure, Fence, Task};

/// What a handler does inside the completion's transaction.
///
/// The effect exists if and only if the task has succeeded, since both commit together.
#[async_trait]
pub trait Effect: Send + Sync + 'static {
    /// A name for errors and for the grouping of tasks with the same effect: the kind.
    fn name(&self) -> &str;

    /// How many tasks may share one transaction; 1 gives each its own.
    fn batch(&self) -> usize;

    /// Whether the first delivery may claim, apply and complete in a single commit. Only for
    /// effects that cannot bring the worker's process down.
    fn single_commit(&self) -> bool;

    /// Applies the effect of all `items` on `connection`, within a transaction that the ledger has
    /// opened and will end. On an error everything is rolled back, and if there was more than one
    /// item, each is tried again in a transaction of its own.
    async fn apply(
        &self,
        connection: EffectConnection<'_>,
        items: &[EffectItem],
    ) -> Result<(), EffectError>;
}

/// One task's input to an effect.
#[derive(Debug, Clone)]
pub struct EffectItem {
    /// The task.
    pub task: Arc<Task>,
    /// What the effect may write under: the resource's fence where there is one.
    pub fence: Fence,
    /// Which attempt this is; 1 for the first.
    pub attempt: u32,
}

/// An effect did not apply.
#[derive(Debug, thiserror::Error)]
pub enum EffectError {
    /// The task's own fault: recorded as its failure.
    #[error("{}", .0.message)]
    Failed(Failure),
    /// The database's fault or the connection's: tried again, nothing burnt.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

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

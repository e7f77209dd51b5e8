//! Rank 3: what runs a task of one kind.
//!
//! A handler declares its effect. *External* (exec, http, native): claim and completion are two
//! short transactions, and the effect is at-least-once, with key and fence. *In the transaction*
//! (sql, native): the effect commits together with the task's success.

mod blame;
pub mod exec;
pub mod git;
pub mod http;
pub mod native;
pub mod registry;
pub mod sql;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::clock::BootInstant;
use crate::domain::{Failure, Fence, Task};
use crate::ledger::Effect;

/// How a kind of task is run.
#[derive(Clone)]
pub enum Handler {
    /// The effect lies outside of the ledger.
    External(Arc<dyn ExternalHandler>),
    /// The effect is part of the completion's transaction.
    InTransaction(Arc<dyn Effect>),
}

/// A handler whose effect lies outside of the ledger's transaction.
#[async_trait]
pub trait ExternalHandler: Send + Sync + 'static {
    /// Runs one task to its end.
    ///
    /// When [`Run::cancel`] fires, stop as soon as it can be done cleanly and return a failure (or
    /// the success that came first); the executor knows why it cancelled and does not count the
    /// failure if it was for a shutdown. A run that has not returned within the grace period is
    /// dropped, and dropping must leave nothing running.
    async fn run(&self, run: Run) -> Result<Option<Bytes>, Failure>;

    /// Whether the handler only ever awaits and needs next to no processor time. It then runs on the
    /// coordinating thread, which saves two changes of thread per task; one that computes or blocks
    /// there would hold up everything but the heartbeat.
    fn is_light(&self) -> bool {
        false
    }
}

/// What a handler is given.
#[derive(Debug, Clone)]
pub struct Run {
    /// The task.
    pub task: Arc<Task>,
    /// What the effect may write under: the resource's fence where there is one.
    pub fence: Fence,
    /// Which attempt this is; 1 for the first.
    pub attempt: u32,
    /// When the run will be cancelled for its time limit.
    pub deadline: BootInstant,
    /// The same point for others: milliseconds since the Unix epoch.
    pub deadline_ms: i64,
    /// Fires when the run must stop.
    pub cancel: CancellationToken,
}

//! The names of the fields in log records, and the span of a task.
//!
//! The journal shows them in upper case without a prefix, so that `journalctl TASK_ID=…` finds
//! everything about one task. `task_span` carries them; use the constants in events outside of it:
//! `tracing::info!({ fields::QUEUE } = %queue, "…")`.

use tracing::Span;
use tracing::field::display;

use crate::domain::{Fence, Kind, QueueName, TaskId};

/// The task's id: `TASK_ID=` in the journal.
pub const TASK_ID: &str = "task_id";
/// The queue that it came through: `QUEUE=`.
pub const QUEUE: &str = "queue";
/// Its kind: `KIND=`.
pub const KIND: &str = "kind";
/// The fence of the claim: `FENCE=`.
pub const FENCE: &str = "fence";
/// Which attempt: `ATTEMPT=`.
pub const ATTEMPT: &str = "attempt";
/// The store that an outage is about: `STORE=`.
pub const STORE: &str = "store";
/// What went wrong, in words: `ERROR=`.
pub const ERROR: &str = "error";

/// The span of one delivery; [`record_claim`] adds the rest once the task is claimed.
pub fn task_span(task: &TaskId, queue: &QueueName, kind: &Kind) -> Span {
    tracing::info_span!(
        "task",
        { TASK_ID } = %task,
        { QUEUE } = %queue,
        { KIND } = %kind,
        { FENCE } = tracing::field::Empty,
        { ATTEMPT } = tracing::field::Empty,
    )
}

/// Adds fence and attempt to the span of a task.
pub fn record_claim(span: &Span, fence: Fence, attempt: u32) {
    span.record(FENCE, display(fence));
    span.record(ATTEMPT, attempt);
}

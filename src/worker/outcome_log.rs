//! One line per outcome of a task, at info, with the fields that `journalctl TASK_ID=…` looks for.

use crate::domain::{Held, Task, Verdict};
use crate::ledger::Grant;

macro_rules! outcome {
    ($level:ident, $task:expr, $fence:expr, $attempt:expr, $($message:tt)+) => {
        tracing::$level!(
            TASK_ID = %$task.id,
            QUEUE = %$task.queue,
            KIND = %$task.kind,
            FENCE = $fence,
            ATTEMPT = $attempt,
            $($message)+
        )
    };
}

/// The effect and the success are committed.
pub(super) fn succeeded(task: &Task, grant: Option<&Grant>) {
    match grant {
        Some(grant) => {
            outcome!(info, task, grant.held.effect_fence().0, grant.attempt, "succeeded");
        }
        None => {
            tracing::info!(
                TASK_ID = %task.id, QUEUE = %task.queue, KIND = %task.kind, "succeeded"
            );
        }
    }
}

/// What was recorded of a run.
pub(super) fn verdict(task: &Task, grant: &Grant, verdict: &Verdict) {
    let (fence, attempt) = (grant.held.effect_fence().0, grant.attempt);
    match verdict {
        Verdict::Succeeded { .. } => outcome!(info, task, fence, attempt, "succeeded"),
        Verdict::Retry { failure, delay } => outcome!(
            info,
            task,
            fence,
            attempt,
            "failed, again in {delay:.1?}: {}",
            failure.message
        ),
        Verdict::Postponed { failure, delay } => outcome!(
            info,
            task,
            fence,
            attempt,
            "put off, again in {delay:.1?}: {}",
            failure.message
        ),
        Verdict::Failed { failure } => outcome!(
            warn,
            task,
            fence,
            attempt,
            "failed for good, dead-lettered: {}",
            failure.message
        ),
        Verdict::Released => outcome!(info, task, fence, attempt, "interrupted, given back"),
    }
}

/// The fence refused the outcome.
pub(super) fn stale(task: &Task, held: &Held) {
    tracing::warn!(
        TASK_ID = %task.id, QUEUE = %task.queue, KIND = %task.kind, FENCE = held.fence.0,
        "outcome refused: another worker has claimed the task since"
    );
}

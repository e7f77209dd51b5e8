//! How a run ended.

use bytes::Bytes;

/// What decides whether a failed task runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// Worth another attempt, after the policy's delay, and that after the given one.
    Retry {
        /// What the other side asked for (HTTP `Retry-After`).
        after: Option<std::time::Duration>,
    },
    /// No attempt can succeed.
    ForGood,
    /// Something else is in the way, and the task is not to blame: it runs again after this time, and
    /// no attempt is burnt.
    Postponed {
        /// How long to wait.
        after: std::time::Duration,
    },
}

/// A task went wrong: a value that is stored with the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Whether another attempt may follow.
    pub class: FailureClass,
    /// One sentence for a human: what happened.
    pub message: String,
    /// Exit status, signal name or HTTP status, where there was one: `exit 75`, `signal SIGKILL`,
    /// `http 503`, `timeout`, `panic`.
    pub status: Option<String>,
    /// The last bytes of standard error or of the response body, capped by the handler.
    pub tail: Bytes,
}

impl Failure {
    /// A failure that is worth another attempt.
    pub fn retry(message: impl Into<String>) -> Self {
        Self {
            class: FailureClass::Retry { after: None },
            message: message.into(),
            status: None,
            tail: Bytes::new(),
        }
    }

    /// A failure that no further attempt can mend.
    pub fn for_good(message: impl Into<String>) -> Self {
        Self { class: FailureClass::ForGood, ..Self::retry(message) }
    }

    /// A wait for something that the task is not to blame for.
    pub fn postponed(message: impl Into<String>, after: std::time::Duration) -> Self {
        Self { class: FailureClass::Postponed { after }, ..Self::retry(message) }
    }

    /// The same failure with the status that led to it.
    #[must_use]
    pub fn with_status(mut self, status: impl Into<String>) -> Self {
        self.status = Some(status.into());
        self
    }

    /// The same failure with the tail of what the task said.
    #[must_use]
    pub fn with_tail(mut self, tail: impl Into<Bytes>) -> Self {
        self.tail = tail.into();
        self
    }
}

/// Why a run was asked to stop before it ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    /// The worker drains and the soft deadline has passed.
    Drain,
    /// The task's own time limit.
    Timeout,
    /// The lease is gone: another worker may run the task.
    LeaseLost,
    /// No handler became free for it in time: another worker may have one.
    NoRoom,
}

/// What is recorded of a task after a run, under the fence of its claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Its effect exists.
    Succeeded {
        /// What the handler gave back, capped by the handler.
        result: Option<Bytes>,
    },
    /// It failed and runs again after `delay`: burns an attempt, sets crashes to 0.
    Retry {
        /// What went wrong.
        failure: Failure,
        /// From now, by the database's clock.
        delay: std::time::Duration,
    },
    /// It could not go on, through no fault of its own, and runs again after `delay`: burns no
    /// attempt, sets crashes to 0.
    Postponed {
        /// What was in the way.
        failure: Failure,
        /// From now, by the database's clock.
        delay: std::time::Duration,
    },
    /// It failed, and no attempt is left: status `failed`, and a dead letter in the same
    /// transaction.
    Failed {
        /// What went wrong.
        failure: Failure,
    },
    /// It was cut off by a shutdown or a lost lock: status `released` with a higher fence, payload
    /// kept; burns neither attempt nor crash.
    Released,
}

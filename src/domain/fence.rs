//! Fencing tokens and what a worker holds while it runs a task.
//!
//! A fence only rises. The row of a task issues one fence per claim; the row of a resource issues
//! one per claim of a task that names it, and that one is what the handler sees.

use std::fmt;

use super::ids::{LockKey, TaskId};

/// A fencing token: strictly larger at each claim of the same row.
///
/// See Kleppmann, "How to do distributed locking" (2016): the store refuses a write whose token is
/// older than one that it has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub i64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The random value stored under a lock key; only its owner can renew or delete the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockToken(pub u128);

impl LockToken {
    /// A new random token.
    pub fn random() -> Self {
        Self(rand::random())
    }
}

impl fmt::Display for LockToken {
    /// 32 hexadecimal digits: what Redis stores.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A committed claim: the right to write the outcome of a task while its fence stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Which task.
    pub task_id: TaskId,
    /// The fence of the task's row.
    pub fence: Fence,
    /// The resource that the task holds, with the fence of the resource's row.
    pub resource: Option<(LockKey, Fence)>,
}

impl Held {
    /// The fence that the handler sees: the resource's where there is one, else the task's.
    pub fn effect_fence(&self) -> Fence {
        self.resource.as_ref().map_or(self.fence, |(_, fence)| *fence)
    }
}

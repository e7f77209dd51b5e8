//! One row of a task and one of a resource, and what the statements of Postgres ask of them.

use std::time::Duration;

use bytes::Bytes;

use crate::domain::{
    EntryId, Fence, Kind, LockKey, PayloadHash, QueueName, Task, TaskId, WorkerId,
};
use crate::ledger::Status;

/// A task's row. Times are milliseconds by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The queue that it last came through.
    pub queue: QueueName,
    /// Which handler runs it.
    pub kind: Kind,
    /// Of kind, payload and lock key.
    pub hash: PayloadHash,
    /// The resource that it needs.
    pub lock_key: Option<LockKey>,
    /// Its state.
    pub status: Status,
    /// Rises with each claim.
    pub fence: Fence,
    /// Who claimed it last.
    pub worker: Option<WorkerId>,
    /// Of a running task: when another worker may take over; of a waiting one: reserved until.
    pub lease_until: Option<i64>,
    /// When it is due, or is to be looked after.
    pub run_at: Option<i64>,
    /// Since when nobody has known its kind, or it has waited to run alone.
    pub waits_since: Option<i64>,
    /// Failures so far.
    pub attempts: u32,
    /// Crashes in a row.
    pub crashes: u32,
    /// Its own number of attempts.
    pub max_attempts: Option<u32>,
    /// Its own time limit.
    pub timeout: Option<Duration>,
    /// As it came.
    pub traceparent: Option<String>,
    /// Where a released task is in the stream, if a promotion put it there.
    pub entry: Option<EntryId>,
    /// Until its end.
    pub payload: Option<Bytes>,
    /// What the handler gave back.
    pub result: Option<Bytes>,
    /// When it was first seen.
    pub created_at: i64,
    /// When it was claimed last.
    pub started_at: Option<i64>,
    /// When it came to its end.
    pub processed_at: Option<i64>,
    /// What went wrong last.
    pub error: Option<String>,
}

impl Row {
    /// A row that was never claimed.
    pub(super) fn of(task: &Task, now_ms: i64) -> Self {
        Self {
            queue: task.queue.clone(),
            kind: task.kind.clone(),
            hash: task.hash,
            lock_key: task.lock_key.clone(),
            status: Status::Delayed,
            fence: Fence(0),
            worker: None,
            lease_until: None,
            run_at: None,
            waits_since: None,
            attempts: 0,
            crashes: 0,
            max_attempts: None,
            timeout: None,
            traceparent: None,
            entry: None,
            payload: None,
            result: None,
            created_at: now_ms,
            started_at: None,
            processed_at: None,
            error: None,
        }
    }

    /// Whether the state lets the row be claimed by `by`.
    pub(super) fn is_claimable(&self, by: &Claimant) -> bool {
        match self.status {
            Status::Released => true,
            Status::Delayed => self.run_at.is_some_and(|at| at <= by.now_ms),
            Status::Running => {
                self.lease_until.is_some_and(|until| until <= by.now_ms) || self.is_doubted(by)
            }
            Status::Succeeded | Status::Failed | Status::Dead => false,
        }
    }

    /// 1 if taking it over counts as a crash: its lease could have been renewed and was not.
    pub(super) fn crash(&self, by: &Claimant) -> u32 {
        let crashed = self.status == Status::Running
            && !self.is_doubted(by)
            && self.lease_until.is_some_and(|until| by.started_ms < until - by.lease_ms);
        u32::from(crashed)
    }

    fn is_doubted(&self, by: &Claimant) -> bool {
        by.in_doubt && self.worker == Some(by.worker)
    }

    /// What a waiting task needs to come back.
    pub(super) fn keep(&mut self, task: &Task) {
        self.payload = Some(task.payload.clone());
        self.note_options(task);
    }

    /// It does not wait any more.
    pub(super) fn without_payload(self) -> Self {
        Self { payload: None, run_at: None, entry: None, ..self }
    }

    /// What a requeue or a promotion needs besides the payload.
    pub(super) fn note_options(&mut self, task: &Task) {
        self.max_attempts = task.max_attempts;
        self.timeout = task.timeout;
        self.traceparent.clone_from(&task.traceparent);
    }

    /// The task that waits in this row.
    pub(super) fn task(&self, id: &TaskId) -> Option<Task> {
        let payload = self.payload.clone()?;
        Some(Task {
            id: id.clone(),
            queue: self.queue.clone(),
            kind: self.kind.clone(),
            hash: self.hash,
            payload,
            lock_key: self.lock_key.clone(),
            max_attempts: self.max_attempts,
            timeout: self.timeout,
            not_before_ms: None,
            traceparent: self.traceparent.clone(),
        })
    }
}

/// Who asks for a row, and when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claimant {
    pub(super) worker: WorkerId,
    pub(super) now_ms: i64,
    pub(super) started_ms: i64,
    pub(super) lease_ms: i64,
    /// Its last claim of this task was never answered.
    pub(super) in_doubt: bool,
}

/// What tasks with the same lock key share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Rises with each claim.
    pub fence: Fence,
    /// Which task has it.
    pub holder: Option<TaskId>,
    /// When another task may take it over, in milliseconds by the database's clock.
    pub lease_until: Option<i64>,
}

impl Resource {
    /// Whether a claim of `id` may take it.
    pub(super) fn is_free_for(&self, id: &TaskId, now_ms: i64) -> bool {
        self.holder.is_none()
            || self.holder.as_ref() == Some(id)
            || self.lease_until.is_some_and(|until| until <= now_ms)
    }
}

//! Runs, and until when they may start.

use std::sync::Arc;
use std::time::Duration;

use queue_worker::domain::{Held, Task, TaskId, WorkerId};
use queue_worker::ledger::{Beat, Grant};

use super::super::link::Link;
use super::super::world::LEASE;
use super::{Active, Checker};

impl Checker {
    /// A worker learns that it has a claim, which it sent at `sent`.
    pub(crate) fn granted(&mut self, worker: WorkerId, grant: &Grant, sent: Duration) {
        let lease = (grant.held.fence, sent + LEASE);
        self.leases.insert((worker, grant.held.task_id.clone()), lease);
    }

    /// A worker learns that renewals were made, which it sent at `sent`.
    pub(crate) fn renewed(
        &mut self,
        worker: WorkerId,
        held: &[Held],
        answers: &[Beat],
        sent: Duration,
    ) {
        for (held, answer) in held.iter().zip(answers) {
            if *answer == Beat::Renewed
                && let Some((fence, until)) = self.leases.get_mut(&(worker, held.task_id.clone()))
                && *fence == held.fence
            {
                *until = (*until).max(sent + LEASE);
            }
        }
    }

    /// A worker learns that its outcome was refused: it runs the task no more.
    pub(crate) fn refused(&mut self, worker: WorkerId, id: &TaskId) {
        self.leases.remove(&(worker, id.clone()));
    }

    fn deadline(&self, worker: WorkerId, id: &TaskId) -> Option<Duration> {
        self.leases.get(&(worker, id.clone())).map(|(_, until)| *until)
    }

    /// An effect starts.
    pub(crate) fn starts(&mut self, link: &Arc<Link>, task: &Task) {
        let id = &task.id;
        if self.deadline(link.worker, id).is_none_or(|until| self.now >= until) {
            self.violate(&format!("9: the effect of {id} starts after its deadline"));
        }
        let others: Vec<String> = self
            .active
            .iter()
            .filter(|run| {
                let same = run.id == *id || (run.key.is_some() && run.key == task.lock_key);
                let valid = self.deadline(run.link.worker, &run.id).is_some_and(|d| self.now < d);
                same && valid && self.last_jump.is_none()
            })
            .map(|run| format!("{} on {}", run.id, run.link.worker))
            .collect();
        if !others.is_empty() {
            self.violate(&format!("2: {id} starts beside {others:?}"));
        }
        let key = task.lock_key.clone();
        self.active.push(Active { link: Arc::clone(link), id: id.clone(), key });
    }

    /// It has ended, or was dropped.
    pub(crate) fn ends(&mut self, worker: WorkerId, id: &TaskId) {
        if let Some(at) =
            self.active.iter().position(|run| run.link.worker == worker && run.id == *id)
        {
            self.active.remove(at);
        }
    }

    /// Whether a run of the task brings its worker down, as it does `times` times.
    pub(crate) fn crashes_now(&mut self, id: &TaskId, times: u32) -> bool {
        let so_far = self.brought_down.entry(id.clone()).or_default();
        let due = *so_far < times;
        *so_far += u32::from(due);
        due
    }

    /// A task failed by its own fault.
    pub(crate) fn fails(&mut self, id: &TaskId, for_good: bool) {
        *self.failures.entry(id.clone()).or_default() += 1;
        if for_good {
            self.failed_for_good.insert(id.clone());
        }
    }
}

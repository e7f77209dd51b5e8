//! Claims that were sent and never answered.

use std::collections::HashSet;
use std::sync::Arc;

use crate::domain::{Task, TaskId};

/// How many ids with an unanswered claim are remembered. Past it the oldest knowledge is given up:
/// those tasks wait for their lease to end, at the cost of a counted crash.
const DOUBTS: usize = 10_000;

/// Ids whose claim was sent and never answered. If it was committed all the same, the row runs under
/// our name though nobody runs it: the next claim may take it at once, and that is no crash.
#[derive(Default)]
pub(super) struct Doubts(std::sync::Mutex<HashSet<TaskId>>);

impl Doubts {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<TaskId>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Notes that a claim of these went unanswered.
    pub(super) fn remember(&self, tasks: &[Arc<Task>]) {
        let mut doubts = self.lock();
        if doubts.len() + tasks.len() > DOUBTS {
            doubts.clear();
        }
        doubts.extend(tasks.iter().map(|task| task.id.clone()));
    }

    /// Notes that a claim of these was answered.
    pub(super) fn settle(&self, tasks: &[Arc<Task>]) {
        let mut doubts = self.lock();
        if !doubts.is_empty() {
            for task in tasks {
                doubts.remove(&task.id);
            }
        }
    }

    /// Which of these ids are in doubt.
    pub(super) fn among<'a>(&self, ids: &[&'a str]) -> Vec<&'a str> {
        let doubts = self.lock();
        if doubts.is_empty() {
            return Vec::new();
        }
        ids.iter()
            .copied()
            .filter(|id| TaskId::new(id).is_ok_and(|id| doubts.contains(&id)))
            .collect()
    }
}

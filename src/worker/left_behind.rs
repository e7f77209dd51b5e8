//! Which tasks were put off until a lock ended that seemed to be a dead worker's.
//!
//! That is worth one wait: such a lock ends, and nobody renews it. A live foreign program's, short and
//! renewed often, looks the same each time, and an entry that waited for it in the pending list would
//! come round about once a second. So each entry waits once here; from then on its task waits in
//! Postgres, ever longer, and also under the entries that it comes back with from there.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::BootInstant;
use crate::domain::{EntryId, TaskId};

/// More tasks than this do not wait at a time: the rest wait in Postgres.
const MAX_TASKS: usize = 1024;

/// More entries of one task than this do not either: it was enqueued twice, or was taken for a stray.
const MAX_ENTRIES: usize = 4;

/// What is known of a task.
#[derive(Debug)]
struct Waiting {
    /// Its entries that have waited; none is to wait if there are too many.
    entries: Vec<EntryId>,
    /// One of them has met a lock again: somebody renews it.
    is_renewed: bool,
    /// When this is forgotten.
    until: BootInstant,
}

/// The tasks of one queue.
#[derive(Debug, Default)]
pub(super) struct LeftBehind(Mutex<HashMap<TaskId, Waiting>>);

impl LeftBehind {
    /// Whether the entry may wait for a lock that is about to end. What is said here is remembered for
    /// `memory`: until a sweep has brought the entry after that lock's end, and less, where sweeps are
    /// frequent, than the lease after which a worker's death brings it back, which is worth a wait
    /// again.
    pub(super) fn may_wait(
        &self,
        task: &TaskId,
        entry: EntryId,
        now: BootInstant,
        memory: Duration,
    ) -> bool {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.len() >= MAX_TASKS {
            tasks.retain(|_, waiting| now < waiting.until);
        }
        let until = now + memory;
        if let Some(waiting) = tasks.get_mut(task).filter(|waiting| now < waiting.until) {
            waiting.is_renewed |=
                waiting.entries.contains(&entry) || waiting.entries.len() >= MAX_ENTRIES;
            waiting.until = until;
            if !waiting.is_renewed {
                waiting.entries.push(entry);
            }
            return !waiting.is_renewed;
        }
        let has_room = tasks.len() < MAX_TASKS || tasks.contains_key(task);
        if has_room {
            let waiting = Waiting { entries: vec![entry], is_renewed: false, until };
            tasks.insert(task.clone(), waiting);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MEMORY: Duration = Duration::from_secs(3);

    fn task(id: &str) -> TaskId {
        TaskId::new(id).expect("a valid id")
    }

    fn entry(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    #[test]
    fn each_entry_waits_once_and_none_for_a_lock_that_is_renewed() {
        let start = BootInstant::from_boot(SECOND);
        let tasks = LeftBehind::default();
        let may =
            |ms, seconds| tasks.may_wait(&task("t"), entry(ms), start + SECOND * seconds, MEMORY);
        assert!(may(1, 0) && may(2, 1), "of a task that was enqueued twice");
        assert!(!may(1, 2), "it met a lock again");
        assert!(!may(3, 4) && !may(4, 6), "also under new entries, for as long as it asks");
        assert!(may(1, 9), "after a while without");
        assert!(tasks.may_wait(&task("u"), entry(9), start, MEMORY), "another task");
    }

    #[test]
    fn no_more_wait_than_there_is_room_for() {
        let start = BootInstant::from_boot(SECOND);
        let tasks = LeftBehind::default();
        for n in 0..MAX_TASKS {
            assert!(tasks.may_wait(&task(&n.to_string()), entry(1), start, MEMORY));
        }
        assert!(!tasks.may_wait(&task("t"), entry(1), start, MEMORY));
        assert!(tasks.may_wait(&task("t"), entry(1), start + MEMORY, MEMORY));
        let many = |ms| tasks.may_wait(&task("u"), entry(ms), start + MEMORY, MEMORY);
        assert!((1..=4).all(many) && !many(5));
    }
}

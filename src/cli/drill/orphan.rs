//! A task whose worker was killed, until it is in other hands.
//!
//! Its time counts from the last kill of a worker that had its entry, as long as each of them had it
//! for no longer than a recovery may take: a worker that sat on an entry is no excuse.

use super::recovery::{BOUND, millis};
use super::slowness::Slowness;

/// A task in the hands of a worker.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) task_id: String,
    pub(super) fence: i64,
    /// Crashes in a row before this run.
    pub(super) crashes: i32,
}

/// A task that a killed worker held.
#[derive(Debug, Clone)]
pub(super) struct Orphan {
    /// Which kill of the drill it was.
    pub(super) kill: usize,
    pub(super) held: Held,
    /// When which worker was killed that had its entry: the first ran it, the others had taken it over.
    pub(super) kills_ms: Vec<i64>,
}

/// An orphan in other hands.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) orphan: Orphan,
    pub(super) at_ms: i64,
}

impl Orphan {
    /// Its entry lies with a worker that was killed at this time. Who had it for longer than a
    /// recovery may take has not just taken it over.
    pub(super) fn had_by_one_killed(&mut self, kill_ms: i64, slowness: &Slowness) {
        let last_ms = self.killed_before(kill_ms);
        let allowed = BOUND + slowness.between(last_ms, kill_ms);
        if kill_ms > last_ms && millis(kill_ms - last_ms) <= allowed {
            self.kills_ms.push(kill_ms);
        }
    }

    /// The last kill before this time: one that came after the claim was no hindrance to it.
    pub(super) fn killed_before(&self, at_ms: i64) -> i64 {
        let before = self.kills_ms.iter().rev().find(|kill_ms| **kill_ms <= at_ms);
        before.copied().unwrap_or(self.kills_ms[0])
    }

    /// It is in other hands since this time.
    pub(super) fn recovered(self, at_ms: i64) -> Recovered {
        Recovered { orphan: self, at_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_kill_counts_unless_its_worker_had_the_entry_for_too_long() {
        let held = Held { task_id: "a".to_owned(), fence: 1, crashes: 0 };
        let mut orphan = Orphan { kill: 0, held, kills_ms: vec![1_000] };
        let slowness = Slowness::default();
        for (kill_ms, last_ms) in [(1_000, 1_000), (6_300, 6_300), (1_000, 6_300), (12_301, 6_300)]
        {
            orphan.had_by_one_killed(kill_ms, &slowness);
            assert_eq!(orphan.killed_before(20_000), last_ms, "after a kill at {kill_ms}");
        }
        assert_eq!(orphan.killed_before(6_299), 1_000, "a claim before it");
    }
}

//! What a drain is made of, and how it is fitted into what the service manager allows.
//!
//! Three parts follow each other: tasks go on (`timeout`), tasks that were asked to stop end
//! (`kill_after`), and what is left is given back (`margin`). Where a limit is shorter than their
//! sum, the first part gives way before the second and the second before the third: a task that is
//! interrupted and given back runs again at once, while one that is cut off costs a lease.

use std::time::Duration;

use super::drain::Budget;

/// The parts of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// How long running tasks may go on.
    pub timeout: Duration,
    /// How long tasks that were then asked to stop have before they are killed.
    pub kill_after: Duration,
    /// What is kept for giving back tasks and locks.
    pub margin: Duration,
}

impl Parts {
    /// From the signal until the process is gone in any case.
    pub fn total(self) -> Duration {
        self.timeout + self.kill_after + self.margin
    }

    /// The same, or what of it fits into `limit`.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        let margin = self.margin.min(limit);
        let rest = limit.saturating_sub(margin);
        let kill_after = self.kill_after.min(rest);
        let timeout = self.timeout.min(rest.saturating_sub(kill_after));
        Self { timeout, kill_after, margin }
    }

    /// The deadlines. Within the grace handlers are killed, outcomes recorded and tasks given back;
    /// [`Parts::last_words`] come after it.
    pub fn budget(self, extension: Duration) -> Budget {
        let settling = self.margin.saturating_sub(self.last_words());
        Budget { soft: self.timeout, grace: self.kill_after + settling, extension }
    }

    /// What is left of the margin after the hard deadline, for the end of the process itself.
    pub fn last_words(self) -> Duration {
        self.margin / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(timeout: u64, kill_after: u64, margin: u64) -> Parts {
        let secs = Duration::from_secs;
        Parts { timeout: secs(timeout), kill_after: secs(kill_after), margin: secs(margin) }
    }

    #[test]
    fn the_parts_give_way_in_order() {
        let whole = parts(25, 5, 4);
        for (limit, expected) in [
            (90, whole),
            (34, whole),
            (33, parts(24, 5, 4)),
            (9, parts(0, 5, 4)),
            (7, parts(0, 3, 4)),
            (4, parts(0, 0, 4)),
            (3, parts(0, 0, 3)),
            (0, parts(0, 0, 0)),
        ] {
            assert_eq!(whole.within(Duration::from_secs(limit)), expected, "{limit}");
        }
    }

    #[test]
    fn the_deadlines_and_the_last_words_are_the_whole() {
        let parts = parts(25, 5, 4);
        let budget = parts.budget(Duration::from_secs(7));
        assert_eq!(budget.soft + budget.grace + parts.last_words(), parts.total());
        assert_eq!(budget.extension, Duration::from_secs(7));
    }
}

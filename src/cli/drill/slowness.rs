//! How late the machine is: what a recovery is allowed on top of its bound.
//!
//! The drill looks around every [`LOOK_EVERY`]; by how much later a look is over than it should be
//! is what timers and servers of this machine are late by. A recovery is some such steps one after
//! the other. While no worker is up there is nobody to take over, and that time counts too.

use std::time::Duration;

use super::recovery::{LOOK_EVERY, millis};

/// The steps of a recovery that the machine may hold up: the timer of the sweep, the look into the
/// pending list, the lock, the claim.
const STEPS: u32 = 4;

/// All looks of a drill.
#[derive(Debug, Default)]
pub(super) struct Slowness {
    looks: Vec<Look>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    /// When the one before was over, and this one.
    from_ms: i64,
    until_ms: i64,
    /// No worker was up.
    is_nobody_there: bool,
}

impl Slowness {
    /// A look was over at this time of the wall clock.
    pub(super) fn looked(&mut self, now_ms: i64, is_nobody_there: bool) {
        let from_ms = self.looks.last().map_or(now_ms, |last| last.until_ms);
        self.looks.push(Look { from_ms, until_ms: now_ms, is_nobody_there });
    }

    /// What a recovery between two times of the wall clock may take longer.
    pub(super) fn between(&self, from_ms: i64, until_ms: i64) -> Duration {
        let first = self.looks.partition_point(|look| look.until_ms < from_ms);
        let looks = self.looks[first..].iter().take_while(|look| look.from_ms <= until_ms);
        let (mut late, mut alone) = (Duration::ZERO, Duration::ZERO);
        for look in looks {
            let took = millis(look.until_ms - look.from_ms);
            late = late.max(took.saturating_sub(LOOK_EVERY));
            if look.is_nobody_there {
                alone += took;
            }
        }
        late * STEPS + alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_look_counts_for_each_step_and_all_the_time_without_a_worker() {
        let mut slowness = Slowness::default();
        for (at, nobody) in [(0, false), (50, false), (120, false), (170, true), (220, true)] {
            slowness.looked(at, nobody);
        }
        let between = |from, until| slowness.between(from, until).as_millis();
        assert_eq!(between(10, 40), 0);
        assert_eq!(between(10, 110), 80, "one was 20 ms late");
        assert_eq!(between(10, 500), 180, "and nobody was there for 100 ms");
        assert_eq!(between(300, 500), 0);
    }
}

//! What a recovery is allowed on top of its bound, and when none can be judged.
//!
//! The drill looks around every [`LOOK_EVERY`], and commits something each time; by how much later a
//! look is over than it should be is what timers, servers and disks of this machine are late by. A
//! recovery is some such steps one after the other, and a connection that the drill cut costs a worker
//! a sweep. Both together are never more than [`MOST`], so that they cannot excuse a second lease, and
//! looks that came later than any recovery may are no excuse for it. While no worker is up there is
//! nobody to take over, and that time counts too. Looks during an outage tell nothing of the machine.

use std::time::Duration;

use super::ground::{SWEEP, TTL};
use super::recovery::{BOUND, LOOK_EVERY, millis};

/// The steps of a recovery that the machine may hold up: the timer of the sweep, the look into the
/// pending list, the lock, the claim.
const STEPS: u32 = 4;
/// The most that lateness and cuts allow together: half a lease.
const MOST: Duration = Duration::from_millis(TTL.as_secs() * 500);
/// After a store has come back, clients need this long to notice.
const SETTLING_MS: i64 = 2_000;

/// All looks, cuts and outages of a drill, in milliseconds of wall clock.
#[derive(Debug, Default)]
pub(super) struct Slowness {
    looks: Vec<Look>,
    /// When connections of the workers were cut.
    cuts_ms: Vec<i64>,
    /// When nobody could have taken over; those that last have no end yet.
    outages: Vec<(i64, i64)>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    /// When the one before was over, and this one.
    from_ms: i64,
    until_ms: i64,
    /// No worker was up.
    is_nobody_there: bool,
}

/// An outage that lasts.
#[derive(Debug)]
#[must_use = "it has to end"]
pub(super) struct Outage(usize);

impl Slowness {
    /// A look was over at this time.
    pub(super) fn looked(&mut self, now_ms: i64, is_nobody_there: bool) {
        let from_ms = self.looks.last().map_or(now_ms, |last| last.until_ms);
        self.looks.push(Look { from_ms, until_ms: now_ms, is_nobody_there });
    }

    /// Connections of the workers are cut at this time.
    pub(super) fn cut(&mut self, now_ms: i64) {
        self.cuts_ms.push(now_ms);
    }

    /// From now on a store is away, or a worker frozen.
    pub(super) fn outage_begins(&mut self, now_ms: i64) -> Outage {
        self.outages.push((now_ms, i64::MAX));
        Outage(self.outages.len() - 1)
    }

    /// It is there again.
    pub(super) fn outage_ends(&mut self, outage: &Outage, now_ms: i64) {
        self.outages[outage.0].1 = now_ms + SETTLING_MS;
    }

    /// Whether a store was away, or a worker frozen, at any time between these two.
    pub(super) fn is_outage(&self, from_ms: i64, until_ms: i64) -> bool {
        self.outages.iter().any(|(from, until)| *from <= until_ms && *until >= from_ms)
    }

    /// What a recovery between two times may take longer than [`BOUND`].
    pub(super) fn between(&self, from_ms: i64, until_ms: i64) -> Duration {
        let first = self.looks.partition_point(|look| look.until_ms < from_ms);
        let (mut late, mut alone) = (Duration::ZERO, Duration::ZERO);
        let end = |alone| until_ms.min(from_ms + whole_ms(BOUND + MOST + alone));
        for look in &self.looks[first..] {
            if look.from_ms > end(alone) {
                break;
            }
            if self.is_outage(look.from_ms, look.until_ms) {
                continue;
            }
            let took = millis(look.until_ms - look.from_ms);
            late = late.max(took.saturating_sub(LOOK_EVERY));
            if look.is_nobody_there {
                alone += took;
            }
        }
        let recovery = from_ms..=end(alone);
        let cuts = self.cuts_ms.iter().filter(|cut_ms| recovery.contains(cut_ms)).count();
        let sweeps = SWEEP * u32::try_from(cuts).unwrap_or(u32::MAX);
        MOST.min(late * STEPS + sweeps) + alone
    }
}

/// Whole milliseconds, for times of the wall clock.
pub(super) fn whole_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks in time until then, but for the one that is over at `at` and was `late`.
    fn looks(until_ms: i64, at: i64, late: i64) -> Slowness {
        let mut slowness = Slowness::default();
        for now in (0..=until_ms).step_by(50).filter(|now| *now <= at - 50 - late || *now >= at) {
            slowness.looked(now, false);
        }
        slowness
    }

    fn between(slowness: &Slowness, from_ms: i64, until_ms: i64) -> u128 {
        slowness.between(from_ms, until_ms).as_millis()
    }

    #[test]
    fn the_latest_look_counts_for_each_step_and_all_the_time_without_a_worker() {
        let mut slowness = Slowness::default();
        for (at, nobody) in [(0, false), (50, false), (120, false), (170, true), (220, true)] {
            slowness.looked(at, nobody);
        }
        assert_eq!(between(&slowness, 10, 40), 0);
        assert_eq!(between(&slowness, 10, 110), 80, "one was 20 ms late");
        assert_eq!(between(&slowness, 10, 500), 180, "and nobody was there for 100 ms");
        assert_eq!(between(&slowness, 300, 500), 0);
    }

    #[test]
    fn no_lateness_and_no_cuts_excuse_more_than_half_a_lease() {
        assert_eq!(between(&looks(12_000, 4_000, 600), 1_000, 9_000), 2_400);
        assert_eq!(between(&looks(12_000, 4_000, 1_000), 1_000, 11_000), 2_500);
        let mut slowness = looks(12_000, 4_000, 600);
        slowness.cut(4_000);
        assert_eq!(between(&slowness, 1_000, 11_000), 2_500);
    }

    #[test]
    fn looks_after_a_recovery_had_to_be_over_are_no_excuse() {
        assert_eq!(between(&looks(12_000, 9_650, 100), 1_000, 12_000), 400, "begun by 9.5 s");
        for late in [100, 1_000] {
            let slowness = looks(14_000, 9_600 + 50 + late, late);
            assert_eq!(between(&slowness, 1_000, 14_000), 0, "{late} ms late after 9.5 s");
        }
        // Without a worker for a second, it may take that much longer.
        let mut slowness = Slowness::default();
        for now in (0..12_000).step_by(50).filter(|now| *now != 10_100) {
            slowness.looked(now, (2_000..3_000).contains(&now));
        }
        assert_eq!(between(&slowness, 1_000, 12_000), 1_200, "50 ms late begun by 10.5 s");
    }

    #[test]
    fn looks_during_an_outage_are_left_out() {
        let mut slowness = looks(14_000, 8_000, 500);
        assert_eq!(between(&slowness, 1_000, 9_000), 2_000);
        let outage = slowness.outage_begins(7_500);
        assert_eq!(between(&slowness, 1_000, 9_000), 0, "one that lasts");
        slowness.outage_ends(&outage, 7_600);
        assert_eq!(between(&slowness, 1_000, 9_000), 0, "one that is over");
        let is_outage = |from, until| slowness.is_outage(from, until);
        assert!(is_outage(1_000, 7_500) && is_outage(9_600, 10_000), "until all have settled");
        assert!(!is_outage(1_000, 7_499) && !is_outage(9_601, 10_000));
    }

    #[test]
    fn each_cut_during_a_recovery_costs_a_sweep() {
        let mut slowness = looks(12_000, 4_000, 0);
        for cut_ms in [900, 2_000, 6_000, 9_501] {
            slowness.cut(cut_ms);
        }
        assert_eq!(between(&slowness, 1_000, 1_999), 0);
        assert_eq!(between(&slowness, 1_000, 5_000), 500);
        assert_eq!(between(&slowness, 1_000, 6_500), 1_000);
        assert_eq!(between(&slowness, 1_000, 12_000), 1_000, "the last came too late");
    }
}

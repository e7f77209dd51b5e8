//! The clocks: this machine's against those of the stores.
//!
//! Leases follow Postgres' clock and this machine's time since boot, so a clock that is wrong endangers
//! no task. It makes times in logs, metrics and `not_before` lie.

use super::finding::Findings;
use super::one;
use crate::supervisor::unit::{UnitError, clock_is_synchronized};

/// A difference that nobody notices, in milliseconds.
const SMALL_MS: i64 = 1_000;

/// Another clock, read between two looks at our own; all in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) before: i64,
    pub(super) theirs: i64,
    pub(super) after: i64,
}

impl Reading {
    /// How far theirs is ahead of ours at least; zero if it may be right.
    fn ahead(self) -> i64 {
        if self.theirs > self.after {
            self.theirs - self.after
        } else if self.theirs < self.before {
            self.theirs - self.before
        } else {
            0
        }
    }
}

/// Whether this machine's clock is kept in step.
pub(super) async fn synchronized() -> Result<bool, UnitError> {
    clock_is_synchronized().await
}

/// Stores that were not asked are left out.
pub(super) fn judge(
    synchronized: Result<bool, UnitError>,
    readings: &[(&str, Option<Reading>)],
) -> Vec<Findings> {
    const NTP: &str = "clock.synchronized";
    const SKEW: &str = "clock.skew";
    let mut findings = Findings::about("clock");
    match synchronized {
        Ok(true) => findings.ok(NTP, "this machine's clock is synchronized"),
        Ok(false) => findings.warning(
            NTP,
            "this machine's clock is not synchronized",
            "it drifts: times in logs and metrics lie, and those of two machines do not compare",
            "enable systemd-timesyncd or chrony; in a container, on its host",
        ),
        Err(error) => findings.note(
            NTP,
            error.to_string(),
            "whether this machine's clock is synchronized is unknown",
            "see timedatectl",
        ),
    }
    for (store, reading) in readings {
        let Some(reading) = reading else { continue };
        let ahead = reading.ahead();
        if ahead.abs() <= SMALL_MS {
            findings.ok(SKEW, format!("{store} has the same time"));
            continue;
        }
        let way = if ahead > 0 { "ahead of" } else { "behind" };
        let seconds = ahead.unsigned_abs() / 1_000;
        findings.warning(
            SKEW,
            format!("{store} is {seconds} s {way} this machine"),
            "not_before and delays follow Postgres' clock, the age of entries Redis', logs this \
             machine's: tasks seem to run too early or too late",
            "synchronize the clocks of both machines",
        );
    }
    one(findings)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn skew(theirs: i64) -> Option<Level> {
        let reading = Reading { before: 10_000, theirs, after: 10_400 };
        let parts = judge(Ok(true), &[("redis", Some(reading)), ("postgres", None)]);
        parts[0].level("clock.skew")
    }

    #[test]
    fn a_difference_counts_only_beyond_the_round_trip() {
        for theirs in [9_000, 10_000, 10_200, 10_400, 11_400] {
            assert_eq!(skew(theirs), Some(Level::Ok), "{theirs}");
        }
        for theirs in [0, 8_999, 11_401, 100_000] {
            assert_eq!(skew(theirs), Some(Level::Warning), "{theirs}");
        }
    }

    #[test]
    fn a_clock_that_nobody_keeps_is_a_warning_and_an_unknown_one_a_note() {
        let level = |answer| judge(answer, &[])[0].level("clock.synchronized");
        assert_eq!(level(Ok(true)), Some(Level::Ok));
        assert_eq!(level(Ok(false)), Some(Level::Warning));
        assert_eq!(level(Err(UnitError::Silent)), Some(Level::Note));
    }
}

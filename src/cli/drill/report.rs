//! The table at the end, and which promises broke.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::ground::DRAIN_BUDGET;
use super::recovery::BOUND;
use crate::cli::table::{Side, Table};

/// What was found. Times are in seconds.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) workers: u32,
    pub(super) seconds: f64,
    pub(super) enqueued: u32,
    pub(super) succeeded: u32,
    pub(super) failed: u32,
    pub(super) planned_failures: u32,
    pub(super) dead: u32,
    pub(super) lost: u32,
    pub(super) duplicate_effects: u32,
    pub(super) effects_amiss: u32,
    pub(super) fence_inversions: i64,
    pub(super) wrong_ends: u32,
    pub(super) wrong_attempts: u32,
    pub(super) zombie_locks: u64,
    pub(super) external_reruns: u32,
    pub(super) stale_refused_by_receiver: u32,
    pub(super) stale_refused_by_ledger: u32,
    pub(super) stream_length: u64,
    pub(super) pending: u64,
    pub(super) consumers: u64,
    pub(super) process_kills: u32,
    pub(super) kills_with_tasks: usize,
    pub(super) kills_left_out: usize,
    pub(super) recoveries: usize,
    pub(super) recovery_p50: Option<f64>,
    pub(super) recovery_p99: Option<f64>,
    pub(super) recovery_max: Option<f64>,
    /// What lateness of the machine, cut connections and the lack of a worker allowed on top of the
    /// bound, at most.
    pub(super) recovery_slowness_max: f64,
    /// Recoveries that count from the kill of a second worker, which had just taken over.
    pub(super) recoveries_killed_twice: usize,
    pub(super) recoveries_late: Vec<String>,
    pub(super) suspects: usize,
    pub(super) suspect_wait_max: Option<f64>,
    pub(super) drains: usize,
    pub(super) drain_max: Option<f64>,
    pub(super) faults: BTreeMap<&'static str, u32>,
    pub(super) spared: u32,
    pub(super) missed: u32,
    pub(super) worker_panics: u32,
    pub(super) bad_ends: Vec<String>,
    pub(super) breaches: Vec<String>,
}

impl Report {
    /// Fills in which promises broke.
    pub(super) fn judge(&mut self, kills_asked_for: bool) {
        let zero = [
            ("lost", i64::from(self.lost)),
            ("duplicate_effects", i64::from(self.duplicate_effects)),
            ("dead", i64::from(self.dead)),
            ("effects_amiss", i64::from(self.effects_amiss)),
            ("fence_inversions", self.fence_inversions),
            ("wrong_ends", i64::from(self.wrong_ends)),
            ("wrong_attempts", i64::from(self.wrong_attempts)),
            ("zombie_locks", self.zombie_locks.cast_signed()),
            ("stream_length", self.stream_length.cast_signed()),
            ("pending", self.pending.cast_signed()),
            ("worker_panics", i64::from(self.worker_panics)),
        ];
        let broken = zero.iter().filter(|(_, count)| *count != 0);
        self.breaches = broken.map(|(name, count)| format!("{name} is {count}, not 0")).collect();
        self.breaches.extend(self.bad_ends.iter().cloned());
        let late = |name: &str, seconds: Option<f64>, bound: f64| {
            let seconds = seconds.filter(|seconds| *seconds > bound)?;
            Some(format!("{name} is {seconds:.2} s, over {bound} s"))
        };
        let late_recovery = |task| format!("late recovery: {task}");
        self.breaches.extend(self.recoveries_late.iter().map(late_recovery));
        self.breaches.extend(late("drain_max", self.drain_max, DRAIN_BUDGET.as_secs_f64()));
        if kills_asked_for && self.process_kills == 0 {
            self.breaches.push("no worker was killed, though kills were asked for".to_owned());
        }
    }

    /// Whether every promise was kept.
    pub(super) fn kept(&self) -> bool {
        self.breaches.is_empty()
    }

    /// The table for people.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut table =
            Table::new(&[("WHAT", Side::Left), ("FOUND", Side::Right), ("NOTE", Side::Left)]);
        let mut row = |what: &str, found: String, note: &str| {
            table.row([what.to_owned(), found, note.to_owned()]);
        };
        row("enqueued", self.enqueued.to_string(), &format!("seed {}", self.seed));
        row("succeeded", self.succeeded.to_string(), "");
        row("failed", self.failed.to_string(), &format!("{} were planned", self.planned_failures));
        row("dead", self.dead.to_string(), "must be 0");
        row("lost", self.lost.to_string(), "must be 0");
        row("duplicate effects", self.duplicate_effects.to_string(), "in the database: must be 0");
        row("effects amiss", self.effects_amiss.to_string(), "missing or unearned: must be 0");
        row("fence inversions", self.fence_inversions.to_string(), "on resources: must be 0");
        row("wrong ends", self.wrong_ends.to_string(), "not as planned: must be 0");
        row("wrong attempts", self.wrong_attempts.to_string(), "burnt by faults: must be 0");
        row("zombie locks", self.zombie_locks.to_string(), "must be 0");
        let left = format!("{} / {}", self.stream_length, self.pending);
        row("stream / pending", left, "must be 0");
        row("consumers", self.consumers.to_string(), "of killed workers, until they are reaped");
        row("external reruns", self.external_reruns.to_string(), "at-least-once, as promised");
        row(
            "stale, by receiver",
            self.stale_refused_by_receiver.to_string(),
            "older fences refused",
        );
        row("stale, by ledger", self.stale_refused_by_ledger.to_string(), "older fences refused");
        row("worker kills", self.process_kills.to_string(), "");
        let note = format!(
            "{} recoveries; {} of {} kills left out: a store away or a worker frozen",
            self.recoveries, self.kills_left_out, self.kills_with_tasks
        );
        let times = [self.recovery_p50, self.recovery_p99, self.recovery_max].map(seconds);
        row("recovery p50 / p99 / max", times.join(" / "), &note);
        let note = format!(
            "over {} s and the machine's slowness, up to {:.2} s: must be 0",
            BOUND.as_secs(),
            self.recovery_slowness_max
        );
        row("late recoveries", self.recoveries_late.len().to_string(), &note);
        let note = "counted from the kill of a worker that had just taken over";
        row("killed twice", self.recoveries_killed_twice.to_string(), note);
        let note = format!("{} that had crashed before and waited to run alone", self.suspects);
        row("suspects' wait max", seconds(self.suspect_wait_max), &note);
        let note = format!("{} drains, at most {} s each", self.drains, DRAIN_BUDGET.as_secs());
        row("drain max", seconds(self.drain_max), &note);
        for (fault, count) in &self.faults {
            row(fault, count.to_string(), "");
        }
        row("spared", self.spared.to_string(), "workers with a task one crash from dead");
        row("missed", self.missed.to_string(), "faults that found nobody to hit");
        table.write(out)?;
        writeln!(out)?;
        if self.kept() {
            return writeln!(out, "All promises kept.");
        }
        writeln!(out, "PROMISES BROKE:")?;
        self.breaches.iter().try_for_each(|breach| writeln!(out, "  {breach}"))
    }
}

fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.2}"))
}

/// The value below which `share` (0 to 1) of the sorted values lie; nearest rank.
pub(super) fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rank within a list of at most some ten thousand"
    )]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&sorted, 0.5), Some(100.0));
        assert_eq!(percentile(&sorted, 0.99), Some(198.0));
        assert_eq!(percentile(&sorted[..1], 0.99), Some(1.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn each_breach_is_named() {
        let recoveries_late = vec!["t after 10.04 s, over 6.10 s".to_owned()];
        let (recovery_p99, recovery_max) = (Some(6.1), Some(10.04));
        let mut report = Report {
            lost: 1,
            drain_max: Some(9.0),
            recovery_p99,
            recovery_max,
            recoveries_late,
            ..Report::default()
        };
        report.judge(true);
        assert_eq!(report.breaches.len(), 4, "{:?}", report.breaches);
        let late = "late recovery: t after 10.04 s, over 6.10 s";
        assert!(report.breaches.iter().any(|breach| breach == late));
        assert!(report.breaches.iter().any(|breach| breach == "lost is 1, not 0"));
        let mut report = Report { process_kills: 1, ..Report::default() };
        report.judge(true);
        assert!(report.kept(), "{:?}", report.breaches);
    }
}

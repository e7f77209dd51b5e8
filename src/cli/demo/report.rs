//! The table at the end, and whether the promises were kept.

use serde::Serialize;

/// The lock's time to live in the demo, in seconds: the default.
pub(super) const TTL_SECONDS: f64 = 5.0;

/// What was counted.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) enqueued: u32,
    pub(super) succeeded: i64,
    pub(super) failed: i64,
    pub(super) planned_failures: i64,
    pub(super) dead: i64,
    pub(super) effects_in_database: i64,
    pub(super) lost: i64,
    pub(super) duplicated: i64,
    pub(super) killed_in_mid_task: usize,
    pub(super) external_reruns: i64,
    pub(super) zombie_locks: i64,
    pub(super) seconds_to_recover: f64,
    pub(super) seconds_to_drain: f64,
    /// Null where there is no git.
    pub(super) history: Option<History>,
}

/// What became of a git history.
#[derive(Debug, Serialize)]
pub(super) struct History {
    pub(super) commits: u64,
    pub(super) analysed: u64,
    /// Under a name, such as those where a shallow clone ends.
    pub(super) refused: u64,
    pub(super) seconds: f64,
}

impl Report {
    /// Whether every promise was kept.
    pub(super) fn kept(&self) -> bool {
        self.lost == 0
            && self.duplicated == 0
            && self.dead == 0
            && self.failed == self.planned_failures
            && self.effects_in_database == i64::from(self.enqueued.div_ceil(2))
            && self.zombie_locks == 0
            && self.killed_in_mid_task > 0
            && self.seconds_to_recover <= TTL_SECONDS + 1.0
            && self.history.as_ref().is_none_or(|it| it.analysed + it.refused == it.commits)
    }

    pub(super) fn print(&self) {
        let rows = [
            ("enqueued", self.enqueued.to_string(), ""),
            ("succeeded", self.succeeded.to_string(), ""),
            ("failed", self.failed.to_string(), "programs that fail for good, as planned"),
            ("effects found in the database", self.effects_in_database.to_string(), ""),
            ("lost", self.lost.to_string(), "must be 0"),
            ("duplicated in the database", self.duplicated.to_string(), "must be 0"),
            ("cut off by the SIGKILL", self.killed_in_mid_task.to_string(), "tasks in mid-run"),
            (
                "external reruns",
                self.external_reruns.to_string(),
                "programs started again, after the crash only",
            ),
            ("zombie locks left", self.zombie_locks.to_string(), "must be 0"),
            (
                "seconds to recover",
                format!("{:.2}", self.seconds_to_recover),
                "after the SIGKILL; at most TTL + 1 s = 6",
            ),
            ("seconds to drain", format!("{:.2}", self.seconds_to_drain), "after the SIGTERM"),
        ];
        println!();
        for (name, value, note) in rows {
            println!("  {name:<30} {value:>8}   {note}");
        }
        if let Some(history) = &self.history {
            let note = format!(
                "of {} commits, {} refused; {:.1} s",
                history.commits, history.refused, history.seconds
            );
            println!("  {:<30} {:>8}   {note}", "commits analysed", history.analysed);
        }
        println!();
        if self.kept() {
            println!("  All promises kept.");
        } else {
            println!("  A PROMISE BROKE. Please report this table.");
        }
    }
}

//! What the worker counts, for whoever asks.
//!
//! Each queue and kind has its handles, made at the first task: a count is a look into one map and
//! an atomic addition. Kinds come from users, so only those with a handler here become a label, and
//! no more than [`MOST_KINDS`] of them. Counting never fails and never waits for I/O.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, Registry};

use crate::domain::{EntryId, Kind, QueueName, Verdict};
use crate::ledger::DelayReason;
use crate::telemetry::metrics::{self, OTHER};

/// No more kinds than these have series of their own in a queue; a histogram has 17 each.
pub const MOST_KINDS: usize = 200;

/// The counters and histograms of a worker.
#[derive(Debug)]
pub struct Counts {
    registry: Registry,
    tasks: IntCounterVec,
    delays: IntCounterVec,
    letters: IntCounterVec,
    takeovers: IntCounterVec,
    run: HistogramVec,
    wait: HistogramVec,
    reclaimed: IntCounterVec,
    verdicts: Arc<AtomicU64>,
    /// Rows put back into the stream, of all queues.
    pub promoted: IntCounter,
}

impl Counts {
    /// Nothing counted yet.
    pub fn new() -> Arc<Self> {
        let registry = Registry::new();
        Arc::new(Self {
            tasks: metrics::TASKS.counter(&registry),
            delays: metrics::DELAYS.counter(&registry),
            letters: metrics::DEAD_LETTERS.counter(&registry),
            takeovers: metrics::TAKEOVERS.counter(&registry),
            run: metrics::RUN_SECONDS.histogram(&registry),
            wait: metrics::WAIT_SECONDS.histogram(&registry),
            reclaimed: metrics::RECLAIMED.counter(&registry),
            verdicts: Arc::default(),
            promoted: metrics::PROMOTED.counter(&registry).with_label_values::<&str>(&[]),
            registry,
        })
    }

    /// How many runs have ended with a verdict that was committed; what was given back has none.
    pub fn verdicts(&self) -> u64 {
        self.verdicts.load(Ordering::Relaxed)
    }

    /// Where all of them are registered, for the page.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What is counted of a queue.
    pub fn queue(self: &Arc<Self>, queue: &QueueName) -> QueueCounts {
        let name = queue.as_str();
        let delay = |reason| self.delays.with_label_values(&[name, reason]);
        let letter = |reason| self.letters.with_label_values(&[name, reason]);
        QueueCounts {
            waited: self.wait.with_label_values(&[name]),
            reclaimed: self.reclaimed.with_label_values(&[name]),
            not_before: delay("not_before"),
            unknown_kind: delay("unknown_kind"),
            contended: delay("contended"),
            suspect: delay("suspect"),
            letters: LETTERS.map(|reason| (reason, letter(reason))),
            kinds: RwLock::default(),
            other: self.kind(queue, OTHER),
            counts: Arc::clone(self),
            queue: queue.clone(),
        }
    }

    fn kind(&self, queue: &QueueName, kind: &str) -> Arc<KindCounts> {
        let name = queue.as_str();
        let outcome = |outcome| self.tasks.with_label_values(&[name, kind, outcome]);
        Arc::new(KindCounts {
            succeeded: outcome("succeeded"),
            retried: outcome("retried"),
            failed: outcome("failed"),
            dead: outcome("dead"),
            refused: outcome("refused"),
            delayed: outcome("delayed"),
            released: outcome("released"),
            stale: outcome("stale"),
            duplicate: outcome("duplicate"),
            takeovers: self.takeovers.with_label_values(&[name, kind]),
            ran: self.run.with_label_values(&[kind]),
            verdicts: Arc::clone(&self.verdicts),
        })
    }
}

/// The reasons of dead letters.
const LETTERS: [&str; 6] =
    ["malformed", "oversized", "refused", "failed", "crashed", "unknown_kind"];

/// What is counted of one queue.
#[derive(Debug)]
pub struct QueueCounts {
    counts: Arc<Counts>,
    queue: QueueName,
    waited: Histogram,
    /// Entries taken over from the pending list.
    pub reclaimed: IntCounter,
    not_before: IntCounter,
    unknown_kind: IntCounter,
    contended: IntCounter,
    suspect: IntCounter,
    letters: [(&'static str, IntCounter); LETTERS.len()],
    kinds: RwLock<HashMap<Kind, Arc<KindCounts>>>,
    other: Arc<KindCounts>,
}

impl QueueCounts {
    /// The counts of a kind; those of `other` unless it `is_known` and not one too many.
    pub fn kind(&self, kind: &Kind, is_known: impl FnOnce() -> bool) -> Arc<KindCounts> {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counts) = kinds.get(kind) {
            return Arc::clone(counts);
        }
        let is_full = kinds.len() >= MOST_KINDS;
        drop(kinds);
        if is_full || !is_known() {
            return Arc::clone(&self.other);
        }
        let mut kinds = self.kinds.write().unwrap_or_else(PoisonError::into_inner);
        let made = || self.counts.kind(&self.queue, kind.as_str());
        Arc::clone(kinds.entry(kind.clone()).or_insert_with(made))
    }

    /// The task of an entry was claimed at `wall_ms`.
    pub fn waited(&self, entry: EntryId, wall_ms: i64) {
        let waited = u64::try_from(wall_ms).unwrap_or(0).saturating_sub(entry.ms);
        self.waited.observe(Duration::from_millis(waited).as_secs_f64());
    }

    /// A task was put off.
    pub fn delayed(&self, reason: DelayReason) {
        match reason {
            DelayReason::NotBefore => self.not_before.inc(),
            DelayReason::UnknownKind { .. } => self.unknown_kind.inc(),
            DelayReason::Contended => self.contended.inc(),
            DelayReason::Suspect => self.suspect.inc(),
        }
    }

    /// An entry that can never run went to the dead letters.
    pub fn refused(&self, reason: &str) {
        self.other.refused.inc();
        self.dead_letter(reason);
    }

    /// A dead letter was written.
    pub fn dead_letter(&self, reason: &str) {
        if let Some((_, letters)) = self.letters.iter().find(|(known, _)| *known == reason) {
            letters.inc();
        }
    }

    /// A verdict was committed.
    pub fn verdict(&self, kind: &KindCounts, verdict: &Verdict) {
        match verdict {
            Verdict::Succeeded { .. } => kind.succeeded(),
            Verdict::Retry { .. } => {
                kind.retried.inc();
                kind.judged();
            }
            Verdict::Postponed { .. } => kind.delayed.inc(),
            Verdict::Failed { .. } => {
                kind.failed.inc();
                kind.judged();
                self.dead_letter("failed");
            }
            Verdict::Released => kind.released.inc(),
        }
    }
}

/// What is counted of one kind in one queue.
#[derive(Debug)]
pub struct KindCounts {
    succeeded: IntCounter,
    retried: IntCounter,
    failed: IntCounter,
    /// Given up without a verdict.
    pub dead: IntCounter,
    refused: IntCounter,
    /// Put off: without having run, or because something else was in the way.
    pub delayed: IntCounter,
    released: IntCounter,
    /// Outcomes that the fence refused.
    pub stale: IntCounter,
    /// Entries of tasks that were finished or delayed already.
    pub duplicate: IntCounter,
    /// Claims of tasks that had crashed a worker.
    pub takeovers: IntCounter,
    ran: Histogram,
    verdicts: Arc<AtomicU64>,
}

impl KindCounts {
    /// Effect and success were committed.
    pub fn succeeded(&self) {
        self.succeeded.inc();
        self.judged();
    }

    fn judged(&self) {
        self.verdicts.fetch_add(1, Ordering::Relaxed);
    }

    /// A handler has ended after this long.
    pub fn ran(&self, duration: Duration) {
        self.ran.observe(duration.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str) -> Kind {
        Kind::new(name).expect("a valid kind")
    }

    fn queue() -> QueueCounts {
        Counts::new().queue(&QueueName::new("q").expect("a valid name"))
    }

    #[test]
    fn kinds_without_a_handler_are_other() {
        let queue = queue();
        queue.kind(&kind("known"), || true).succeeded();
        queue.kind(&kind("forged"), || false).succeeded();
        queue.kind(&kind("forged again"), || false).succeeded();
        assert_eq!(queue.kind(&kind("known"), || false).succeeded.get(), 1);
        assert_eq!(queue.other.succeeded.get(), 2);
    }

    #[test]
    fn the_kinds_are_bounded() {
        let queue = queue();
        for n in 0..MOST_KINDS {
            queue.kind(&kind(&format!("k{n}")), || true).succeeded();
        }
        queue.kind(&kind("one too many"), || true).succeeded();
        assert_eq!(queue.other.succeeded.get(), 1);
        assert_eq!(queue.kind(&kind("k0"), || true).succeeded.get(), 1);
    }

    #[test]
    fn an_entry_from_the_future_has_not_waited() {
        let queue = queue();
        queue.waited(EntryId { ms: 5_000, seq: 0 }, 2_000);
        queue.waited(EntryId { ms: 5_000, seq: 0 }, 7_000);
        assert_eq!(queue.waited.get_sample_count(), 2);
        assert!((queue.waited.get_sample_sum() - 2.0).abs() < 1e-9);
    }
}

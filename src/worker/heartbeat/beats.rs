//! The register of what runs, and the guard of each run in it.
//!
//! A run stands in it until its [`Guard`] ends. Locks and entries are renewed beat by beat, and a run
//! that ends waits for the beat under way: one that came after its lock was deleted would set it again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::super::progress::Progress;
use super::super::watched::Watched;
use crate::clock::{BootInstant, Clock};
use crate::domain::{EntryId, Held, QueueName};
use crate::lease::Lock;
use crate::protocol::lease_clock::LeaseClock;

/// What is registered for one run.
#[derive(Debug, Clone)]
pub struct Alive {
    /// The claim.
    pub held: Held,
    /// The lock in Redis.
    pub lock: Lock,
    /// The entry in the stream.
    pub entry: (QueueName, EntryId),
    /// Until when it is ours for sure.
    pub lease: LeaseClock,
}

#[derive(Debug)]
struct Run {
    alive: Alive,
    since: BootInstant,
    lost: CancellationToken,
}

/// The register of what runs, shared by the executor and the loop.
#[derive(Debug)]
pub struct Beats {
    pub(super) clock: Clock,
    runs: Mutex<BTreeMap<u64, Run>>,
    next: AtomicU64,
    /// Odd while locks and entries are being renewed.
    beating: Watched<u64>,
    pub(super) progress: Progress,
    leases_lost: AtomicU64,
}

impl Beats {
    /// An empty register.
    pub fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            runs: Mutex::default(),
            next: AtomicU64::new(0),
            beating: Watched::new(0),
            progress: Progress::new(clock),
            leases_lost: AtomicU64::new(0),
        })
    }

    fn runs(&self) -> MutexGuard<'_, BTreeMap<u64, Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a run alive until the guard ends.
    pub fn register(self: &Arc<Self>, alive: Alive) -> Guard {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let lost = CancellationToken::new();
        self.runs().insert(id, Run { alive, since: self.clock.now(), lost: lost.clone() });
        Guard { beats: Arc::clone(self), id, lost }
    }

    /// How many runs are kept alive, and the age of the oldest.
    pub fn census(&self) -> (usize, Option<Duration>) {
        let runs = self.runs();
        let oldest = runs.values().map(|run| run.since).min();
        (runs.len(), oldest.map(|since| self.clock.now().saturating_since(since)))
    }

    /// How long ago the loop last came round.
    pub fn silence(&self) -> Duration {
        self.progress.silence()
    }

    /// How many runs were cancelled since their lease was lost or ran out unconfirmed.
    pub fn leases_lost(&self) -> u64 {
        self.leases_lost.load(Ordering::Relaxed)
    }

    /// All runs, as `look` sees them, under their numbers.
    pub(super) fn each<T>(&self, look: impl Fn(&Alive) -> T) -> Vec<(u64, T)> {
        self.runs().iter().map(|(id, run)| (*id, look(&run.alive))).collect()
    }

    /// A beat of locks and entries begins; it is over when this is dropped.
    pub(super) fn begin_beat(&self) -> UnderWay<'_> {
        self.beating.update(|beat| *beat += 1);
        UnderWay(self)
    }

    /// A renewal of the run's lease that was sent at `sent` is confirmed.
    pub(super) fn confirm(&self, id: u64, sent: BootInstant) {
        if let Some(run) = self.runs().get_mut(&id) {
            run.alive.lease.confirm(sent);
        }
    }

    /// Cancels the runs whose local deadline has passed.
    pub(super) fn expire(&self) {
        let now = self.clock.now();
        for run in self.runs().values() {
            if !run.alive.lease.may_start(now) && !run.lost.is_cancelled() {
                tracing::warn!(
                    TASK_ID = %run.alive.held.task_id,
                    FENCE = run.alive.held.fence.0,
                    "lease ran out unconfirmed; the run is cancelled"
                );
                run.lost.cancel();
                self.leases_lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Cancels a run that is no longer ours.
    pub(super) fn lose(&self, id: u64, why: &str) {
        if let Some(run) = self.runs().get(&id)
            && !run.lost.is_cancelled()
        {
            tracing::warn!(
                TASK_ID = %run.alive.held.task_id,
                FENCE = run.alive.held.fence.0,
                "{why}; the run is cancelled"
            );
            run.lost.cancel();
            self.leases_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A beat that is under way. It ends even if it panics: nobody may wait for it for ever.
pub(super) struct UnderWay<'a>(&'a Beats);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.beating.update(|beat| *beat += 1);
    }
}

/// Keeps one run alive until it is ended or dropped.
#[derive(Debug)]
pub struct Guard {
    beats: Arc<Beats>,
    id: u64,
    lost: CancellationToken,
}

impl Guard {
    /// Fires when the run is no longer ours.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Whether an effect may start now.
    pub fn may_start(&self) -> bool {
        !self.lost.is_cancelled()
            && self
                .beats
                .runs()
                .get(&self.id)
                .is_some_and(|run| run.alive.lease.may_start(self.beats.clock.now()))
    }

    /// Ends the beats of this run, and waits for the one under way: a beat that came after the lock
    /// was deleted would set it again.
    pub async fn end(self) {
        self.beats.runs().remove(&self.id);
        let current = self.beats.beating.get();
        if current % 2 == 1 {
            self.beats.beating.wait_for(|beat| *beat != current).await;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.beats.runs().remove(&self.id);
    }
}

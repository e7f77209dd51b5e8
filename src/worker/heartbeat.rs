//! Keeps alive what runs: the lease in Postgres, the lock, the entry; in that order, one batch each.
//!
//! A run registers with [`Beats`] and is kept alive until its [`Guard`] ends. The loop runs on an
//! OS thread of its own with connections of its own, so that a handler that burns the processor or
//! a slow completion never costs a lease. Postgres decides: a run is lost when its row says so, when
//! its lock carries a foreign token, or when its local deadline passes unconfirmed. With Redis away
//! it goes on while Postgres renews.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Stores;
use super::progress::Progress;
use super::watched::Watched;
use crate::clock::{BootInstant, Clock};
use crate::domain::{EntryId, Held, QueueName};
use crate::lease::{Lock, Renewal};
use crate::ledger::Beat;
use crate::protocol::lease_clock::LeaseClock;

/// At most this many runs in one command: Lua's `unpack` fails near 8,000 values, and a script that
/// runs long blocks everybody.
const GROUP: usize = 500;

/// Deadlines are looked at this often between two beats, and at least once a second: the watchdog
/// hears of it.
const LOOKS_PER_BEAT: u32 = 6;

/// See [`LOOKS_PER_BEAT`].
const LONGEST_LOOK: Duration = Duration::from_secs(1);

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
    clock: Clock,
    runs: Mutex<BTreeMap<u64, Run>>,
    next: AtomicU64,
    /// Odd while a beat is under way.
    beating: Watched<u64>,
    progress: Progress,
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

    /// Cancels the runs whose local deadline has passed.
    fn expire(&self) {
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

    fn lose(&self, id: u64, why: &str) {
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

/// Beats until `stop` resolves. `stores` are the loop's own.
pub async fn run(
    beats: &Beats,
    stores: &Stores,
    interval: Duration,
    stop: impl Future<Output = ()>,
) {
    let mut stop = std::pin::pin!(stop);
    let mut looks = tokio::time::interval((interval / LOOKS_PER_BEAT).min(LONGEST_LOOK));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut next_beat = beats.clock.now() + interval;
    loop {
        beats.progress.came_round();
        tokio::select! {
            biased;
            () = &mut stop => return,
            _ = looks.tick() => {}
        }
        beats.expire();
        let now = beats.clock.now();
        if now < next_beat {
            continue;
        }
        next_beat = now + interval;
        beats.beating.update(|beat| *beat += 1);
        {
            let mut beat = std::pin::pin!(beat(beats, stores, interval));
            loop {
                beats.progress.came_round();
                tokio::select! {
                    biased;
                    () = &mut beat => break,
                    _ = looks.tick() => beats.expire(),
                }
            }
        }
        beats.beating.update(|beat| *beat += 1);
    }
}

async fn beat(beats: &Beats, stores: &Stores, patience: Duration) {
    let alive: Vec<(u64, Alive)> =
        beats.runs().iter().map(|(id, run)| (*id, run.alive.clone())).collect();
    for group in alive.chunks(GROUP) {
        renew_leases(beats, stores, group, patience).await;
        tokio::join!(renew_locks(beats, stores, group), touch_entries(stores, group));
    }
}

async fn renew_leases(beats: &Beats, stores: &Stores, group: &[(u64, Alive)], patience: Duration) {
    let held: Vec<Held> = group.iter().map(|(_, alive)| alive.held.clone()).collect();
    let sent = beats.clock.now();
    // An error is reported by the health probe; until it ends, the local deadline decides. A ledger
    // that does not answer must not cost the lock and the entry too.
    let renewal = tokio::time::timeout(patience, stores.ledger.renew(&held));
    let Ok(Ok(answers)) = renewal.await else { return };
    for ((id, _), answer) in group.iter().zip(answers) {
        match answer {
            Beat::Renewed => {
                if let Some(run) = beats.runs().get_mut(id) {
                    run.alive.lease.confirm(sent);
                }
            }
            Beat::Locked => {}
            Beat::Lost => beats.lose(*id, "the ledger gave the task to another worker"),
        }
    }
}

async fn renew_locks(beats: &Beats, stores: &Stores, group: &[(u64, Alive)]) {
    let locks: Vec<Lock> = group.iter().map(|(_, alive)| alive.lock.clone()).collect();
    let Ok(answers) = stores.leases.renew(&locks).await else { return };
    for ((id, _), answer) in group.iter().zip(answers) {
        match answer {
            // Where the lock is in doubt, the ledger alone decides.
            Renewal::Renewed | Renewal::Unconfirmed => {}
            Renewal::Foreign => beats.lose(*id, "its lock carries another worker's token"),
        }
    }
}

async fn touch_entries(stores: &Stores, group: &[(u64, Alive)]) {
    let entries: Vec<_> = group.iter().map(|(_, alive)| alive.entry.clone()).collect();
    // An entry that is no longer ours proves nothing: the ledger refuses whoever has it now.
    let _ = stores.queue.touch(&entries).await;
}

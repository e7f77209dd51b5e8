//! Keeps alive what runs: the lease in Postgres, and the lock and the entry in Redis.
//!
//! A run registers with [`Beats`] and is kept alive until its [`Guard`] ends. The loops run on an
//! OS thread of their own with connections of their own, so that a handler that burns the processor or
//! a slow completion never costs a lease. Each store has its loop: however long one does not answer,
//! the other is not kept waiting.
//!
//! Postgres decides: a run is lost when its row says so, or when its local deadline passes
//! unconfirmed. With Redis away it goes on while Postgres renews. A foreign token cancels a run only
//! where the lock is that of a shared resource, which a foreign program may hold. Nobody can take over
//! a task's own lock without a claim, so there it is somebody who looked in vain, most likely after
//! Redis had stalled until the lock ended; it is taken again when that one has left.

mod beats;

use std::future::Future;
use std::time::Duration;

pub use self::beats::{Alive, Beats, Guard};
use super::Stores;
use crate::clock::{BootInstant, Clock};
use crate::domain::{EntryId, Held, QueueName};
use crate::lease::{Lock, Renewal};
use crate::ledger::Beat;

/// At most this many runs in one command: Lua's `unpack` fails near 8,000 values, and a script that
/// runs long blocks everybody.
const GROUP: usize = 500;

/// Deadlines are looked at this often between two beats, and at least once a second: the watchdog
/// hears of it.
const LOOKS_PER_BEAT: u32 = 6;

/// See [`LOOKS_PER_BEAT`].
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// Beats until `stop` resolves. `stores` are the loops' own.
pub async fn run(
    beats: &Beats,
    stores: &Stores,
    interval: Duration,
    stop: impl Future<Output = ()>,
) {
    let look = (interval / LOOKS_PER_BEAT).min(LONGEST_LOOK);
    let pace = Pace { clock: beats.clock, interval, look };
    let beating = async {
        tokio::join!(
            biased;
            watch_deadlines(beats, look),
            keep_leases(beats, stores, pace),
            keep_locks(beats, stores, pace),
        )
    };
    tokio::select! {
        biased;
        () = stop => {}
        _ = beating => {}
    }
}

/// When a loop beats.
#[derive(Clone, Copy)]
struct Pace {
    clock: Clock,
    interval: Duration,
    look: Duration,
}

impl Pace {
    fn next_beat(self) -> BootInstant {
        self.clock.now() + self.interval
    }

    /// Waits in steps, since the clock goes on while the machine is suspended, and a sleep does not.
    async fn until(self, beat: BootInstant) {
        loop {
            let left = beat.saturating_since(self.clock.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(self.look)).await;
        }
    }
}

async fn watch_deadlines(beats: &Beats, look: Duration) {
    loop {
        beats.progress.came_round();
        beats.expire();
        tokio::time::sleep(look).await;
    }
}

async fn keep_leases(beats: &Beats, stores: &Stores, pace: Pace) {
    let mut next = pace.next_beat();
    loop {
        pace.until(next).await;
        next = pace.next_beat();
        let (ids, held): (Vec<u64>, Vec<Held>) =
            beats.each(|alive| alive.held.clone()).into_iter().unzip();
        for (ids, held) in ids.chunks(GROUP).zip(held.chunks(GROUP)) {
            renew_leases(beats, stores, ids, held, pace.interval).await;
        }
    }
}

async fn renew_leases(
    beats: &Beats,
    stores: &Stores,
    ids: &[u64],
    held: &[Held],
    patience: Duration,
) {
    let sent = beats.clock.now();
    // An error is reported by the health probe; until it ends, the local deadline decides. A group
    // that gets no answer must not cost the next one its beat.
    let renewal = tokio::time::timeout(patience, stores.ledger.renew(held));
    let Ok(Ok(answers)) = renewal.await else { return };
    for (id, answer) in ids.iter().zip(answers) {
        match answer {
            Beat::Renewed => beats.confirm(*id, sent),
            Beat::Locked => {}
            Beat::Lost => beats.lose(*id, "the ledger gave the task to another worker"),
        }
    }
}

/// Whose lock it is.
struct Owner {
    id: u64,
    /// Whether the lock is a shared resource's.
    shares: bool,
}

async fn keep_locks(beats: &Beats, stores: &Stores, pace: Pace) {
    let mut next = pace.next_beat();
    loop {
        pace.until(next).await;
        next = pace.next_beat();
        let _under_way = beats.begin_beat();
        let (owners, locks, entries) = in_redis(beats);
        let groups = owners.chunks(GROUP).zip(locks.chunks(GROUP)).zip(entries.chunks(GROUP));
        for ((owners, locks), entries) in groups {
            // A call that was submitted is awaited: a lock that is set late has to be undone.
            tokio::join!(
                biased;
                renew_locks(beats, stores, owners, locks),
                touch_entries(stores, entries),
            );
            // Redis is slow, and whoever ends waits for this beat: the rest has to wait for the next.
            if pace.clock.now() >= next {
                break;
            }
        }
    }
}

/// What Redis has of the runs.
fn in_redis(beats: &Beats) -> (Vec<Owner>, Vec<Lock>, Vec<(QueueName, EntryId)>) {
    let runs = beats
        .each(|alive| (alive.held.resource.is_some(), (alive.lock.clone(), alive.entry.clone())));
    let owned = runs.into_iter().map(|(id, (shares, rest))| (Owner { id, shares }, rest));
    let (owners, (locks, entries)): (Vec<_>, (Vec<_>, Vec<_>)) = owned.unzip();
    (owners, locks, entries)
}

async fn renew_locks(beats: &Beats, stores: &Stores, owners: &[Owner], locks: &[Lock]) {
    let Ok(answers) = stores.leases.renew(locks).await else { return };
    for (owner, answer) in owners.iter().zip(answers) {
        match answer {
            Renewal::Foreign if owner.shares => {
                beats.lose(owner.id, "the lock of its resource carries another's token");
            }
            // Where the lock is in doubt, the ledger alone decides.
            Renewal::Renewed | Renewal::Unconfirmed | Renewal::Foreign => {}
        }
    }
}

async fn touch_entries(stores: &Stores, entries: &[(QueueName, EntryId)]) {
    // An entry that is no longer ours proves nothing: the ledger refuses whoever has it now.
    let _ = stores.queue.touch(entries).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use bytes::Bytes;
    use tokio::time::{Instant, sleep, timeout};
    use uuid::Uuid;

    use super::*;
    use crate::connection::RedisError;
    use crate::domain::{Kind, LockKey, PayloadHash, Task, TaskId, WorkerId};
    use crate::lease::memory::{MemoryLeases, MemoryLocks};
    use crate::lease::{Acquired, LeaseError, LeaseStore};
    use crate::ledger::memory::{MemoryLedger, MemoryOptions, MemoryTables};
    use crate::ledger::{Claimed, Ledger as _};
    use crate::protocol::lease_clock::LeaseClock;
    use crate::queue::memory::{MemoryQueue, MemoryStreams};

    const LEASE: Duration = Duration::from_secs(5);
    const HEARTBEAT: Duration = Duration::from_millis(1_500);
    const CALL: Duration = Duration::from_millis(500);

    /// Locks in a Redis that takes everything and answers nothing.
    struct Hangs;

    impl Hangs {
        async fn call<T>() -> Result<T, LeaseError> {
            sleep(CALL).await;
            let address = "nowhere".to_owned();
            Err(RedisError::Timeout { address, command: "any", after: CALL }.into())
        }
    }

    #[async_trait]
    impl LeaseStore for Hangs {
        async fn acquire(&self, _: &str) -> Result<Acquired, LeaseError> {
            Self::call().await
        }

        async fn release(&self, _: &Lock) -> Result<(), LeaseError> {
            Self::call().await
        }

        async fn renew(&self, _: &[Lock]) -> Result<Vec<Renewal>, LeaseError> {
            Self::call().await
        }

        async fn check(&self) -> Result<(), LeaseError> {
            Self::call().await
        }
    }

    /// A worker whose locks are in a store of the test's choice.
    struct Stage {
        clock: Clock,
        beats: Arc<Beats>,
        stores: Stores,
        ledger: Arc<MemoryLedger>,
    }

    impl Stage {
        fn new(clock: Clock, leases: Arc<dyn LeaseStore>) -> Self {
            let worker = WorkerId(Uuid::from_u128(1));
            let options = MemoryOptions { lease: LEASE, ..MemoryOptions::new(worker) };
            let ledger = Arc::new(MemoryLedger::new(MemoryTables::new(clock), options));
            let queue = Arc::new(MemoryQueue::new(MemoryStreams::new(clock), worker, LEASE));
            let stores = Stores { queue, leases, ledger: Arc::<MemoryLedger>::clone(&ledger) };
            Self { clock, beats: Beats::new(clock), stores, ledger }
        }

        async fn claim(&self, id: &str, lock_key: Option<&str>, lock: Lock) -> Guard {
            let kind = Kind::new("work").unwrap();
            let lock_key = lock_key.map(|key| LockKey::new(key).unwrap());
            let task = Arc::new(Task {
                id: TaskId::new(id).unwrap(),
                queue: QueueName::new("q").unwrap(),
                hash: PayloadHash::of(&kind, b"", lock_key.as_ref()),
                kind,
                payload: Bytes::new(),
                lock_key,
                max_attempts: None,
                timeout: None,
                not_before_ms: None,
                traceparent: None,
            });
            let sent = self.clock.now();
            let Ok(Claimed::Granted(grant)) = self.ledger.claim(&task).await else {
                panic!("not granted")
            };
            self.beats.register(Alive {
                held: grant.held,
                lock,
                entry: (task.queue.clone(), EntryId { ms: 1, seq: 1 }),
                lease: LeaseClock::new(LEASE, sent),
            })
        }

        async fn beats(&self) {
            run(&self.beats, &self.stores, HEARTBEAT, std::future::pending()).await;
        }
    }

    async fn granted(leases: &MemoryLeases, name: &str) -> Lock {
        match leases.acquire(name).await.unwrap() {
            Acquired::Granted(lock) => lock,
            Acquired::Taken { .. } => panic!("{name} is taken"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_redis_that_hangs_costs_nobody_the_lease() {
        let clock = Clock::Tokio(Instant::now());
        let stage = Stage::new(clock, Arc::new(Hangs));
        let locks = MemoryLeases::new(MemoryLocks::new(clock), LEASE);
        let mut guards = Vec::new();
        for n in 0..12 * GROUP {
            let id = n.to_string();
            let lock = granted(&locks, &id).await;
            guards.push(stage.claim(&id, None, lock).await);
        }
        let end = async {
            sleep(3 * LEASE).await;
            assert_eq!(stage.beats.leases_lost(), 0);
            // Nor does an end wait for all of them.
            let guard = guards.pop().expect("many");
            timeout(HEARTBEAT + CALL, guard.end()).await.expect("one beat and a call");
        };
        tokio::select! {
            () = stage.beats() => {}
            () = end => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_looked_in_vain_cancels_nobody_and_a_resource_in_other_hands_does() {
        let clock = Clock::Tokio(Instant::now());
        let locks = MemoryLocks::new(clock);
        let (ours, theirs) =
            (MemoryLeases::new(locks.clone(), LEASE), MemoryLeases::new(locks.clone(), LEASE));
        let (own, shared) = (granted(&ours, "task").await, granted(&ours, "resource").await);
        let stage = Stage::new(clock, Arc::new(ours));
        let plain = stage.claim("plain", None, own.clone()).await;
        let keyed = stage.claim("keyed", Some("resource"), shared).await;
        let play = async {
            sleep(HEARTBEAT / 2).await;
            locks.flush();
            let theirs_now = granted(&theirs, "task").await;
            granted(&theirs, "resource").await;
            sleep(HEARTBEAT).await;
            assert!(keyed.lost().is_cancelled());
            assert!(plain.may_start());
            theirs.release(&theirs_now).await.unwrap();
            sleep(HEARTBEAT).await;
            assert_eq!(locks.token("task"), Some(own.token), "it is taken again");
            assert_eq!(stage.beats.leases_lost(), 1);
        };
        tokio::select! {
            () = stage.beats() => {}
            () = play => {}
        }
    }
}

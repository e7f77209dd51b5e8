//! The stores as one worker process sees them: those in memory behind its [`Link`], each call looked
//! at by the checker when it is applied.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use queue_worker::connection::RedisError;
use queue_worker::domain::{
    Delivery, EntryId, Failure, Fence, Held, Malformed, QueueName, RawEntry, Task, TaskId, Verdict,
};
use queue_worker::lease::memory::MemoryLeases;
use queue_worker::lease::{Acquired, LeaseError, LeaseStore, Lock, Renewal};
use queue_worker::ledger::memory::{MemoryLedger, MemoryOptions};
use queue_worker::ledger::{
    Beat, Claimed, DelayReason, Delayed, Due, Effect, Grant, Ledger, LedgerError, Performed,
    Pruned, Recorded, Retention, Status,
};
use queue_worker::queue::memory::MemoryQueue;
use queue_worker::queue::{Demand, Queue, QueueError, codec};
use queue_worker::worker::Stores;

use super::link::{Fault, Link, REDIS_TIMEOUT, Side};
use super::mutation::Mutation;
use super::world::{LEASE, MAX_CRASHES, MAX_PAYLOAD, RELEASED_RECHECK};

/// The entries that brought a worker its tasks, for the mutations that settle them out of turn.
type Brought = Arc<Mutex<BTreeMap<TaskId, (EntryId, RawEntry)>>>;

/// Two sets of stores for a worker process: for its heartbeat, and for all the rest.
pub(crate) fn stores(link: &Arc<Link>) -> Stores {
    let world = &link.world;
    let brought = Brought::default();
    let queue = || MemoryQueue::new(world.streams.clone(), link.worker, LEASE);
    let options = MemoryOptions {
        lease: LEASE,
        max_crashes: MAX_CRASHES,
        released_recheck: RELEASED_RECHECK,
        ..MemoryOptions::new(link.worker)
    };
    Stores {
        queue: Arc::new(SimQueue {
            link: Arc::clone(link),
            inner: queue(),
            interrupted: AtomicBool::new(false),
            brought: Arc::clone(&brought),
        }),
        leases: Arc::new(SimLeases {
            link: Arc::clone(link),
            inner: MemoryLeases::new(world.locks.clone(), LEASE),
            last: Mutex::default(),
        }),
        ledger: Arc::new(SimLedger {
            link: Arc::clone(link),
            inner: MemoryLedger::new(world.tables.clone(), options),
            queue: queue(),
            brought,
        }),
    }
}

fn redis_error(fault: Fault) -> RedisError {
    let address = "redis".to_owned();
    match fault {
        Fault::Before => RedisError::Unavailable { address, message: "connection refused".into() },
        Fault::Lost => RedisError::Timeout { address, command: "…", after: REDIS_TIMEOUT },
    }
}

fn ledger_error(_: Fault) -> LedgerError {
    LedgerError::Unavailable { address: "postgres".to_owned(), message: "broken pipe".into() }
}

struct SimQueue {
    link: Arc<Link>,
    inner: MemoryQueue,
    interrupted: AtomicBool,
    brought: Brought,
}

impl SimQueue {
    fn seen(&self, how: &str, deliveries: &[Delivery]) {
        let world = &self.link.world;
        for delivery in deliveries {
            world.note(self.link.worker, format_args!("{how} {}", delivery.entry));
            let (entry, raw) = (delivery.entry, &delivery.raw);
            world.check(|checker| checker.delivered(self.link.worker, entry, raw));
            if let Ok(task) = codec::decode(delivery, MAX_PAYLOAD) {
                let entry = (delivery.entry, delivery.raw.clone());
                self.brought.lock().unwrap().insert(task.id, entry);
            }
        }
    }

    /// Plays a worker that takes back what it has lost, if that is the mutation.
    fn steal(&self, entry: EntryId) {
        let world = &self.link.world;
        if world.is(Mutation::GiveBackWithoutOwner)
            && world.streams.owner(&world.queue, entry).is_some()
        {
            world.streams.give(&world.queue, entry, self.link.worker, LEASE);
        }
    }
}

#[async_trait]
impl Queue for SimQueue {
    async fn check(&self) -> Result<(), QueueError> {
        self.link.call(Side::Redis, async {}).await.map_err(redis_error)
    }

    async fn fetch(
        &self,
        queue: &QueueName,
        demand: Demand,
        block: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        self.interrupted.store(false, Ordering::SeqCst);
        let read = async {
            let interrupted = self.interrupted.load(Ordering::SeqCst);
            let block = if interrupted { Duration::ZERO } else { block };
            let deliveries = self.inner.fetch(queue, demand, block).await?;
            self.seen("fetches", &deliveries);
            Ok(deliveries)
        };
        self.link.call(Side::Redis, read).await.map_err(redis_error)?
    }

    async fn interrupt(&self, queue: &QueueName) {
        self.interrupted.store(true, Ordering::SeqCst);
        self.link.gate().await;
        self.inner.interrupt(queue).await;
    }

    async fn reclaim(
        &self,
        queue: &QueueName,
        demand: Demand,
    ) -> Result<Vec<Delivery>, QueueError> {
        let read = async {
            let deliveries = self.inner.reclaim(queue, demand).await?;
            self.seen("reclaims", &deliveries);
            Ok(deliveries)
        };
        self.link.call(Side::Redis, read).await.map_err(redis_error)?
    }

    async fn delivered(
        &self,
        queue: &QueueName,
        after: EntryId,
        demand: Demand,
    ) -> Result<Vec<Delivery>, QueueError> {
        let read = async {
            let deliveries = self.inner.delivered(queue, after, demand).await?;
            self.seen("finds", &deliveries);
            Ok(deliveries)
        };
        self.link.call(Side::Redis, read).await.map_err(redis_error)?
    }

    async fn settle(&self, queue: &QueueName, entry: EntryId) -> Result<(), QueueError> {
        let settle = async {
            self.link.world.note(self.link.worker, format_args!("settles {entry}"));
            self.link.world.check(|checker| checker.acks(self.link.worker, entry));
            self.inner.settle(queue, entry).await
        };
        self.link.call(Side::Redis, settle).await.map_err(redis_error)?
    }

    async fn hand_over(
        &self,
        queue: &QueueName,
        entry: EntryId,
        raw: &RawEntry,
    ) -> Result<(), QueueError> {
        let world = &self.link.world;
        let give = async {
            world.note(self.link.worker, format_args!("hands over {entry}"));
            let before = world.check(|checker| checker.hands_over(self.link.worker, entry, raw));
            self.steal(entry);
            let answer = self.inner.hand_over(queue, entry, raw).await;
            world.check(|checker| checker.gave_back(self.link.worker, entry, before));
            answer
        };
        self.link.call(Side::Redis, give).await.map_err(redis_error)?
    }

    async fn postpone(
        &self,
        queue: &QueueName,
        entry: EntryId,
        remaining: Duration,
    ) -> Result<(), QueueError> {
        let world = &self.link.world;
        let give = async {
            world.note(self.link.worker, format_args!("postpones {entry} by {remaining:?}"));
            let before = world.check(|checker| checker.pending(entry));
            world.check(|checker| checker.postpones(self.link.worker, entry));
            self.steal(entry);
            let answer = self.inner.postpone(queue, entry, remaining).await;
            world.check(|checker| checker.gave_back(self.link.worker, entry, before));
            answer
        };
        self.link.call(Side::Redis, give).await.map_err(redis_error)?
    }

    async fn touch(&self, entries: &[(QueueName, EntryId)]) -> Result<Vec<bool>, QueueError> {
        self.link.call(Side::Redis, self.inner.touch(entries)).await.map_err(redis_error)?
    }

    async fn append(&self, queue: &QueueName, raw: &RawEntry) -> Result<EntryId, QueueError> {
        let append = async {
            let entry = self.inner.append(queue, raw).await?;
            self.link.world.note(self.link.worker, format_args!("appends {entry}"));
            Ok(entry)
        };
        self.link.call(Side::Redis, append).await.map_err(redis_error)?
    }

    async fn contains(&self, queue: &QueueName, entry: EntryId) -> Result<bool, QueueError> {
        self.link.call(Side::Redis, self.inner.contains(queue, entry)).await.map_err(redis_error)?
    }

    async fn reap_consumers(
        &self,
        queue: &QueueName,
        stale_after: Duration,
    ) -> Result<u64, QueueError> {
        let world = &self.link.world;
        let reap = async {
            if world.is(Mutation::ReapWithPending) {
                for (entry, owner, _) in world.streams.pending(queue) {
                    if owner == self.link.worker {
                        world.streams.forget_pending(queue, entry);
                    }
                }
            }
            self.inner.reap_consumers(queue, stale_after).await
        };
        self.link.call(Side::Redis, reap).await.map_err(redis_error)?
    }
}

struct SimLeases {
    link: Arc<Link>,
    inner: MemoryLeases,
    /// The locks of the last renewal.
    last: Mutex<Vec<Lock>>,
}

#[async_trait]
impl LeaseStore for SimLeases {
    async fn acquire(&self, name: &str) -> Result<Acquired, LeaseError> {
        let world = &self.link.world;
        let mut taken = None;
        let acquire = async {
            let answer = self.inner.acquire(name).await?;
            if let Acquired::Granted(lock) = &answer {
                taken = Some(lock.clone());
                world.check(|checker| checker.locked(self.link.worker, lock));
            }
            Ok(answer)
        };
        match self.link.call(Side::Redis, acquire).await {
            Ok(answer) => answer,
            Err(fault) => {
                // The store deletes what it may have set, if it still can.
                if let Some(lock) = taken
                    && world.with_faults(|faults| faults.chance.hit(0.5))
                {
                    self.inner.release(&lock).await?;
                }
                Err(redis_error(fault))
            }
        }
    }

    async fn release(&self, lock: &Lock) -> Result<(), LeaseError> {
        let world = &self.link.world;
        let release = async {
            if world.is(Mutation::NoUnlock) {
                return Ok(());
            }
            let before = world.locks.token(&lock.name);
            if world.is(Mutation::UnlockWithoutCompare) {
                world.locks.forget(&lock.name);
            }
            let answer = self.inner.release(lock).await;
            world.check(|checker| checker.unlocked(lock, before));
            answer
        };
        self.link.call(Side::Redis, release).await.map_err(redis_error)?
    }

    async fn renew(&self, locks: &[Lock]) -> Result<Vec<Renewal>, LeaseError> {
        let world = &self.link.world;
        let last = std::mem::replace(&mut *self.last.lock().unwrap(), locks.to_vec());
        let mut all = locks.to_vec();
        if world.is(Mutation::BeatAfterRelease) {
            all.extend(last);
        }
        let renew = async {
            let before: Vec<_> = all.iter().map(|lock| world.locks.token(&lock.name)).collect();
            if world.is(Mutation::RenewLockWithoutCompare) {
                for lock in &all {
                    world.locks.forget(&lock.name);
                }
            }
            let mut answers = self.inner.renew(&all).await?;
            answers.truncate(locks.len());
            world.check(|checker| checker.relocked(&all, &before));
            Ok(answers)
        };
        self.link.call(Side::Redis, renew).await.map_err(redis_error)?
    }
}

struct SimLedger {
    link: Arc<Link>,
    inner: MemoryLedger,
    queue: MemoryQueue,
    brought: Brought,
}

impl SimLedger {
    fn row_is(&self, id: &TaskId, wanted: impl Fn(Status) -> bool) -> bool {
        self.link.world.tables.row(id).is_some_and(|row| wanted(row.status))
    }

    /// The fence as the mutation of that name would not compare it: the row's own.
    fn unfenced(&self, held: &Held) -> Held {
        let mut held = held.clone();
        let tables = &self.link.world.tables;
        if let Some(row) = tables.row(&held.task_id) {
            held.fence = row.fence;
        }
        if let Some((key, fence)) = &mut held.resource
            && let Some(resource) = tables.resource(key)
        {
            *fence = resource.fence;
        }
        held
    }

    async fn settle_early(&self, id: &TaskId, verdict: &Verdict) {
        let world = &self.link.world;
        let Some((entry, raw)) = self.brought.lock().unwrap().get(id).cloned() else { return };
        if world.is(Mutation::AckBeforeCommit) && *verdict != Verdict::Released {
            world.check(|checker| checker.acks(self.link.worker, entry));
            self.queue.settle(&world.queue, entry).await.unwrap();
        }
        if world.is(Mutation::HandOverBeforeRelease) && *verdict == Verdict::Released {
            let before = world.check(|checker| checker.hands_over(self.link.worker, entry, &raw));
            self.queue.hand_over(&world.queue, entry, &raw).await.unwrap();
            world.check(|checker| checker.gave_back(self.link.worker, entry, before));
        }
    }

    async fn apply_claim(
        &self,
        task: &Arc<Task>,
        in_company: bool,
    ) -> Result<Claimed, LedgerError> {
        let world = &self.link.world;
        let (tables, id) = (&world.tables, &task.id);
        let now_ms = tables.now_ms();
        if world.is(Mutation::ClaimIgnoresLease) && self.row_is(id, |s| s == Status::Running) {
            tables.edit(id, |row| row.lease_until = Some(now_ms));
        }
        let done = |status| matches!(status, Status::Succeeded | Status::Failed | Status::Dead);
        if world.is(Mutation::DoneIsClaimable) && self.row_is(id, done) {
            tables.edit(id, |row| row.status = Status::Released);
        }
        let crashes = tables.row(id).map_or(0, |row| row.crashes);
        let mut answer = if in_company {
            self.inner.claim_in_company(task).await?
        } else {
            self.inner.claim(task).await?
        };
        if let Claimed::Granted(grant) = &mut answer {
            if world.is(Mutation::NoCrashOnTakeover) {
                tables.edit(id, |row| row.crashes = crashes);
            }
            if world.is(Mutation::FenceStays) {
                tables.edit(id, |row| row.fence.0 -= 1);
                grant.held.fence.0 -= 1;
            }
        }
        world.note(self.link.worker, format_args!("claims {id}: {answer:?}"));
        world.judge();
        Ok(answer)
    }

    async fn claim_as(&self, task: &Arc<Task>, in_company: bool) -> Result<Claimed, LedgerError> {
        let world = &self.link.world;
        let sent = world.now();
        match self.link.call(Side::Postgres, self.apply_claim(task, in_company)).await {
            Ok(answer) => {
                if let Ok(Claimed::Granted(grant)) = &answer {
                    world.check(|checker| checker.granted(self.link.worker, grant, sent));
                }
                answer
            }
            Err(fault) => {
                self.inner.doubt(task);
                Err(ledger_error(fault))
            }
        }
    }

    async fn apply_record(
        &self,
        task: &Arc<Task>,
        held: &Held,
        verdict: Verdict,
    ) -> Result<Recorded, LedgerError> {
        let world = &self.link.world;
        let named = held.fence;
        let held =
            if world.is(Mutation::NoFenceInRecord) { self.unfenced(held) } else { held.clone() };
        let released = verdict == Verdict::Released;
        let line = format!("records {} under {:?}: {verdict:?}", task.id, held.fence);
        let answer = self.inner.record(task, &held, verdict).await;
        if released
            && world.is(Mutation::CrashOnGiveBack)
            && matches!(answer, Ok(Recorded::Committed))
        {
            world.tables.edit(&task.id, |row| row.crashes += 1);
        }
        world.note(self.link.worker, format_args!("{line}: {answer:?}"));
        world.judge();
        if matches!(answer, Ok(Recorded::Committed)) {
            world.check(|checker| checker.committed(&task.id, named));
        }
        answer
    }
}

#[async_trait]
impl Ledger for SimLedger {
    async fn check(&self) -> Result<(), LedgerError> {
        self.link.call(Side::Postgres, async {}).await.map_err(ledger_error)
    }

    async fn claim_in_company(&self, task: &Arc<Task>) -> Result<Claimed, LedgerError> {
        self.claim_as(task, true).await
    }

    async fn claim(&self, task: &Arc<Task>) -> Result<Claimed, LedgerError> {
        self.claim_as(task, false).await
    }

    async fn record(
        &self,
        task: &Arc<Task>,
        held: &Held,
        verdict: Verdict,
    ) -> Result<Recorded, LedgerError> {
        self.settle_early(&task.id, &verdict).await;
        let verdict = match verdict {
            Verdict::Released if self.link.world.is(Mutation::RetryOnDrain) => Verdict::Retry {
                failure: Failure::retry("interrupted"),
                delay: Duration::from_millis(100),
            },
            verdict => verdict,
        };
        let record = self.apply_record(task, held, verdict);
        self.link.call(Side::Postgres, record).await.map_err(ledger_error)?
    }

    async fn perform(
        &self,
        task: &Arc<Task>,
        held: Option<&Grant>,
        effect: &Arc<dyn Effect>,
        timeout: Duration,
    ) -> Result<Performed, LedgerError> {
        let world = &self.link.world;
        if held.is_some() {
            world.check(|checker| checker.starts(&self.link, task));
        }
        let perform = async {
            let unfenced = held.map(|grant| Grant {
                held: if world.is(Mutation::NoFenceInPerform) {
                    self.unfenced(&grant.held)
                } else {
                    grant.held.clone()
                },
                ..grant.clone()
            });
            let mut answer = self.inner.perform(task, unfenced.as_ref(), effect, timeout).await;
            if world.is(Mutation::NoFenceInPerform) && matches!(answer, Ok(Performed::Stale)) {
                world.tables.edit(&task.id, |row| row.status = Status::Succeeded);
                answer = Ok(Performed::Committed);
            }
            let under = held.map(|grant| grant.held.fence);
            world.note(
                self.link.worker,
                format_args!("performs {} under {under:?}: {answer:?}", task.id),
            );
            world.judge();
            if let (Some(under), Ok(Performed::Committed)) = (under, &answer) {
                world.check(|checker| checker.committed(&task.id, under));
            }
            answer
        };
        let answer = self.link.call(Side::Postgres, perform).await.map_err(ledger_error);
        if held.is_some() {
            world.check(|checker| checker.ends(self.link.worker, &task.id));
        }
        answer?
    }

    async fn delay(
        &self,
        task: &Arc<Task>,
        delay: Duration,
        reason: DelayReason,
    ) -> Result<Delayed, LedgerError> {
        let world = &self.link.world;
        let wait = async {
            let answer = self.inner.delay(task, delay, reason).await;
            if world.is(Mutation::DelayWithoutPayload) && matches!(answer, Ok(Delayed::Committed)) {
                world.tables.edit(&task.id, |row| row.payload = None);
            }
            world.note(
                self.link.worker,
                format_args!("delays {} for {reason:?}: {answer:?}", task.id),
            );
            world.judge();
            answer
        };
        self.link.call(Side::Postgres, wait).await.map_err(ledger_error)?
    }

    async fn condemn(&self, task: &Arc<Task>) -> Result<Recorded, LedgerError> {
        let world = &self.link.world;
        let condemn = async {
            if world.is(Mutation::CondemnWithoutRecheck) {
                let now_ms = world.tables.now_ms();
                world.tables.edit(&task.id, |row| {
                    row.status = Status::Running;
                    row.lease_until = Some(now_ms);
                    row.crashes = MAX_CRASHES + 1;
                });
            }
            let answer = self.inner.condemn(task).await;
            world.note(self.link.worker, format_args!("condemns {}: {answer:?}", task.id));
            world.judge();
            answer
        };
        self.link.call(Side::Postgres, condemn).await.map_err(ledger_error)?
    }

    async fn bury(
        &self,
        queue: &QueueName,
        entry: EntryId,
        raw: &RawEntry,
        malformed: &Malformed,
    ) -> Result<(), LedgerError> {
        self.link.world.note(self.link.worker, format_args!("buries {entry}"));
        let bury = self.inner.bury(queue, entry, raw, malformed);
        self.link.call(Side::Postgres, bury).await.map_err(ledger_error)?
    }

    async fn renew(&self, held: &[Held]) -> Result<Vec<Beat>, LedgerError> {
        let world = &self.link.world;
        let sent = world.now();
        let renew = async {
            let answers = if world.is(Mutation::RenewIgnoresFence) {
                let held: Vec<Held> = held.iter().map(|held| self.unfenced(held)).collect();
                self.inner.renew(&held).await
            } else {
                self.inner.renew(held).await
            }?;
            world.check(|checker| checker.renews(held, &answers));
            world.judge();
            Ok(answers)
        };
        match self.link.call(Side::Postgres, renew).await {
            Ok(Ok(answers)) => {
                world.check(|checker| checker.renewed(self.link.worker, held, &answers, sent));
                Ok(answers)
            }
            Ok(Err(error)) => Err(error),
            Err(_) if world.is(Mutation::RenewalNeverFails) => Ok(vec![Beat::Renewed; held.len()]),
            Err(fault) => Err(ledger_error(fault)),
        }
    }

    async fn due(&self, limit: usize) -> Result<Vec<Due>, LedgerError> {
        let world = &self.link.world;
        let look = async {
            let due = self.inner.due(limit).await?;
            if world.is(Mutation::PromoteMarksFirst) {
                for due in &due {
                    let id = TaskId::new(&due.task_id).unwrap();
                    world.tables.edit(&id, |row| {
                        row.status = Status::Released;
                        row.run_at = None;
                    });
                }
            }
            world.judge();
            Ok(due)
        };
        self.link.call(Side::Postgres, look).await.map_err(ledger_error)?
    }

    async fn prune(&self, retention: &Retention) -> Result<Pruned, LedgerError> {
        let prune = self.inner.prune(retention);
        self.link.call(Side::Postgres, prune).await.map_err(ledger_error)?
    }

    async fn promoted(&self, due: &Due, entry: EntryId) -> Result<(), LedgerError> {
        let world = &self.link.world;
        let note = async {
            let answer = self.inner.promoted(due, entry).await;
            let Fence(fence) = due.fence;
            world.note(
                self.link.worker,
                format_args!("promotes {} under {fence} as {entry}", due.task_id),
            );
            world.judge();
            answer
        };
        self.link.call(Side::Postgres, note).await.map_err(ledger_error)?
    }
}

//! The stores of a live worker: those in memory, a few milliseconds away, of whose calls some may go
//! wrong. Calls are counted from the look into the pending list that could first bring something;
//! reads of new entries, probes and heartbeats are not counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use queue_worker::connection::RedisError;
use queue_worker::domain::{Delivery, EntryId, Held, Malformed, QueueName, RawEntry, Task};
use queue_worker::lease::memory::MemoryLeases;
use queue_worker::lease::{Acquired, LeaseError, LeaseStore, Lock, Renewal};
use queue_worker::ledger::memory::MemoryLedger;
use queue_worker::ledger::{
    Beat, Claimed, DelayReason, Delayed, Due, Effect, Grant, Ledger, LedgerError, Performed,
    Pruned, Recorded, Retention, Verdict,
};
use queue_worker::protocol::backoff::Growing;
use queue_worker::queue::memory::{MemoryQueue, MemoryStreams};
use queue_worker::queue::{CutShort, Demand, Queue, QueueError};
use tokio::time::sleep;

use super::world::LEASE;

/// One way to a store, or back.
const WAY: Duration = Duration::from_millis(1);
/// After this an answer of Redis has timed out.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);
/// The latest that an answer still counts.
const LATE: Duration = Duration::from_millis(450);

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// It is not applied, and fails at once.
    Refused,
    /// It is applied, and its connection breaks.
    Cut,
    /// It is applied, and its answer does not come in time.
    Lost,
    /// It is applied at once, and its answer comes at the last moment.
    Late,
    /// The stream has lost the entry before. It is applied, and its answer does not come in time.
    Gone,
    /// Nothing comes back until a while after the worker is killed: it is applied.
    Kill,
}

/// Which calls of a worker go wrong, by their numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan(pub(crate) BTreeMap<usize, Mishap>);

impl<const N: usize> From<[(usize, Mishap); N]> for Plan {
    fn from(mishaps: [(usize, Mishap); N]) -> Self {
        Self(mishaps.into())
    }
}

/// The calls of one worker.
pub(crate) struct Calls {
    plan: Plan,
    streams: MemoryStreams,
    queue: QueueName,
    /// How many were made since something could be reclaimed.
    made: Mutex<Option<usize>>,
    pub(crate) log: Mutex<Vec<&'static str>>,
    pub(crate) dies: tokio::sync::Notify,
}

enum Answer<T> {
    Given(T),
    Failed { applied: Option<T>, timed_out: bool },
}

impl Calls {
    pub(crate) fn new(plan: Plan, streams: &MemoryStreams, queue: &QueueName) -> Arc<Self> {
        let (made, log, dies) = Default::default();
        Arc::new(Self { plan, streams: streams.clone(), queue: queue.clone(), made, log, dies })
    }

    fn is_something_idle(&self) -> bool {
        self.streams.pending(&self.queue).iter().any(|(_, _, idle)| *idle >= LEASE)
    }

    /// What befalls this call.
    fn fate(&self, name: &'static str) -> Option<Mishap> {
        let mut made = self.made.lock().unwrap();
        if made.is_none() && !(name == "reclaim" && self.is_something_idle()) {
            return None;
        }
        let number = made.map_or(0, |made| made + 1);
        *made = Some(number);
        self.log.lock().unwrap().push(name);
        self.plan.0.get(&number).copied()
    }

    /// Whether this befalls the call that is being made.
    fn meets(&self, mishap: Mishap) -> bool {
        let made = *self.made.lock().unwrap();
        made.and_then(|made| self.plan.0.get(&made)) == Some(&mishap)
    }

    async fn make<T>(&self, name: &'static str, apply: impl Future<Output = T>) -> Answer<T> {
        sleep(WAY).await;
        let fate = self.fate(name);
        if fate == Some(Mishap::Refused) {
            return Answer::Failed { applied: None, timed_out: false };
        }
        let answer = apply.await;
        match fate {
            None | Some(Mishap::Refused) => sleep(WAY).await,
            Some(Mishap::Late) => sleep(LATE).await,
            Some(Mishap::Cut) => return Answer::Failed { applied: Some(answer), timed_out: false },
            Some(Mishap::Lost | Mishap::Gone) => {
                sleep(TIMEOUT).await;
                return Answer::Failed { applied: Some(answer), timed_out: true };
            }
            Some(Mishap::Kill) => {
                self.dies.notify_one();
                std::future::pending::<()>().await;
            }
        }
        Answer::Given(answer)
    }
}

fn redis_error(timed_out: bool) -> RedisError {
    let address = "redis".to_owned();
    if timed_out {
        RedisError::Timeout { address, command: "…", after: TIMEOUT }
    } else {
        RedisError::Unavailable { address, message: "broken pipe".into() }
    }
}

fn redis<T, E: From<QueueError>>(answer: Answer<Result<T, E>>) -> Result<T, E> {
    match answer {
        Answer::Given(answer) => answer,
        Answer::Failed { timed_out, .. } => Err(redis_error(timed_out).into()),
    }
}

pub(crate) struct FaultyQueue {
    pub(crate) calls: Arc<Calls>,
    pub(crate) inner: MemoryQueue,
}

#[async_trait]
impl Queue for FaultyQueue {
    async fn check(&self) -> Result<(), QueueError> {
        self.inner.check().await
    }

    async fn check_writes(&self) -> Result<(), QueueError> {
        self.inner.check_writes().await
    }

    async fn fetch(
        &self,
        queue: &QueueName,
        demand: Demand,
        block: Duration,
    ) -> Result<Vec<Delivery>, CutShort> {
        self.inner.fetch(queue, demand, block).await
    }

    async fn interrupt(&self, queue: &QueueName) {
        self.inner.interrupt(queue).await;
    }

    async fn reclaim(&self, queue: &QueueName, demand: Demand) -> Result<Vec<Delivery>, CutShort> {
        redis(self.calls.make("reclaim", self.inner.reclaim(queue, demand)).await)
    }

    async fn delivered(
        &self,
        queue: &QueueName,
        after: EntryId,
        demand: Demand,
    ) -> Result<Vec<Delivery>, CutShort> {
        redis(self.calls.make("delivered", self.inner.delivered(queue, after, demand)).await)
    }

    async fn settle(&self, queue: &QueueName, entry: EntryId) -> Result<(), QueueError> {
        self.inner.settle(queue, entry).await
    }

    async fn hand_over(
        &self,
        queue: &QueueName,
        entry: EntryId,
        raw: &RawEntry,
    ) -> Result<(), QueueError> {
        let mut is_gone = false;
        let given = async {
            if self.calls.meets(Mishap::Gone) {
                self.calls.streams.lose(queue, entry);
            }
            is_gone = !self.inner.contains(queue, entry).await?;
            self.inner.hand_over(queue, entry, raw).await
        };
        match self.calls.make("hand_over", given).await {
            // As the queue is bound to say when an entry may have been added.
            Answer::Failed { applied: Some(_), .. } if is_gone => Err(RedisError::Unsure {
                address: "redis".into(),
                command: "…",
                message: "no answer".into(),
            }),
            answer => redis(answer),
        }
    }

    async fn postpone(
        &self,
        queue: &QueueName,
        entry: EntryId,
        remaining: Duration,
    ) -> Result<(), QueueError> {
        redis(self.calls.make("postpone", self.inner.postpone(queue, entry, remaining)).await)
    }

    async fn touch(&self, entries: &[(QueueName, EntryId)]) -> Result<Vec<bool>, QueueError> {
        self.inner.touch(entries).await
    }

    async fn append(&self, queue: &QueueName, raw: &RawEntry) -> Result<EntryId, QueueError> {
        self.inner.append(queue, raw).await
    }

    async fn contains(&self, queue: &QueueName, entry: EntryId) -> Result<bool, QueueError> {
        self.inner.contains(queue, entry).await
    }

    async fn reap_consumers(
        &self,
        queue: &QueueName,
        stale_after: Duration,
    ) -> Result<u64, QueueError> {
        self.inner.reap_consumers(queue, stale_after).await
    }
}

pub(crate) struct FaultyLeases {
    pub(crate) calls: Arc<Calls>,
    pub(crate) inner: MemoryLeases,
}

#[async_trait]
impl LeaseStore for FaultyLeases {
    async fn check(&self) -> Result<(), LeaseError> {
        self.inner.check().await
    }

    async fn acquire(&self, name: &str) -> Result<Acquired, LeaseError> {
        match self.calls.make("acquire", self.inner.acquire(name)).await {
            Answer::Given(answer) => answer,
            Answer::Failed { applied, timed_out } => {
                // As the store is bound to do with what may have been set.
                if let Some(Ok(Acquired::Granted(lock))) = applied {
                    self.inner.release(&lock).await?;
                }
                Err(redis_error(timed_out).into())
            }
        }
    }

    async fn release(&self, lock: &Lock) -> Result<(), LeaseError> {
        match self.calls.make("release", self.inner.release(lock)).await {
            Answer::Given(answer) => answer,
            Answer::Failed { timed_out, .. } => Err(redis_error(timed_out).into()),
        }
    }

    async fn renew(&self, locks: &[Lock]) -> Result<Vec<Renewal>, LeaseError> {
        self.inner.renew(locks).await
    }
}

pub(crate) struct FaultyLedger {
    pub(crate) calls: Arc<Calls>,
    pub(crate) inner: MemoryLedger,
}

#[async_trait]
impl Ledger for FaultyLedger {
    async fn check(&self) -> Result<(), LedgerError> {
        self.inner.check().await
    }

    async fn claim_in_company(&self, task: &Arc<Task>) -> Result<Claimed, LedgerError> {
        match self.calls.make("claim", self.inner.claim_in_company(task)).await {
            Answer::Given(answer) => answer,
            Answer::Failed { .. } => {
                self.inner.doubt(task);
                let (address, message) = ("postgres".to_owned(), "broken pipe".to_owned());
                Err(LedgerError::Unavailable { address, message })
            }
        }
    }

    async fn claim(&self, task: &Arc<Task>) -> Result<Claimed, LedgerError> {
        self.inner.claim(task).await
    }

    async fn record(
        &self,
        task: &Arc<Task>,
        held: &Held,
        verdict: Verdict,
    ) -> Result<Recorded, LedgerError> {
        self.inner.record(task, held, verdict).await
    }

    async fn perform(
        &self,
        task: &Arc<Task>,
        held: Option<&Grant>,
        effect: &Arc<dyn Effect>,
        timeout: Duration,
    ) -> Result<Performed, LedgerError> {
        self.inner.perform(task, held, effect, timeout).await
    }

    async fn delay(
        &self,
        task: &Arc<Task>,
        wait: Growing,
        reason: DelayReason,
    ) -> Result<Delayed, LedgerError> {
        self.inner.delay(task, wait, reason).await
    }

    async fn condemn(&self, task: &Arc<Task>) -> Result<Recorded, LedgerError> {
        self.inner.condemn(task).await
    }

    async fn bury(
        &self,
        queue: &QueueName,
        entry: EntryId,
        raw: &RawEntry,
        malformed: &Malformed,
    ) -> Result<(), LedgerError> {
        self.inner.bury(queue, entry, raw, malformed).await
    }

    async fn renew(&self, held: &[Held]) -> Result<Vec<Beat>, LedgerError> {
        self.inner.renew(held).await
    }

    async fn due(&self, limit: usize) -> Result<Vec<Due>, LedgerError> {
        self.inner.due(limit).await
    }

    async fn promoted(&self, due: &Due, entry: EntryId) -> Result<(), LedgerError> {
        self.inner.promoted(due, entry).await
    }

    async fn find_strays(&self) -> Result<u64, LedgerError> {
        self.inner.find_strays().await
    }

    async fn prune(&self, retention: &Retention) -> Result<Pruned, LedgerError> {
        self.inner.prune(retention).await
    }
}

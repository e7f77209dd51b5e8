//! A worker that was killed while it ran a task, and live ones that are made of the production's
//! parts over the same stores in memory, in paused time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_worker::clock::Clock;
use queue_worker::domain::{
    Delivery, EntryId, Failure, Held, Origin, QueueName, RawEntry, Task, TaskId, WorkerId,
};
use queue_worker::handler::registry::{EntryOptions, Registry};
use queue_worker::handler::{ExternalHandler, Handler, Run};
use queue_worker::lease::memory::{MemoryLeases, MemoryLocks};
use queue_worker::lease::{Acquired, LeaseStore as _, Lock};
use queue_worker::ledger::memory::{MemoryLedger, MemoryOptions, MemoryTables};
use queue_worker::ledger::{
    Claimed, Effect, EffectConnection, EffectError, EffectItem, Ledger as _, Retention,
};
use queue_worker::protocol::drain::Phase;
use queue_worker::queue::memory::{MemoryQueue, MemoryStreams};
use queue_worker::queue::{Demand, Queue as _, codec};
use queue_worker::worker::counts::Counts;
use queue_worker::worker::dice::Dice;
use queue_worker::worker::fetcher::Fetcher;
use queue_worker::worker::health::Health;
use queue_worker::worker::heartbeat::{self, Beats};
use queue_worker::worker::maintenance::Maintenance;
use queue_worker::worker::progress::Progress;
use queue_worker::worker::shared::Shared;
use queue_worker::worker::slots::{Place, Slots};
use queue_worker::worker::stop::Stop;
use queue_worker::worker::watched::Watched;
use queue_worker::worker::{Context, Limits, Served, Stores};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::stores::{Calls, FaultyLeases, FaultyLedger, FaultyQueue, Plan};

/// The lease, the lock's time to live and the minimal idle time: the defaults.
pub(crate) const LEASE: Duration = Duration::from_secs(5);
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(1_500);
const SWEEP: Duration = Duration::from_millis(500);
/// Longer than any case.
const AGE: Duration = Duration::from_secs(1_000_000);
/// How many tasks a worker may have in its hands.
const ROOM: usize = 10;
const MANY: Demand = Demand { entries: 10, bytes: 1_000_000 };

/// What all workers share.
pub(crate) struct World {
    clock: Clock,
    start: Instant,
    pub(crate) streams: MemoryStreams,
    locks: MemoryLocks,
    tables: MemoryTables,
    pub(crate) queue: QueueName,
    /// Between two looks for what idles.
    pub(crate) sweep: Duration,
    /// Before a worker is quiet for a suspect.
    pub(crate) suspect_wait: Duration,
    /// Where handlers say that they run.
    runs: mpsc::UnboundedSender<Instant>,
}

/// A worker that runs a task, with all that it takes.
pub(crate) struct Holder {
    queue: MemoryQueue,
    leases: MemoryLeases,
    ledger: MemoryLedger,
    held: Held,
    lock: Lock,
    entry: EntryId,
}

/// A live worker; it is killed when this is dropped.
pub(crate) struct Live {
    pub(crate) calls: Arc<Calls>,
    pub(crate) stop: Stop,
    shared: Arc<Shared>,
    _parts: JoinSet<()>,
}

struct Tells(mpsc::UnboundedSender<Instant>);

#[async_trait]
impl ExternalHandler for Tells {
    fn is_light(&self) -> bool {
        true
    }

    async fn run(&self, _: Run) -> Result<Option<Bytes>, Failure> {
        let _ = self.0.send(Instant::now());
        Ok(None)
    }
}

/// Goes on until its time limit.
struct Endless(mpsc::UnboundedSender<Instant>);

#[async_trait]
impl Effect for Endless {
    fn name(&self) -> &'static str {
        "endless"
    }

    fn batch(&self) -> usize {
        1
    }

    fn single_commit(&self) -> bool {
        false
    }

    async fn apply(&self, _: EffectConnection<'_>, _: &[EffectItem]) -> Result<(), EffectError> {
        let _ = self.0.send(Instant::now());
        std::future::pending().await
    }
}

/// What kind of task the killed worker ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One of its own.
    Plain,
    /// One that holds a shared resource.
    Keyed,
    /// One that was enqueued twice.
    Twice,
    /// One whose effect goes on until its time limit.
    Endless,
}

fn entry_of_a_task(shape: Shape) -> RawEntry {
    entry_of("t", shape)
}

fn entry_of(id: &'static str, shape: Shape) -> RawEntry {
    let field = |name: &'static str, value: &'static str| {
        (Bytes::from_static(name.as_bytes()), Bytes::from_static(value.as_bytes()))
    };
    let kind = if shape == Shape::Endless { "endless" } else { "work" };
    let mut fields = vec![field("task_id", id), field("kind", kind), field("payload", "anything")];
    if shape == Shape::Keyed {
        fields.push(field("lock_key", "resource"));
    }
    RawEntry { fields }
}

impl World {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Instant>) {
        let start = Instant::now();
        let clock = Clock::Tokio(start);
        let (runs, told) = mpsc::unbounded_channel();
        let world = Self {
            clock,
            start,
            streams: MemoryStreams::new(clock),
            locks: MemoryLocks::new(clock),
            tables: MemoryTables::new(clock),
            queue: QueueName::new("q").unwrap(),
            sweep: SWEEP,
            suspect_wait: AGE,
            runs,
        };
        (world, told)
    }

    fn stores(&self, worker: WorkerId) -> (MemoryQueue, MemoryLeases, MemoryLedger) {
        let options = MemoryOptions { lease: LEASE, ..MemoryOptions::new(worker) };
        (
            MemoryQueue::new(self.streams.clone(), worker, LEASE),
            MemoryLeases::new(self.locks.clone(), LEASE),
            MemoryLedger::new(self.tables.clone(), options),
        )
    }

    /// A worker that has just claimed the only task. Of two entries it keeps the second alive.
    pub(crate) async fn holder(&self, shape: Shape) -> Holder {
        let (queue, leases, ledger) = self.stores(WorkerId(Uuid::from_u128(1)));
        for _ in 0..if shape == Shape::Twice { 2 } else { 1 } {
            self.enqueue(shape);
        }
        let delivery = queue.fetch(&self.queue, MANY, LEASE).await.unwrap().pop().unwrap();
        let task: Arc<Task> = Arc::new(codec::decode(&delivery, 1_000).unwrap());
        let Acquired::Granted(lock) = leases.acquire(&task.lock_name()).await.unwrap() else {
            panic!("the lock is taken")
        };
        let Claimed::Granted(grant) = ledger.claim_in_company(&task).await.unwrap() else {
            panic!("not granted")
        };
        Holder { queue, leases, ledger, held: grant.held, lock, entry: delivery.entry }
    }

    /// Enqueues another task.
    pub(crate) fn enqueue_other(&self) {
        self.streams.add(&self.queue, entry_of("other", Shape::Plain));
    }

    /// The task has crashed so many workers already.
    pub(crate) fn has_crashed(&self, crashes: u32) {
        self.tables.edit(&TaskId::new("t").unwrap(), |row| row.crashes = crashes);
    }

    /// Enqueues the task once more.
    pub(crate) fn enqueue(&self, shape: Shape) {
        self.streams.add(&self.queue, entry_of_a_task(shape));
    }

    /// A task that was delivered to a worker which died before it did anything.
    pub(crate) async fn orphan(&self, shape: Shape) -> Arc<Task> {
        let (queue, ..) = self.stores(WorkerId(Uuid::from_u128(1)));
        self.enqueue(shape);
        let delivery = queue.fetch(&self.queue, MANY, LEASE).await.unwrap().pop().unwrap();
        Arc::new(codec::decode(&delivery, 1_000).unwrap())
    }

    /// Holds the task's lock with a short time to live, as a foreign program may; never ends.
    pub(crate) async fn hold_lock(&self, task: &Task, ttl: Duration) {
        let leases = MemoryLeases::new(self.locks.clone(), ttl);
        let Acquired::Granted(lock) = leases.acquire(&task.lock_name()).await.unwrap() else {
            panic!("the lock is taken")
        };
        loop {
            sleep(ttl * 3 / 10).await;
            leases.renew(std::slice::from_ref(&lock)).await.unwrap();
        }
    }

    /// Starts a worker.
    pub(crate) fn worker(&self, number: u64, plan: Plan, seed: u64) -> Live {
        let (queue, leases, ledger) = self.stores(WorkerId(Uuid::from_u128(number.into())));
        let calls = Calls::new(plan, &self.streams, &self.queue);
        let stores = Stores {
            queue: Arc::new(FaultyQueue { calls: Arc::clone(&calls), inner: queue }),
            leases: Arc::new(FaultyLeases { calls: Arc::clone(&calls), inner: leases }),
            ledger: Arc::new(FaultyLedger { calls: Arc::clone(&calls), inner: ledger }),
        };
        let (queue, leases, ledger) = self.stores(WorkerId(Uuid::from_u128(number.into())));
        let beating =
            Stores { queue: Arc::new(queue), leases: Arc::new(leases), ledger: Arc::new(ledger) };
        let context = self.context(stores, Dice::seeded(seed ^ (number << 32)));
        let served = Served { name: self.queue.clone(), concurrency: 2, max_payload: 1_000 };
        let shared = Shared::new(ROOM, 1_000_000);
        let slots = Slots::new(&shared, 2, self.clock);
        let mut parts = JoinSet::new();
        parts.spawn(Fetcher::new(context.clone(), served, slots).run());
        parts.spawn(Maintenance::new(context.clone(), vec![self.queue.clone()]).run());
        let Context { health, beats, stores, stop, .. } = context;
        parts.spawn(async move { health.watch(&stores).await });
        parts.spawn(async move {
            heartbeat::run(&beats, &beating, HEARTBEAT, std::future::pending()).await;
        });
        Live { calls, stop, shared, _parts: parts }
    }

    fn context(&self, stores: Stores, dice: Dice) -> Context {
        let handler = Handler::External(Arc::new(Tells(self.runs.clone())));
        let endless = Handler::InTransaction(Arc::new(Endless(self.runs.clone())));
        let registry = Registry::builder()
            .handler("work", EntryOptions::default(), handler)
            .handler("endless", EntryOptions::default(), endless);
        Context {
            stores,
            registry: Arc::new(registry.build().unwrap()),
            handlers: tokio::runtime::Handle::current(),
            clock: self.clock,
            phase: Arc::new(Watched::new(Phase::Running)),
            stop: Stop::default(),
            progress: Progress::new(self.clock),
            health: Health::new(self.clock, &dice),
            beats: Beats::new(self.clock),
            counts: Counts::new(),
            limits: Limits {
                lease: LEASE,
                drain_grace: Arc::new(Watched::new(LEASE)),
                sweep: self.sweep,
                suspect_wait: self.suspect_wait,
                retention: Retention { succeeded: AGE, failed: AGE, letters: AGE, batch: 1 },
                prune_every: AGE,
                unknown_kind_give_up: AGE,
            },
            dice,
        }
    }

    /// The row says that another worker has the task.
    pub(crate) fn give_to_another(&self, task: &Task) {
        self.tables.edit(&task.id, |row| row.fence.0 += 1);
    }

    pub(crate) async fn until(&self, ms: u64) {
        sleep_until(self.start + Duration::from_millis(ms)).await;
    }
}

impl Live {
    /// Another queue takes all the room that this worker has, until the places are dropped.
    pub(crate) fn fill(&self, world: &World) -> Vec<Place> {
        self.occupy(world, ROOM - self.shared.in_flight())
    }

    /// Another queue has so many tasks in flight here, until the places are dropped.
    pub(crate) fn occupy(&self, world: &World, tasks: usize) -> Vec<Place> {
        let others = Slots::new(&self.shared, ROOM, world.clock);
        let delivery = |n| Delivery {
            queue: QueueName::new("other").unwrap(),
            entry: EntryId { ms: 1, seq: n },
            origin: Origin::Fresh,
            raw: entry_of_a_task(Shape::Plain),
        };
        (0..).map(delivery).take(tasks).filter_map(|delivery| others.take(&delivery)).collect()
    }
}

impl Holder {
    /// Its heartbeats, for so long.
    pub(crate) async fn beats_for(&self, world: &World, time: Duration) {
        let mut beats = tokio::time::interval_at(Instant::now(), HEARTBEAT);
        let until = Instant::now() + time;
        while beats.tick().await < until {
            self.queue.touch(&[(world.queue.clone(), self.entry)]).await.unwrap();
            self.leases.renew(std::slice::from_ref(&self.lock)).await.unwrap();
            self.ledger.renew(std::slice::from_ref(&self.held)).await.unwrap();
        }
    }

    /// Its last heartbeat: entry, lock and lease are renewed so many milliseconds after the start;
    /// it is killed with the last of the three.
    pub(crate) async fn beats_and_dies(&self, world: &World, [entry, lock, lease]: [u64; 3]) {
        let mut times = [entry, lock, lease];
        times.sort_unstable();
        for at in times {
            world.until(at).await;
            if at == entry {
                let touched = self.queue.touch(&[(world.queue.clone(), self.entry)]).await;
                assert_eq!(touched.unwrap(), [true]);
            }
            if at == lock {
                self.leases.renew(std::slice::from_ref(&self.lock)).await.unwrap();
            }
            if at == lease {
                self.ledger.renew(std::slice::from_ref(&self.held)).await.unwrap();
            }
        }
    }
}

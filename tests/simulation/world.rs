//! What all workers of a simulation share: stores, clocks, faults, the trace and the checker.

use std::fmt::Arguments;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_worker::clock::{BootInstant, Clock};
use queue_worker::domain::{QueueName, WorkerId};
use queue_worker::lease::memory::MemoryLocks;
use queue_worker::ledger::memory::MemoryTables;
use queue_worker::queue::memory::MemoryStreams;

use super::chance::Chance;
use super::checker::Checker;
use super::link::{POSTGRES_TIMEOUT, REDIS_TIMEOUT, Side};
use super::mutation::Mutation;
use super::workload::Workload;

/// The lease in Postgres, the locks' time to live and the minimal idle time.
pub(crate) const LEASE: Duration = Duration::from_secs(5);
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(1500);
pub(crate) const SWEEP: Duration = Duration::from_millis(500);
pub(crate) const MAX_CRASHES: u32 = 3;
pub(crate) const RELEASED_RECHECK: Duration = Duration::from_secs(8);
pub(crate) const UNKNOWN_GIVE_UP: Duration = Duration::from_secs(10);
pub(crate) const MAX_PAYLOAD: usize = 1_000;

/// A store that does not answer for a while.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outage {
    pub(crate) until: Duration,
    /// Whether calls hang until their deadline, or are refused at once.
    pub(crate) hangs: bool,
}

/// What goes wrong at the moment.
pub(crate) struct Faults {
    pub(crate) chance: Chance,
    pub(crate) slow: f64,
    pub(crate) lost: f64,
    pub(crate) refused: f64,
    pub(crate) redis: Outage,
    pub(crate) postgres: Outage,
    now: Duration,
}

impl Faults {
    /// How long a call waits for its refusal, if the store is away.
    pub(crate) fn outage(&mut self, side: Side) -> Option<Duration> {
        let (outage, deadline) = match side {
            Side::Redis => (self.redis, REDIS_TIMEOUT),
            Side::Postgres => (self.postgres, POSTGRES_TIMEOUT),
        };
        let away = self.now < outage.until;
        away.then(|| if outage.hangs { deadline } else { self.chance.ms(1, 20) })
    }
}

pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) tables: MemoryTables,
    pub(crate) streams: MemoryStreams,
    pub(crate) locks: MemoryLocks,
    pub(crate) queue: QueueName,
    pub(crate) workload: Workload,
    pub(crate) mutation: Option<Mutation>,
    faults: Mutex<Faults>,
    /// Workers that are frozen in a call, and until when.
    frozen: Mutex<Vec<(Duration, WorkerId)>>,
    trace: Mutex<Vec<String>>,
    checker: Mutex<Checker>,
}

impl World {
    pub(crate) fn new(seed: u64, mutation: Option<Mutation>) -> Arc<Self> {
        let clock = Clock::Tokio(tokio::time::Instant::now());
        let tables = MemoryTables::new(clock);
        let streams = MemoryStreams::new(clock);
        let locks = MemoryLocks::new(clock);
        let queue = QueueName::new("q").unwrap();
        let workload = Workload::new(seed, &queue);
        let mut chance = Chance::new(seed, 1);
        let faults = Faults {
            slow: chance.pick(&[0.0, 0.02, 0.1, 0.3]),
            lost: chance.pick(&[0.0, 0.0, 0.002, 0.01, 0.03]),
            refused: chance.pick(&[0.0, 0.0, 0.002, 0.01, 0.03]),
            redis: Outage::default(),
            postgres: Outage::default(),
            now: Duration::ZERO,
            chance,
        };
        let checker =
            Checker::new(tables.clone(), streams.clone(), locks.clone(), queue.clone(), &workload);
        Arc::new(Self {
            clock,
            tables,
            streams,
            locks,
            queue,
            workload,
            mutation,
            faults: Mutex::new(faults),
            frozen: Mutex::default(),
            trace: Mutex::default(),
            checker: Mutex::new(checker),
        })
    }

    pub(crate) fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Since the beginning.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now().saturating_since(BootInstant::from_boot(Duration::ZERO))
    }

    pub(crate) fn with_faults<T>(&self, act: impl FnOnce(&mut Faults) -> T) -> T {
        let mut faults = self.faults.lock().unwrap();
        faults.now = self.now();
        act(&mut faults)
    }

    /// A worker is to go on a while from now.
    pub(crate) fn thaw_in(&self, time: Duration, worker: WorkerId) {
        self.frozen.lock().unwrap().push((self.now() + time, worker));
    }

    /// The workers that go on now.
    pub(crate) fn thawing(&self) -> Vec<WorkerId> {
        let now = self.now();
        let mut frozen = self.frozen.lock().unwrap();
        frozen.extract_if(.., |(until, _)| *until <= now).map(|(_, worker)| worker).collect()
    }

    /// From here on every call is answered, in good time.
    pub(crate) fn end_faults(&self) {
        self.with_faults(|faults| {
            faults.slow = 0.0;
            faults.lost = 0.0;
            faults.refused = 0.0;
            faults.redis = Outage::default();
            faults.postgres = Outage::default();
        });
    }

    pub(crate) fn note(&self, worker: WorkerId, what: Arguments<'_>) {
        let ms = self.now().as_millis();
        let line = format!("{ms:>7} w{} {what}", worker.0.as_u128());
        self.trace.lock().unwrap().push(line);
    }

    pub(crate) fn note_world(&self, what: Arguments<'_>) {
        let line = format!("{:>7} -- {what}", self.now().as_millis());
        self.trace.lock().unwrap().push(line);
    }

    pub(crate) fn trace(&self) -> Vec<String> {
        self.trace.lock().unwrap().clone()
    }

    /// Lets the checker look at something.
    pub(crate) fn check<T>(&self, look: impl FnOnce(&mut Checker) -> T) -> T {
        let mut checker = self.checker.lock().unwrap();
        checker.set_now(self.now());
        look(&mut checker)
    }

    /// Lets the checker judge what was written since the last time.
    pub(crate) fn judge(&self) {
        self.check(Checker::judge);
    }
}

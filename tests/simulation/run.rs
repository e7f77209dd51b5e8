//! One simulation from its seed: a fleet of workers, a schedule of faults, and the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use queue_worker::domain::{Delivery, Origin, RawEntry, Task, WorkerId};
use queue_worker::protocol::drain::{Budget, Event};
use queue_worker::queue::codec;
use queue_worker::worker::dice::Dice;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::chance::Chance;
use super::checker::Tally;
use super::link::{Link, Mishap, Side};
use super::mutation::Mutation;
use super::plan::{Act, plan};
use super::worker::{Ending, Setup, live};
use super::world::{LEASE, MAX_PAYLOAD, Outage, World};

/// Every task has ended this long after the last fault. The slowest are those that nobody knows:
/// they wait up to a minute between two looks.
const BOUND: Duration = Duration::from_secs(240);
/// How often the simulation looks at its checker.
const LOOK: Duration = Duration::from_millis(200);
/// Every drain is over after this.
const EXIT: Duration = Duration::from_secs(60);
/// Consumers of dead workers are reaped after this.
const STALE: Duration = Duration::from_secs(601);

/// What a simulation has shown.
pub(crate) struct Outcome {
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) tally: Tally,
}

/// Runs one simulation on a runtime of its own, whose time is paused.
pub(crate) fn simulate(seed: u64, mutation: Option<Mutation>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async { Fleet::new(seed, mutation).run().await })
}

struct Running {
    link: Arc<Link>,
    orders: mpsc::UnboundedSender<Event>,
}

struct Fleet {
    seed: u64,
    world: Arc<World>,
    chance: Chance,
    schedule: BTreeMap<(Duration, usize), Act>,
    acts: usize,
    faults_end: Duration,
    slots: Vec<Option<Running>>,
    lives: JoinSet<(usize, Ending)>,
    born: u128,
}

impl Fleet {
    fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let world = World::new(seed, mutation);
        let mut chance = Chance::new(seed, 3);
        let slots = chance.number(2, 4);
        let mut fleet = Self {
            seed,
            world,
            faults_end: chance.ms(15_000, 30_000),
            chance,
            schedule: BTreeMap::new(),
            acts: 0,
            slots: (0..slots).map(|_| None).collect(),
            lives: JoinSet::new(),
            born: 0,
        };
        fleet.plan();
        fleet
    }

    fn at(&mut self, when: Duration, act: Act) {
        self.acts += 1;
        self.schedule.insert((when, self.acts), act);
    }

    fn plan(&mut self) {
        let arrivals = self.world.workload.arrivals.iter().map(|arrival| arrival.at).enumerate();
        for (number, when) in arrivals.collect::<Vec<_>>() {
            self.at(when, Act::Arrive(number));
        }
        for (when, act) in plan(&mut self.chance, self.slots.len(), self.faults_end) {
            self.at(when, act);
        }
    }

    async fn run(mut self) -> Outcome {
        let end = self.faults_end;
        self.until(|fleet| fleet.world.now() >= end && fleet.schedule.is_empty()).await;
        self.recover();
        let last = self.world.now() + BOUND;
        self.until(|fleet| {
            fleet.world.now() >= last || fleet.world.check(|checker| checker.is_done())
        })
        .await;
        if self.is_clean() && !self.world.check(|checker| checker.is_done()) {
            self.world.check(super::checker::Checker::too_late);
        }
        if self.is_clean() {
            self.wind_up().await;
        }
        let (violations, tally) =
            self.world.check(|checker| (checker.violations().to_vec(), checker.tally));
        Outcome { violations, trace: self.world.trace(), tally }
    }

    fn is_clean(&self) -> bool {
        self.world.check(|checker| checker.violations().is_empty())
    }

    /// Acts on the schedule and on workers that end, until `enough` or a violation.
    async fn until(&mut self, enough: impl Fn(&Self) -> bool) {
        while self.is_clean() && !enough(self) {
            let now = self.world.now();
            let next = self
                .schedule
                .first_key_value()
                .map_or(LOOK, |((when, _), _)| when.saturating_sub(now).min(LOOK));
            tokio::select! {
                biased;
                Some(ended) = self.lives.join_next() => {
                    let (slot, ending) = ended.expect("a worker does not panic");
                    self.ended(slot, ending);
                }
                () = sleep(next) => {}
            }
            self.world.judge();
            for worker in self.world.thawing() {
                let frozen = self.slots.iter().flatten().find(|r| r.link.worker == worker);
                frozen.inspect(|running| running.link.thaw());
            }
            while let Some(entry) = self.schedule.first_entry()
                && entry.key().0 <= self.world.now()
            {
                let act = entry.remove();
                self.act(act);
            }
        }
    }

    fn ended(&mut self, slot: usize, ending: Ending) {
        let Some(Running { link, .. }) = self.slots.get_mut(slot).and_then(Option::take) else {
            return;
        };
        self.world.note(link.worker, format_args!("has ended: {ending:?}"));
        if ending != Ending::Drained {
            self.world.check(|checker| checker.went(link.worker, ending == Ending::Crashed));
        }
        let most = if self.world.now() < self.faults_end { 6_000 } else { 1_000 };
        let when = self.world.now() + self.chance.ms(100, most);
        self.at(when, Act::Start(slot));
    }

    fn act(&mut self, act: Act) {
        let world = Arc::clone(&self.world);
        if !matches!(act, Act::Arrive(_)) {
            world.note_world(format_args!("{act:?}"));
        }
        match act {
            Act::Arrive(number) => self.add(world.workload.arrivals[number].raw.clone()),
            Act::Start(slot) => self.start(slot),
            Act::Kill(slot) => {
                if let Some(running) = &self.slots[slot] {
                    running.link.kill();
                }
            }
            Act::Freeze(slot, time) => {
                if let Some(running) = &self.slots[slot] {
                    let link = Arc::clone(&running.link);
                    link.freeze();
                    // Part of the fleet's lives, so that it is never cut off.
                    self.lives.spawn(async move {
                        sleep(time).await;
                        link.thaw();
                        (usize::MAX, Ending::Drained)
                    });
                }
            }
            Act::Order(slot, event) => {
                if let Some(running) = &self.slots[slot] {
                    let _ = running.orders.send(event);
                }
            }
            Act::JumpForward(by) => {
                world.tables.jump_forward(by);
                world.check(super::checker::Checker::jumped);
            }
            Act::JumpBack(by) => {
                world.tables.jump_back(by);
                world.check(super::checker::Checker::jumped);
            }
            Act::Outage(side, time, hangs) => {
                let outage = Outage { until: world.now() + time, hangs };
                world.with_faults(|faults| match side {
                    Side::Redis => faults.redis = outage,
                    Side::Postgres => faults.postgres = outage,
                });
            }
            Act::RestartPostgres(time) => {
                let until = world.now() + time;
                world.with_faults(|faults| faults.postgres = Outage { until, hangs: false });
                world.tables.restart_in(time);
            }
            Act::Flush => self.flush(),
            Act::Steal => self.steal(),
        }
    }

    /// Adds an entry, as a producer.
    fn add(&self, raw: RawEntry) {
        let world = &self.world;
        let delivery = Delivery {
            queue: world.queue.clone(),
            entry: world.streams.add(&world.queue, raw.clone()),
            origin: Origin::Fresh,
            raw,
        };
        let entry = delivery.entry;
        match codec::decode(&delivery, MAX_PAYLOAD) {
            Ok(Task { id, kind, lock_key, hash, .. }) => {
                world.note_world(format_args!("{entry} is {id} {kind} {lock_key:?} {hash:?}"));
            }
            Err(malformed) => world.note_world(format_args!("{entry} is {:?}", malformed.reason)),
        }
    }

    fn start(&mut self, slot: usize) {
        if self.slots[slot].is_some() {
            return;
        }
        self.born += 1;
        let worker = WorkerId(Uuid::from_u128(self.born));
        let faulty = self.world.now() < self.faults_end;
        let mishap = (faulty && self.chance.hit(0.4)).then(|| self.mishap());
        let link = Link::new(&self.world, worker, mishap);
        self.world.check(|checker| checker.starts_up(&link));
        let (orders, receiver) = mpsc::unbounded_channel();
        let setup = Setup {
            link: Arc::clone(&link),
            dice: Dice::seeded(self.seed ^ (u64::try_from(self.born).unwrap() << 40)),
            concurrency: self.chance.pick(&[1, 2, 4, 8]),
            knows_late: !faulty || self.chance.hit(0.3),
            budget: Budget {
                soft: self.chance.ms(0, 6_000),
                grace: self.chance.ms(1_000, 4_000),
                extension: Duration::ZERO,
            },
            orders: receiver,
        };
        self.world.note(worker, format_args!("starts in slot {slot}"));
        self.slots[slot] = Some(Running { link, orders });
        self.lives.spawn(async move { (slot, live(setup).await) });
    }

    fn mishap(&mut self) -> Mishap {
        let chance = &mut self.chance;
        Mishap {
            calls_left: chance.number(1, 300),
            before: chance.hit(0.5),
            freezes: chance.hit(0.6).then(|| chance.ms(500, 14_000)),
        }
    }

    /// Redis forgets everything. What no worker has ever claimed, its producer adds again.
    fn flush(&mut self) {
        let world = Arc::clone(&self.world);
        let entries = world.streams.entries(&world.queue);
        world.streams.flush();
        world.locks.flush();
        for (entry, raw) in entries {
            let (queue, origin) = (world.queue.clone(), Origin::Fresh);
            let delivery = Delivery { queue, entry, origin, raw: raw.clone() };
            let task = codec::decode(&delivery, MAX_PAYLOAD).ok();
            let claimed = task
                .filter(|task| world.tables.row(&task.id).is_some_and(|row| row.hash == task.hash));
            match claimed {
                Some(task) => {
                    world.note_world(format_args!("{entry} of {} is lost", task.id));
                }
                None => self.add(raw),
            }
        }
    }

    /// All pending entries can be taken over at once, whoever is busy with them.
    fn steal(&mut self) {
        let world = &self.world;
        for (entry, owner, _) in world.streams.pending(&world.queue) {
            world.streams.give(&world.queue, entry, owner, LEASE);
        }
    }

    /// The faults are over: everybody works again.
    fn recover(&mut self) {
        let world = Arc::clone(&self.world);
        world.note_world(format_args!("no more faults"));
        world.end_faults();
        for running in self.slots.iter().flatten() {
            running.link.spare();
            running.link.thaw();
            let _ = running.orders.send(Event::Continue);
        }
        for slot in 0..self.slots.len() {
            self.at(world.now(), Act::Start(slot));
        }
    }

    /// Everybody drains; after a while a last worker clears up what the dead have left.
    async fn wind_up(&mut self) {
        self.drain().await;
        sleep(STALE).await;
        self.start(0);
        sleep(Duration::from_secs(2)).await;
        self.drain().await;
        self.world.check(super::checker::Checker::finish);
    }

    async fn drain(&mut self) {
        for running in self.slots.iter().flatten() {
            let _ = running.orders.send(Event::Terminate);
        }
        while let Ok(Some(ended)) = timeout(EXIT, self.lives.join_next()).await {
            let (slot, ending) = ended.expect("a worker does not panic");
            if let Some(running) = self.slots.get_mut(slot).and_then(Option::take) {
                self.world.note(running.link.worker, format_args!("has ended: {ending:?}"));
            }
        }
        if !self.lives.is_empty() {
            self.world.check(super::checker::Checker::stays);
        }
    }
}

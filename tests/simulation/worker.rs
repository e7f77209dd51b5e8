//! One worker process: the production's fetcher, executor, heartbeat, maintenance and health over
//! the simulation's stores, and a small copy of the supervisor's loop.

use std::sync::Arc;
use std::time::Duration;

use queue_worker::ledger::Retention;
use queue_worker::protocol::drain::{Budget, Event, Phase};
use queue_worker::worker::counts::Counts;
use queue_worker::worker::dice::Dice;
use queue_worker::worker::fetcher::Fetcher;
use queue_worker::worker::health::Health;
use queue_worker::worker::heartbeat::{self, Beats};
use queue_worker::worker::maintenance::{Maintenance, STALE_CONSUMER};
use queue_worker::worker::progress::Progress;
use queue_worker::worker::shared::Shared;
use queue_worker::worker::slots::Slots;
use queue_worker::worker::stop::Stop;
use queue_worker::worker::watched::Watched;
use queue_worker::worker::{Context, Limits, Served};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::freeze::Freezable;
use super::handlers::registry;
use super::link::Link;
use super::stores::stores;
use super::world::{HEARTBEAT, LEASE, MAX_PAYLOAD, SWEEP, UNKNOWN_GIVE_UP};

/// How long a suspect waits before its worker starts nothing else.
const SUSPECT_WAIT: Duration = Duration::from_secs(4);
/// Longer than any simulation.
const AGE: Duration = Duration::from_secs(1_000_000);
/// What the parts have to end once the way out is over.
const LAST_MOMENTS: Duration = Duration::from_millis(500);

/// How a worker is made.
pub(crate) struct Setup {
    pub(crate) link: Arc<Link>,
    pub(crate) dice: Dice,
    pub(crate) concurrency: usize,
    pub(crate) knows_late: bool,
    pub(crate) budget: Budget,
    pub(crate) orders: mpsc::UnboundedReceiver<Event>,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Crashed,
    /// The drain's budget was spent.
    Abandoned,
    Drained,
}

/// Lives until it has drained or is killed.
pub(crate) async fn live(setup: Setup) -> Ending {
    let link = Arc::clone(&setup.link);
    tokio::select! {
        biased;
        () = link.died() => Ending::Crashed,
        ending = drain(setup) => ending,
    }
}

/// Lives until it has drained.
async fn drain(setup: Setup) -> Ending {
    let Setup { link, dice, concurrency, knows_late, budget, mut orders } = setup;
    let world = Arc::clone(&link.world);
    let clock = world.clock;
    let phase = Arc::new(Watched::new(Phase::Running));
    let stop = Stop::default();
    let context = Context {
        stores: stores(&link),
        registry: Arc::new(registry(&link, knows_late)),
        handlers: tokio::runtime::Handle::current(),
        clock,
        phase: Arc::clone(&phase),
        stop: stop.clone(),
        progress: Progress::new(clock),
        health: Health::new(clock, &dice),
        beats: Beats::new(clock),
        counts: Counts::new(),
        limits: Limits {
            lease: LEASE,
            sweep: SWEEP,
            suspect_wait: SUSPECT_WAIT,
            drain_grace: Arc::new(Watched::new(budget.grace)),
            unknown_kind_give_up: UNKNOWN_GIVE_UP,
            retention: Retention { succeeded: AGE, failed: AGE, letters: AGE, batch: 100 },
            prune_every: AGE,
        },
        dice,
    };
    let served = Served { name: world.queue.clone(), concurrency, max_payload: MAX_PAYLOAD };
    let slots = Slots::new(&Shared::new(100, 1_000_000), concurrency, clock);
    let mut fetchers = JoinSet::new();
    let fetcher = Fetcher::new(context.clone(), served, slots).run();
    fetchers.spawn(Freezable::new(&link, fetcher));
    let mut helpers = helpers(&context, &link);
    loop {
        let before = phase.get();
        if before.is_over() {
            break;
        }
        let event = tokio::select! {
            biased;
            Some(event) = orders.recv() => {
                link.gate().await;
                event
            }
            () = until(&link, before) => Event::Tick,
            ended = fetchers.join_next() => match ended {
                Some(ended) => {
                    ended.expect("a fetcher does not panic");
                    continue;
                }
                None => Event::Idle,
            }
        };
        let after = before.on(event, clock.now(), budget);
        if after != before {
            world.note(link.worker, format_args!("{event:?}: {after:?}"));
            stop.publish(after);
            phase.update(|phase| *phase = after);
        }
    }
    let ended =
        tokio::time::timeout(LAST_MOMENTS, async { while fetchers.join_next().await.is_some() {} });
    let _ = ended.await;
    helpers.abort_all();
    let reap = context.stores.queue.reap_consumers(&world.queue, STALE_CONSUMER);
    let _ = tokio::time::timeout(LAST_MOMENTS, reap).await;
    let drained = phase.get() == Phase::Stopped;
    if drained {
        world.check(|checker| checker.exits(link.worker));
    }
    link.kill();
    if drained { Ending::Drained } else { Ending::Abandoned }
}

fn helpers(context: &Context, link: &Arc<Link>) -> JoinSet<()> {
    let mut helpers = JoinSet::new();
    let names = vec![link.world.queue.clone()];
    let maintenance = Maintenance::new(context.clone(), names).run();
    helpers.spawn(Freezable::new(link, maintenance));
    let (health, own) = (Arc::clone(&context.health), context.stores.clone());
    helpers.spawn(Freezable::new(link, async move { health.watch(&own).await }));
    let (beats, own) = (Arc::clone(&context.beats), stores(link));
    let beat = async move {
        heartbeat::run(&beats, &own, HEARTBEAT, std::future::pending()).await;
    };
    helpers.spawn(Freezable::new(link, beat));
    helpers
}

/// Waits for the phase's deadline, and for the worker to thaw.
async fn until(link: &Link, phase: Phase) {
    match phase.next_deadline() {
        Some(deadline) => {
            tokio::time::sleep(deadline.saturating_since(link.world.clock.now())).await;
            link.gate().await;
        }
        None => std::future::pending().await,
    }
}

//! From the first line of `run` to the exit: start in order, one event at a time, stop in reverse.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::build::{self, BuildError};
use super::confinement::Confinement;
use super::marker::Marker;
use super::reload::Reloader;
use super::signals::{Request, Requests};
use super::status;
use super::systemd::Notifier;
use super::web;
use crate::clock::{BootInstant, Clock};
use crate::config::Config;
use crate::domain::WorkerId;
use crate::handler::registry::Registry;
use crate::protocol::drain::{Budget, Event, Phase};
use crate::telemetry::LogHandle;
use crate::web::{Server, Vitals};
use crate::worker::counts::Counts;
use crate::worker::dice::Dice;
use crate::worker::fetcher::Fetcher;
use crate::worker::health::Health;
use crate::worker::heartbeat::{self, Beats};
use crate::worker::maintenance::{Maintenance, STALE_CONSUMER};
use crate::worker::progress::Progress;
use crate::worker::slots::{Shared, Slots};
use crate::worker::stop::Stop;
use crate::worker::watched::Watched;
use crate::worker::{Context, Served, Stores};

/// How often the status line is renewed and, without a watchdog, the loop comes round.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// How often processes that escaped from their tasks are looked for.
const SWEEP_ORPHANS_EVERY: Duration = Duration::from_secs(5);

/// How long the parts have to end once the way out is over.
const LAST_MOMENTS: Duration = Duration::from_millis(250);

/// What the process starts from.
pub struct Startup {
    /// The configuration, checked.
    pub config: Config,
    /// Where it came from, for a reload.
    pub config_path: PathBuf,
    /// Handlers registered in code; those of the configuration are added.
    pub native: Registry,
    /// Changes the log level on a reload.
    pub log: Option<LogHandle>,
}

/// The process could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The operating system refused something that the worker cannot do without.
    #[error("failed to {what}: {source}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// A store cannot be built.
    #[error(transparent)]
    Store(#[from] BuildError),
    /// A part of the worker died of a bug; without it the others would go on for nothing, so the
    /// process ends, and whoever supervises it starts it anew.
    #[error("a part of the worker died ({0}); please report this")]
    Died(String),
    /// A handler cannot be built: which, and the remedy.
    #[error("{0}")]
    Handlers(String),
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

/// A spawn holds its thread for some 0.3 ms, so the default is more threads than cores.
fn handler_threads(configured: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if configured > 0 { configured } else { (2 * cores).max(4) }
}

/// Runs a worker until it has drained. Blocks the calling thread, which coordinates.
pub fn run(startup: Startup) -> Result<(), StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("start the coordinating runtime"))?;
    let handlers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(handler_threads(startup.config.worker.threads))
        .thread_name("handler")
        .enable_all()
        .build()
        .map_err(system("start the handlers' threads"))?;
    let threads = handlers.handle().clone();
    let ended = runtime.block_on(async { Life::start(startup, threads)?.run().await });
    // A native handler that neither awaits nor returns must not hold up the exit.
    handlers.shutdown_background();
    ended
}

/// The running process.
struct Life {
    clock: Clock,
    requests: Requests,
    notifier: Notifier,
    phase: Arc<Watched<Phase>>,
    stop: Stop,
    budget: Budget,
    health: Arc<Health>,
    beats: Arc<Beats>,
    shared: Arc<Shared>,
    stores: Stores,
    queues: Vec<(Served, Arc<Slots>, Progress)>,
    context: Context,
    marker: Option<Marker>,
    reloader: Reloader,
    heartbeat: Heartbeat,
    vitals: Vitals,
    web: Option<Server>,
}

/// The heartbeat's thread, and how to end it.
struct Heartbeat {
    thread: Option<std::thread::JoinHandle<()>>,
    end: Option<oneshot::Sender<()>>,
}

impl Life {
    fn start(startup: Startup, handlers: tokio::runtime::Handle) -> Result<Self, StartError> {
        let Startup { config, config_path, native, log } = startup;
        let requests = Requests::listen().map_err(system("listen for signals"))?;
        crate::handler::exec::become_reaper().map_err(system("become the reaper of children"))?;
        let clock = Clock::System;
        let worker = WorkerId::random();
        tracing::info!(
            "queue-worker {} starts as {worker}, pid {}",
            env!("CARGO_PKG_VERSION"),
            std::process::id()
        );
        let confinement = Arc::new(Confinement::take_over());
        let registry = Arc::new(super::handlers::registry(&native, &config, &confinement)?);
        let beats = Beats::new(clock);
        let heartbeat = spawn_heartbeat(&config, worker, &beats)?;
        let stores = build::stores(&config, worker, clock)?;
        let phase = Arc::new(Watched::new(Phase::Running));
        let stop = Stop::default();
        let dice = Dice::Thread;
        let health = Health::new(clock, &dice);
        let shared = Shared::new(config.worker.max_in_flight, config.worker.payload_budget.bytes());
        let counts = Counts::new();
        let context = Context {
            stores: stores.clone(),
            registry: Arc::clone(&registry),
            handlers,
            clock,
            phase: Arc::clone(&phase),
            stop: stop.clone(),
            progress: Progress::new(clock),
            health: Arc::clone(&health),
            beats: Arc::clone(&beats),
            counts: Arc::clone(&counts),
            limits: build::limits(&config),
            dice,
        };
        let queues: Vec<_> = build::served(&config)
            .into_iter()
            .map(|served| {
                let slots = Slots::new(&shared, served.concurrency, clock);
                (served, slots, Progress::new(clock))
            })
            .collect();
        let vitals = web::vitals(&context, &queues);
        let web = web::start(&config, &vitals, &queues, counts);
        // Last: an attempt to start that failed leaves nothing behind to be told of.
        let marker = set_marker(&config, worker, clock);
        Ok(Self {
            clock,
            requests,
            notifier: Notifier::default(),
            phase,
            stop,
            budget: build::budget(&config),
            health,
            beats,
            shared,
            stores,
            queues,
            context,
            marker,
            reloader: Reloader { config, path: config_path, native, registry, confinement, log },
            heartbeat,
            vitals,
            web,
        })
    }

    /// One event at a time until the way out is over.
    async fn run(mut self) -> Result<(), StartError> {
        let mut helpers = self.start_helpers();
        let mut fetchers = self.start_fetchers();
        Notifier::ready();
        let mut ticks = tokio::time::interval(
            Notifier::watchdog_interval().map_or(STATUS_EVERY, |limit| limit.min(STATUS_EVERY)),
        );
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let phase = loop {
            self.vitals.coordinator.came_round();
            let phase = self.phase.get();
            if phase.is_over() {
                break phase;
            }
            let event = tokio::select! {
                biased;
                request = self.requests.next() => match request {
                    Request::Drain(event) => event,
                    Request::Reload => {
                        self.reload();
                        continue;
                    }
                },
                () = until(self.clock, phase.next_deadline()) => Event::Tick,
                ended = fetchers.join_next() => match ended {
                    Some(ended) => {
                        ended.map_err(|error| StartError::Died(error.to_string()))?;
                        continue;
                    }
                    None => Event::Idle,
                },
                Some(ended) = helpers.join_next() => {
                    ended.map_err(|error| StartError::Died(error.to_string()))?;
                    continue;
                }
                _ = ticks.tick() => {
                    self.tick();
                    Event::Tick
                }
            };
            self.on(event);
        };
        self.end(phase, &mut helpers, &mut fetchers).await;
        Ok(())
    }

    fn on(&mut self, event: Event) {
        let before = self.phase.get();
        let phase = before.on(event, self.clock.now(), self.budget);
        if phase == before {
            return;
        }
        if event == Event::Terminate && !matches!(before, Phase::Draining { .. }) {
            Notifier::stopping();
        }
        self.stop.publish(phase);
        self.phase.replace(phase);
        let status = status::line(phase, &self.beats, &self.health, self.clock);
        tracing::info!("{}", status::transition(event, phase, self.shared.in_flight()));
        self.notifier.status(status);
    }

    fn tick(&mut self) {
        let phase = self.phase.get();
        self.notifier.status(status::line(phase, &self.beats, &self.health, self.clock));
        if self.vitals.stuck().is_none() {
            Notifier::watchdog();
        }
    }

    fn reload(&mut self) {
        Notifier::reloading();
        if let Some(config) = self.reloader.reload() {
            self.budget = build::budget(config);
            for served in build::served(config) {
                for (_, slots, _) in self.queues.iter().filter(|(q, _, _)| q.name == served.name) {
                    slots.set_concurrency(served.concurrency);
                }
            }
        }
        Notifier::ready();
    }

    fn start_fetchers(&self) -> JoinSet<()> {
        let mut fetchers = JoinSet::new();
        for (served, slots, progress) in &self.queues {
            let context = Context { progress: progress.clone(), ..self.context.clone() };
            fetchers.spawn(Fetcher::new(context, served.clone(), Arc::clone(slots)).run());
        }
        fetchers
    }

    fn start_helpers(&self) -> JoinSet<()> {
        let mut helpers = JoinSet::new();
        let names = self.queues.iter().map(|(served, _, _)| served.name.clone()).collect();
        helpers.spawn(Maintenance::new(self.context.clone(), names).run());
        let (health, stores) = (Arc::clone(&self.health), self.stores.clone());
        helpers.spawn(async move { health.watch(&stores).await });
        helpers.spawn(sweep_orphans(Arc::clone(&self.reloader.confinement)));
        let (health, count) = (Arc::clone(&self.health), self.queues.len());
        helpers.spawn(async move {
            health.until_ready().await;
            tracing::info!("both stores answer: pulling from {count} queues");
        });
        helpers
    }

    /// The way out is over: in reverse, each part with a bound.
    async fn end(mut self, phase: Phase, helpers: &mut JoinSet<()>, fetchers: &mut JoinSet<()>) {
        let _ = tokio::time::timeout(LAST_MOMENTS, async {
            while fetchers.join_next().await.is_some() {}
        })
        .await;
        fetchers.abort_all();
        helpers.abort_all();
        if let Some(end) = self.heartbeat.end.take() {
            let _ = end.send(());
        }
        let reaped = tokio::time::timeout(LAST_MOMENTS, self.leave_the_groups()).await;
        if reaped.is_err() {
            tracing::debug!("the consumers stay behind; another worker reaps them");
        }
        if let Some(thread) = self.heartbeat.thread.take()
            && thread.is_finished()
        {
            let _ = thread.join();
        }
        crate::handler::exec::sweep();
        self.reloader.confinement.sweep();
        if phase == Phase::Stopped {
            if let Some(marker) = self.marker.take() {
                marker.clear();
            }
            tracing::info!("drained, nothing left behind");
        } else {
            tracing::warn!(
                "the drain's budget is spent with {} tasks in hand; other workers take them over \
                 when their leases end",
                self.shared.in_flight()
            );
        }
        self.notifier.status("stopped".to_owned());
        if let Some(web) = self.web.take() {
            web.end();
        }
    }

    async fn leave_the_groups(&self) {
        for (served, _, _) in &self.queues {
            let _ = self.stores.queue.reap_consumers(&served.name, STALE_CONSUMER).await;
        }
    }
}

/// Sleeps until the deadline; for ever where there is none.
async fn until(clock: Clock, deadline: Option<BootInstant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.saturating_since(clock.now())).await,
        None => std::future::pending().await,
    }
}

/// Kills what escaped from the programs of tasks.
async fn sweep_orphans(confinement: Arc<Confinement>) {
    let mut ticks = tokio::time::interval(SWEEP_ORPHANS_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let swept = crate::handler::exec::sweep();
        confinement.sweep();
        if swept.killed > 0 {
            tracing::warn!("killed {} processes that tasks had left behind", swept.killed);
        }
    }
}

fn set_marker(config: &Config, worker: WorkerId, clock: Clock) -> Option<Marker> {
    let folder = &config.worker.state_dir;
    match Marker::set(folder, worker, clock.wall_ms()) {
        Ok((marker, None)) => Some(marker),
        Ok((marker, Some(left))) => {
            tracing::warn!(
                "the last process (pid {}, worker {}) ended without draining: killed, crashed, or \
                 cut off by TimeoutStopSec; its tasks are taken over when their leases end",
                left.pid,
                left.worker
            );
            Some(marker)
        }
        Err(error) => {
            tracing::warn!(
                "{}: {error}; an unclean end will not be told at the next start (set \
                 worker.state_dir to a folder of this worker's own)",
                folder.display()
            );
            None
        }
    }
}

fn spawn_heartbeat(
    config: &Config,
    worker: WorkerId,
    beats: &Arc<Beats>,
) -> Result<Heartbeat, StartError> {
    let (end, ended) = oneshot::channel::<()>();
    let (config, beats) = (config.clone(), Arc::clone(beats));
    let thread = std::thread::Builder::new()
        .name("heartbeat".to_owned())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else {
                tracing::error!("the heartbeat's runtime did not start; the watchdog will tell");
                return;
            };
            runtime.block_on(async {
                // The coordinator built the same ones before: this cannot fail.
                let Ok(stores) = build::stores(&config, worker, Clock::System) else { return };
                let stop = async { drop(ended.await) };
                heartbeat::run(&beats, &stores, config.lease.heartbeat, stop).await;
            });
        })
        .map_err(system("start the heartbeat's thread"))?;
    Ok(Heartbeat { thread: Some(thread), end: Some(end) })
}

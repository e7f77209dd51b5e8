//! From a checked configuration to a running [`Life`]: the runtimes, then the parts in order.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::allowance::{Allowance, UnitLimit};
use super::backlog::BacklogGauges;
use super::build::{self, BuildError};
use super::commits::Commits;
use super::confinement::Confinement;
use super::heartbeat::Heartbeat;
use super::life::Life;
use super::marker::Marker;
use super::pace::Pace;
use super::reload::Reloader;
use super::runtime::run_to_end;
use super::signals::Requests;
use super::systemd::Notifier;
use super::web;
use crate::clock::Clock;
use crate::config::Config;
use crate::domain::WorkerId;
use crate::handler::registry::Registry;
use crate::protocol::drain::Phase;
use crate::telemetry::LogHandle;
use crate::worker::Context;
use crate::worker::counts::Counts;
use crate::worker::dice::Dice;
use crate::worker::health::Health;
use crate::worker::heartbeat::Beats;
use crate::worker::progress::Progress;
use crate::worker::shared::Shared;
use crate::worker::slots::Slots;
use crate::worker::stop::Stop;
use crate::worker::watched::Watched;

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

pub(super) fn system(what: &'static str) -> impl Fn(std::io::Error) -> StartError {
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
    let ended = run_to_end(runtime, async {
        // First of all: a signal from here on is obeyed.
        let requests = Requests::listen().map_err(system("listen for signals"))?;
        let unit = UnitLimit::ask().await;
        start(startup, requests, unit, threads)?.run().await
    });
    // A native handler that neither awaits nor returns must not hold up the exit.
    handlers.shutdown_background();
    ended
}

fn start(
    startup: Startup,
    requests: Requests,
    unit: UnitLimit,
    handlers: tokio::runtime::Handle,
) -> Result<Life, StartError> {
    let Startup { config, config_path, native, log } = startup;
    crate::handler::exec::become_reaper().map_err(system("become the reaper of children"))?;
    let clock = Clock::System;
    let worker = WorkerId::random();
    tracing::info!(
        "queue-worker {} starts as {worker}, pid {}",
        env!("CARGO_PKG_VERSION"),
        std::process::id()
    );
    let allowance = Allowance::of(&config.drain, &unit);
    tracing::info!("{}", allowance.told());
    let confinement = Arc::new(Confinement::take_over());
    let commits = Arc::new(Commits::new(&config, clock));
    let registry = super::handlers::registry(&native, &config, &confinement, &commits)?;
    let registry = Arc::new(registry);
    let beats = Beats::new(clock);
    let heartbeat = Heartbeat::start(&config, worker, &beats)?;
    let dice = Dice::Thread;
    let build::Built { stores, redis, postgres } = build::stores(&config, worker, clock)?;
    let context = Context {
        stores,
        registry: Arc::clone(&registry),
        handlers,
        clock,
        phase: Arc::new(Watched::new(Phase::Running)),
        stop: Stop::default(),
        progress: Progress::new(clock),
        health: Health::new(clock, &dice),
        beats,
        counts: Counts::new(),
        limits: build::limits(&config, allowance.parts.kill_after),
        dice,
    };
    let shared = Shared::new(config.worker.max_in_flight, config.worker.payload_budget.bytes());
    let queues: Vec<_> = build::served(&config)
        .into_iter()
        .map(|served| {
            let slots = Slots::new(&shared, served.concurrency, clock);
            (served, slots, Progress::new(clock))
        })
        .collect();
    let vitals = web::vitals(&context, &queues);
    let web = web::start(&config, &vitals, &queues, Arc::clone(&context.counts));
    let backlog = web.is_some().then(|| {
        let names = queues.iter().map(|(served, _, _)| served.name.clone()).collect();
        BacklogGauges::new(context.counts.registry(), names, redis, postgres, clock)
    });
    // Last: an attempt to start that failed leaves nothing behind to be told of.
    let marker = Marker::leave(&config.worker.state_dir, worker, clock, &allowance);
    Ok(Life {
        requests,
        notifier: Notifier::new(),
        unit,
        allowance,
        questions: JoinSet::new(),
        pace: Pace::default(),
        shared,
        queues,
        context,
        marker,
        reloader: Reloader {
            config,
            pending: Vec::new(),
            path: config_path,
            native,
            registry,
            confinement,
            commits,
            log,
        },
        heartbeat,
        vitals,
        web,
        backlog,
    })
}

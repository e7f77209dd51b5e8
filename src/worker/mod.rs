//! Rank 4: what pulls tasks and runs them.
//!
//! - [`executor`]: one delivery's way, top to bottom; with `claiming`, its lock and its claim,
//!   `running`, a handler from its permit to its end, `performing`, an effect in one commit with its
//!   success, and `parting`, the way out;
//! - [`fetcher`]: one loop per queue that turns free places into deliveries;
//! - `left_behind`: which entries waited for a lock to end by itself;
//! - [`heartbeat`]: keeps what runs alive, on a thread of its own;
//! - [`maintenance`]: promotes due tasks, reaps consumers;
//! - [`health`]: which store answers, and a probe of the one that does not;
//! - [`slots`]: who of a queue is in flight, and how much more may be;
//! - [`shared`]: what all queues share of that;
//! - [`suspects`]: where tasks that crashed workers wait until they can run alone;
//! - [`counts`]: what is counted of all that;
//! - [`stop`]: the phase of the drain as the executor feels it;
//! - [`progress`]: what the watchdog is tied to;
//! - [`dice`] and [`watched`]: chance, and values to wait for, that a simulation can replay.

mod claiming;
pub mod counts;
pub mod dice;
pub mod executor;
pub mod fetcher;
#[cfg(test)]
mod fixtures;
pub mod health;
pub mod heartbeat;
mod left_behind;
pub mod maintenance;
mod outcome_log;
mod parting;
mod performing;
pub mod progress;
mod running;
pub mod shared;
pub mod slots;
pub mod stop;
pub mod suspects;
pub mod watched;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::domain::QueueName;
use crate::handler::registry::Registry;
use crate::lease::LeaseStore;
use crate::ledger::{Ledger, Retention};
use crate::protocol::drain::Phase;
use crate::queue::Queue;

/// The three stores that a worker stands on.
#[derive(Clone)]
pub struct Stores {
    /// Ready work.
    pub queue: Arc<dyn Queue>,
    /// Heartbeat leases.
    pub leases: Arc<dyn LeaseStore>,
    /// The authority.
    pub ledger: Arc<dyn Ledger>,
}

/// What every part of the worker is given.
#[derive(Clone)]
pub struct Context {
    /// The stores, for all but the heartbeat.
    pub stores: Stores,
    /// Kinds and their handlers.
    pub registry: Arc<Registry>,
    /// Where handlers run: never on the runtime of the executor.
    pub handlers: tokio::runtime::Handle,
    /// The time.
    pub clock: Clock,
    /// Where the process stands between running and stopped.
    pub phase: Arc<watched::Watched<Phase>>,
    /// The same as tokens.
    pub stop: stop::Stop,
    /// The mark of the loop that this context was made for.
    pub progress: progress::Progress,
    /// Which stores answer.
    pub health: Arc<health::Health>,
    /// What runs, as the heartbeat sees it.
    pub beats: Arc<heartbeat::Beats>,
    /// What is counted.
    pub counts: Arc<counts::Counts>,
    /// Times and limits.
    pub limits: Limits,
    /// Where jitter comes from.
    pub dice: dice::Dice,
}

/// Times and limits of a worker.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The lease in Postgres, and the lock's time to live in Redis.
    pub lease: Duration,
    /// How long a handler that a drain has interrupted has at most before it is dropped; a reload
    /// may change it.
    pub drain_grace: Arc<watched::Watched<Duration>>,
    /// Between two looks for orphans and due tasks, before jitter.
    pub sweep: Duration,
    /// How long a suspect waits before the worker starts nothing else.
    pub suspect_wait: Duration,
    /// How long what has ended is remembered.
    pub retention: Retention,
    /// How often what has outlived that is looked for.
    pub prune_every: Duration,
    /// How long an unknown kind waits for a worker that knows it.
    pub unknown_kind_give_up: Duration,
}

/// One queue that this worker serves.
#[derive(Debug, Clone)]
pub struct Served {
    /// Its name.
    pub name: QueueName,
    /// How many handlers run at a time.
    pub concurrency: usize,
    /// The largest payload, in bytes.
    pub max_payload: usize,
}

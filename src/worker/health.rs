//! Which store answers. The worker pulls only while both do.
//!
//! A failed call *doubts* a store; a probe then decides whether it is down, with backoff until it
//! answers again. So a single late reply costs one probe and no log line, and an outage costs one
//! line when it begins, one for each new reason, and one when it ends, however many tasks it meets.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Stores;
use super::dice::Dice;
use super::watched::Watched;
use crate::clock::{BootInstant, Clock};
use crate::protocol::backoff::Backoff;

/// Whether a store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It does.
    Up,
    /// A call failed; a probe is under way.
    Doubted,
    /// The probe failed too.
    Down {
        /// Since when.
        since: BootInstant,
        /// The probe's error.
        reason: String,
        /// Failed probes in a row.
        probes: u32,
    },
}

/// One store's health.
#[derive(Debug)]
pub struct Store {
    name: &'static str,
    clock: Clock,
    dice: Dice,
    state: Watched<State>,
}

impl Store {
    fn new(name: &'static str, clock: Clock, dice: Dice) -> Self {
        Self { name, clock, dice, state: Watched::new(State::Doubted) }
    }

    /// A call failed with `error`: the next probe decides. It is told at debug level only.
    pub fn doubt(&self, error: &dyn Display) {
        tracing::debug!("{}: {error}", self.name);
        self.state.update_if(|state| {
            let up = *state == State::Up;
            if up {
                *state = State::Doubted;
            }
            up
        });
    }

    /// The state now.
    pub fn state(&self) -> State {
        self.state.get()
    }

    fn probed(&self, answer: Result<(), String>) {
        self.state.update(|state| {
            *state = match (answer, &*state) {
                (Ok(()), State::Down { since, probes, .. }) => {
                    let away = self.clock.now().saturating_since(*since);
                    tracing::info!("{} is back after {away:.1?} and {probes} probes", self.name);
                    State::Up
                }
                (Ok(()), State::Up | State::Doubted) => State::Up,
                (Err(reason), State::Down { since, reason: old, probes }) => {
                    if reason != *old {
                        tracing::warn!("{} still away: {reason}", self.name);
                    }
                    State::Down { since: *since, reason, probes: probes + 1 }
                }
                (Err(reason), State::Up | State::Doubted) => {
                    tracing::warn!("{} is away, no tasks are pulled: {reason}", self.name);
                    State::Down { since: self.clock.now(), reason, probes: 1 }
                }
            };
        });
    }

    async fn until_up(&self) {
        self.state.wait_for(|state| *state == State::Up).await;
    }

    /// Probes whenever the store is not up; never ends.
    async fn watch<F, Fut, E>(&self, probe: F)
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: Display,
    {
        loop {
            self.state.wait_for(|state| *state != State::Up).await;
            self.probed(probe().await.map_err(|error| error.to_string()));
            let probes = match self.state.get() {
                State::Up | State::Doubted => 1,
                State::Down { probes, .. } => probes,
            };
            tokio::time::sleep(Backoff::STORE.wait(probes, self.dice.fraction())).await;
        }
    }
}

/// The health of both stores.
#[derive(Debug)]
pub struct Health {
    /// The stream and the locks.
    pub redis: Store,
    /// The ledger.
    pub postgres: Store,
}

impl Health {
    /// Both doubted: nothing is known yet.
    pub fn new(clock: Clock, dice: &Dice) -> Arc<Self> {
        Arc::new(Self {
            redis: Store::new("redis", clock, dice.clone()),
            postgres: Store::new("postgres", clock, dice.clone()),
        })
    }

    /// Whether both are up.
    pub fn is_ready(&self) -> bool {
        self.redis.state() == State::Up && self.postgres.state() == State::Up
    }

    /// Waits until both are up.
    pub async fn until_ready(&self) {
        while !self.is_ready() {
            tokio::join!(self.redis.until_up(), self.postgres.until_up());
        }
    }

    /// Why the worker does not pull, if it is for a store.
    pub fn complaint(&self) -> Option<String> {
        let of = |store: &Store| match store.state() {
            State::Up => None,
            State::Doubted => Some(format!("connecting to {}", store.name)),
            State::Down { reason, .. } => Some(format!("waiting for {}: {reason}", store.name)),
        };
        of(&self.postgres).or_else(|| of(&self.redis))
    }

    /// Probes the stores whenever one is in doubt; never ends.
    pub async fn watch(&self, stores: &Stores) {
        tokio::join!(
            self.redis.watch(|| stores.queue.check()),
            self.postgres.watch(|| stores.ledger.check()),
        );
    }
}

/// How long a probe may take before it counts as failed is the store's own call deadline; this is
/// the pause that a fetch makes after an error that no probe can see (a refused command).
pub const AFTER_REFUSAL: Duration = Duration::from_secs(1);

//! One store: up, doubted or down, and what it refuses meanwhile.
//!
//! Only a probe says that a store is down or up again; a failed call merely asks for one. What is
//! logged is decided here, at the changes of the state.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::REMINDER;
use super::error::{StoreError, told};
use super::refusals::Refusals;
use crate::clock::{BootInstant, Clock};
use crate::connection::RedisError;
use crate::protocol::backoff::{self, Backoff};
use crate::worker::dice::Dice;
use crate::worker::watched::Watched;

/// How often it is looked whether a Redis that answers takes writes, before jitter.
const LOOK_AT_WRITES_EVERY: Duration = Duration::from_secs(5);

/// Between two such looks at least, also if writes are refused.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

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
        /// The last probe's error.
        reason: String,
        /// The error that was logged last, and when.
        told: (String, BootInstant),
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
    refusals: Mutex<Refusals>,
    /// Somebody's write was refused.
    write_refused: Notify,
    errors: AtomicU64,
    probes: AtomicU64,
}

impl Store {
    pub(super) fn new(name: &'static str, clock: Clock, dice: Dice) -> Self {
        Self {
            name,
            clock,
            dice,
            state: Watched::new(State::Doubted),
            refusals: Mutex::default(),
            write_refused: Notify::new(),
            errors: AtomicU64::new(0),
            probes: AtomicU64::new(0),
        }
    }

    /// A call failed with `error`: the next probe decides. It is told at debug level only, unless
    /// it is one that somebody has to mend and the probe does not meet it. A deadlock is one task's
    /// affair and does not stop the others.
    pub fn doubt(&self, error: &impl StoreError) {
        tracing::debug!("{}: {error}", self.name);
        self.errors.fetch_add(1, Ordering::Relaxed);
        if !error.is_of_the_store() {
            return;
        }
        if !error.is_transient() {
            self.refusals().unexplained = Some(told(error));
        }
        self.state.update_if(|state| {
            let up = *state == State::Up;
            if up {
                *state = State::Doubted;
            }
            up
        });
    }

    /// A write was refused that the caller can do without: it is looked whether all are.
    pub fn write_refused(&self) {
        self.write_refused.notify_one();
    }

    /// `redis`, `postgres`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How many calls have failed.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// How often it was probed.
    pub fn probes(&self) -> u64 {
        self.probes.load(Ordering::Relaxed)
    }

    /// The state now.
    pub fn state(&self) -> State {
        self.state.get()
    }

    /// What the store refused in the last seconds although it is up.
    pub fn refusal(&self) -> Option<String> {
        self.refusals().recent(self.clock.now())
    }

    /// What it refuses all the time although it is up: every write, or something for a while now.
    pub fn lasting_refusal(&self) -> Option<String> {
        self.refusals().lasting(self.clock.now())
    }

    /// For how long it has been down, if it is.
    pub(super) fn away_for(&self) -> Option<Duration> {
        match self.state() {
            State::Down { since, .. } => Some(self.clock.now().saturating_since(since)),
            State::Up | State::Doubted => None,
        }
    }

    /// What a look has found: whether the store takes writes.
    fn looked(&self, writes: Result<(), String>) {
        let (refused, now) = (writes.is_err(), self.clock.now());
        match self.refusals().writes(writes, now) {
            Some(news) if refused => {
                tracing::warn!("{} answers, but takes no writes: {news}", self.name);
            }
            Some(news) => tracing::info!("{} takes writes again after {news}", self.name),
            None => {}
        }
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn probed(&self, answer: Result<(), impl StoreError>) {
        self.probes.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.now();
        let error = match answer {
            Ok(()) => return self.answered(now),
            Err(error) => error,
        };
        self.refusals().unexplained = None;
        let reason = error.to_string();
        self.state.update(|state| {
            *state = match state {
                State::Down { since, told, probes, .. } => {
                    let due = !error.is_transient() || now.saturating_since(told.1) >= REMINDER;
                    if reason != told.0 && due {
                        tracing::warn!("{} still away: {reason}", self.name);
                        *told = (reason.clone(), now);
                    }
                    State::Down { since: *since, reason, told: told.clone(), probes: *probes + 1 }
                }
                State::Up | State::Doubted => {
                    tracing::warn!("{} is away, no tasks are pulled: {reason}", self.name);
                    State::Down { since: now, told: (reason.clone(), now), reason, probes: 1 }
                }
            };
        });
    }

    fn answered(&self, now: BootInstant) {
        if let Some(refusal) = self.refusals().remain(now) {
            tracing::warn!("{} answers, but work fails: {refusal}", self.name);
        }
        let before = self.state.replace(State::Up);
        if let State::Down { since, probes, .. } = before {
            let away = now.saturating_since(since);
            tracing::info!("{} is back after {away:.1?} and {probes} probes", self.name);
        }
    }

    /// Waits until a probe has found it up.
    pub async fn until_up(&self) {
        self.state.wait_for(|state| *state == State::Up).await;
    }

    /// Waits for the end of an outage, the present one or the next; mere doubts are none.
    pub async fn until_back(&self) {
        self.state.wait_for(|state| matches!(state, State::Down { .. })).await;
        self.until_up().await;
    }

    /// Probes whenever the store is not up; never ends.
    pub(super) async fn watch<F, Fut, E>(&self, probe: F)
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: StoreError,
    {
        loop {
            self.state.wait_for(|state| *state != State::Up).await;
            self.probed(probe().await);
            let probes = match self.state.get() {
                State::Up | State::Doubted => 1,
                State::Down { probes, .. } => probes,
            };
            tokio::time::sleep(Backoff::STORE.wait(probes, self.dice.fraction())).await;
        }
    }

    /// Looks now and then whether the store takes writes, while it is up; never ends.
    pub(super) async fn watch_writes<F, Fut>(&self, look: F)
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<(), RedisError>>,
    {
        loop {
            self.until_up().await;
            match look().await {
                Ok(()) => self.looked(Ok(())),
                Err(error @ RedisError::Refused { .. }) => self.looked(Err(told(&error))),
                Err(error) => self.doubt(&error),
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
            let pause = LOOK_AT_WRITES_EVERY;
            let pause = backoff::between(pause / 2, pause, self.dice.fraction());
            tokio::select! {
                biased;
                () = self.write_refused.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

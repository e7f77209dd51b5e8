//! Which store answers. The worker pulls only while both do.
//!
//! A failed call *doubts* a store; a probe then decides whether it is down, with backoff until it
//! answers again. So a single late reply costs one probe and no log line, and an outage costs one
//! line when it begins, one for each new reason that somebody has to mend, and one when it ends,
//! however many tasks it meets. A store that answers its probe and refuses the work itself (a right
//! that is missing, a key of another type) is not down, but it is told of, too. A Redis that is full
//! still gives work out, and ended tasks make room: the worker goes on, and is not ready.

use std::fmt::Display;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::Stores;
use super::dice::Dice;
use super::refusals::{self, Refusals};
use super::watched::Watched;
use crate::clock::{BootInstant, Clock};
use crate::connection::RedisError;
use crate::lease::LeaseError;
use crate::ledger::LedgerError;
use crate::protocol::backoff::{self, Backoff};

/// How often the same trouble is told again, and one that may mend itself at all.
pub(super) const REMINDER: Duration = Duration::from_secs(60);

/// How often it is looked whether a Redis that answers takes writes, before jitter.
const LOOK_AT_WRITES_EVERY: Duration = Duration::from_secs(5);

/// Between two such looks at least, also if writes are refused.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// An error of a store.
pub trait StoreError: Display {
    /// Whether the same call may succeed later without anybody's help.
    fn is_transient(&self) -> bool;

    /// Whether it says something about the store, and not only about the one call.
    fn is_of_the_store(&self) -> bool;

    /// What is to be done, where the error does not say it itself.
    fn remedy(&self) -> Option<&'static str> {
        None
    }
}

/// The error and its remedy.
fn told(error: &impl StoreError) -> String {
    match error.remedy() {
        Some(remedy) => format!("{error}; {remedy}"),
        None => error.to_string(),
    }
}

impl StoreError for RedisError {
    fn is_transient(&self) -> bool {
        Self::is_transient(self)
    }

    fn is_of_the_store(&self) -> bool {
        true
    }

    fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Refused { message, .. } => refusals::remedy(message),
            Self::Unavailable { .. }
            | Self::Replica { .. }
            | Self::Timeout { .. }
            | Self::Misconfigured { .. } => None,
        }
    }
}

impl StoreError for LeaseError {
    fn is_transient(&self) -> bool {
        Self::is_transient(self)
    }

    fn is_of_the_store(&self) -> bool {
        match self {
            Self::Redis(_) | Self::NoQuorum { .. } => true,
            Self::Spent { .. } => false,
        }
    }

    fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Redis(error) => error.remedy(),
            Self::NoQuorum { .. } | Self::Spent { .. } => None,
        }
    }
}

impl StoreError for LedgerError {
    fn is_transient(&self) -> bool {
        Self::is_transient(self)
    }

    fn is_of_the_store(&self) -> bool {
        match self {
            Self::Conflict { .. } => false,
            Self::Unavailable { .. }
            | Self::LoginRefused { .. }
            | Self::Schema { .. }
            | Self::Refused { .. } => true,
        }
    }
}

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
    fn new(name: &'static str, clock: Clock, dice: Dice) -> Self {
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

    async fn until_up(&self) {
        self.state.wait_for(|state| *state == State::Up).await;
    }

    /// Probes whenever the store is not up; never ends.
    async fn watch<F, Fut, E>(&self, probe: F)
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
}

/// The health of both stores.
#[derive(Debug)]
pub struct Health {
    /// The stream and the locks, also where other servers hold these.
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

    /// Each store.
    pub fn stores(&self) -> [&Store; 2] {
        [&self.redis, &self.postgres]
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

    /// Why the worker does not pull, if it is for a store: what is down before what is in doubt.
    pub fn complaint(&self) -> Option<String> {
        let stores = [&self.postgres, &self.redis];
        let down: Vec<String> = stores
            .iter()
            .filter_map(|store| match store.state() {
                State::Down { reason, .. } => Some(format!("waiting for {}: {reason}", store.name)),
                State::Up | State::Doubted => None,
            })
            .collect();
        if !down.is_empty() {
            return Some(down.join("; "));
        }
        let doubted = stores.iter().find(|store| store.state() == State::Doubted);
        doubted.map(|store| format!("connecting to {}", store.name))
    }

    /// For how long a store has been down; of two, the one that has been for longer.
    pub fn away_for(&self) -> Option<Duration> {
        let since = self.stores().into_iter().filter_map(|store| match store.state() {
            State::Down { since, .. } => Some(store.clock.now().saturating_since(since)),
            State::Up | State::Doubted => None,
        });
        since.max()
    }

    /// What a store refused in the last seconds although it is up.
    pub fn refusal(&self) -> Option<String> {
        self.postgres.refusal().or_else(|| self.redis.refusal())
    }

    /// What a store that is up refuses all the time: the worker pulls, and cannot do its work.
    pub fn lasting_refusal(&self) -> Option<String> {
        self.postgres.lasting_refusal().or_else(|| self.redis.lasting_refusal())
    }

    /// Looks now and then whether Redis takes writes, while it is up; never ends.
    async fn watch_writes(&self, stores: &Stores) {
        loop {
            self.redis.until_up().await;
            match stores.queue.check_writes().await {
                Ok(()) => self.redis.looked(Ok(())),
                Err(error @ RedisError::Refused { .. }) => {
                    self.redis.looked(Err(told(&error)));
                }
                Err(error) => self.redis.doubt(&error),
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
            let pause = LOOK_AT_WRITES_EVERY;
            let pause = backoff::between(pause / 2, pause, self.redis.dice.fraction());
            tokio::select! {
                biased;
                () = self.redis.write_refused.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Probes the stores whenever one is in doubt; never ends.
    pub async fn watch(&self, stores: &Stores) {
        tokio::join!(
            self.redis.watch(|| async {
                stores.queue.check().await?;
                stores.leases.check().await
            }),
            self.postgres.watch(|| stores.ledger.check()),
            self.watch_writes(stores),
        );
    }
}

/// How long a probe may take before it counts as failed is the store's own call deadline; this is
/// the pause that a fetch makes after an error that no probe can see (a refused command).
pub const AFTER_REFUSAL: Duration = Duration::from_secs(1);

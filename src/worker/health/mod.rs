//! Which store answers. The worker pulls only while both do.
//!
//! A failed call *doubts* a store; a probe then decides whether it is down, with backoff until it
//! answers again. So a single late reply costs one probe and no log line, and an outage costs one
//! line when it begins, one for each new reason that somebody has to mend, and one when it ends,
//! however many tasks it meets. A store that answers its probe and refuses the work itself (a right
//! that is missing, a key of another type) is not down, but it is told of, too. A Redis that is full
//! still gives work out, and ended tasks make room: the worker goes on, and is not ready.

mod error;
mod refusals;
mod store;

use std::sync::Arc;
use std::time::Duration;

use super::Stores;
use super::dice::Dice;
use crate::clock::Clock;

pub use error::StoreError;
pub use store::{State, Store};

/// How often the same trouble is told again, and one that may mend itself at all.
const REMINDER: Duration = Duration::from_secs(60);

/// How long a probe may take before it counts as failed is the store's own call deadline; this is
/// the pause that a fetch makes after an error that no probe can see (a refused command).
pub const AFTER_REFUSAL: Duration = Duration::from_secs(1);

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
                State::Down { reason, .. } => {
                    Some(format!("waiting for {}: {reason}", store.name()))
                }
                State::Up | State::Doubted => None,
            })
            .collect();
        if !down.is_empty() {
            return Some(down.join("; "));
        }
        let doubted = stores.iter().find(|store| store.state() == State::Doubted);
        doubted.map(|store| format!("connecting to {}", store.name()))
    }

    /// For how long a store has been down; of two, the one that has been for longer.
    pub fn away_for(&self) -> Option<Duration> {
        self.stores().into_iter().filter_map(Store::away_for).max()
    }

    /// What a store refused in the last seconds although it is up.
    pub fn refusal(&self) -> Option<String> {
        self.postgres.refusal().or_else(|| self.redis.refusal())
    }

    /// What a store that is up refuses all the time: the worker pulls, and cannot do its work.
    pub fn lasting_refusal(&self) -> Option<String> {
        self.postgres.lasting_refusal().or_else(|| self.redis.lasting_refusal())
    }

    /// Probes the stores whenever one is in doubt, and looks now and then whether Redis takes writes;
    /// never ends.
    pub async fn watch(&self, stores: &Stores) {
        tokio::join!(
            self.redis.watch(|| async {
                stores.queue.check().await?;
                stores.leases.check().await
            }),
            self.postgres.watch(|| stores.ledger.check()),
            self.redis.watch_writes(|| stores.queue.check_writes()),
        );
    }
}

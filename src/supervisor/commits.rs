//! The stores of tasks about commits: one set for a worker, however many kinds it has for them and
//! however often it is reloaded.
//!
//! They are made when the first such task runs, on the runtime of the handlers, since connections stay
//! on the runtime that makes them; and of the configuration of the start, like all stores.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::build::{self, BuildError};
use crate::clock::Clock;
use crate::config::Config;
use crate::handler::git::GitStores;

/// The stores of all kinds about commits.
pub(super) struct Commits {
    config: Config,
    clock: Clock,
    stores: Mutex<Option<GitStores>>,
}

impl Commits {
    /// Makes nothing yet.
    pub(super) fn new(config: &Config, clock: Clock) -> Self {
        Self { config: config.clone(), clock, stores: Mutex::default() }
    }

    /// How long a lock of a commit lives, and how often it is renewed.
    pub(super) fn lease(&self) -> (Duration, Duration) {
        (self.config.lease.ttl, self.config.lease.heartbeat)
    }

    /// The stores: the same at each call.
    pub(super) fn stores(&self) -> Result<GitStores, BuildError> {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stores) = &*stores {
            return Ok(stores.clone());
        }
        let made = build::git_stores(&self.config, self.clock)?;
        Ok(stores.insert(made).clone())
    }
}

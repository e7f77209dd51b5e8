//! Locks in memory, for simulations and tests only: they shut nobody else out.
//!
//! [`MemoryLocks`] are what all workers of a simulated world share, [`MemoryLeases`] is one worker's
//! way to them. They answer as the locks in Redis do, which the conformance suite proves, at once
//! and without ever losing an answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::{Acquired, LeaseError, LeaseStore, Lock, Renewal};
use crate::clock::{BootInstant, Clock};
use crate::domain::LockToken;

#[derive(Debug, Clone, Copy)]
struct Held {
    token: LockToken,
    until: BootInstant,
}

#[derive(Default)]
struct State {
    held: BTreeMap<String, Held>,
    tokens: u128,
}

/// The locks that all workers share. Cheap to clone.
#[derive(Clone)]
pub struct MemoryLocks {
    clock: Clock,
    state: Arc<Mutex<State>>,
}

impl MemoryLocks {
    /// No locks.
    pub fn new(clock: Clock) -> Self {
        Self { clock, state: Arc::default() }
    }

    /// The locks that have not ended by now; ended ones are forgotten.
    fn standing(&self) -> MutexGuard<'_, State> {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.held.retain(|_, held| held.until > now);
        state
    }

    /// All locks: name, token, what is left of their time to live.
    pub fn all(&self) -> Vec<(String, LockToken, Duration)> {
        let now = self.clock.now();
        let state = self.standing();
        let line = |(name, held): (&String, &Held)| {
            (name.clone(), held.token, held.until.saturating_since(now))
        };
        state.held.iter().map(line).collect()
    }

    /// The token of a lock.
    pub fn token(&self, name: &str) -> Option<LockToken> {
        self.standing().held.get(name).map(|held| held.token)
    }

    /// Forgets a lock, whoever has it.
    pub fn forget(&self, name: &str) {
        self.standing().held.remove(name);
    }

    /// Forgets everything, as a Redis without persistence does.
    pub fn flush(&self) {
        self.standing().held.clear();
    }
}

/// One worker's way to the [`MemoryLocks`].
pub struct MemoryLeases {
    locks: MemoryLocks,
    ttl: Duration,
}

impl MemoryLeases {
    /// Locks that live for `ttl` unless they are renewed.
    pub const fn new(locks: MemoryLocks, ttl: Duration) -> Self {
        Self { locks, ttl }
    }
}

#[async_trait]
impl LeaseStore for MemoryLeases {
    async fn check(&self) -> Result<(), LeaseError> {
        Ok(())
    }

    async fn acquire(&self, name: &str) -> Result<Acquired, LeaseError> {
        let now = self.locks.clock.now();
        let mut state = self.locks.standing();
        if let Some(held) = state.held.get(name) {
            return Ok(Acquired::Taken { remaining: held.until.saturating_since(now) });
        }
        state.tokens += 1;
        let token = LockToken(state.tokens);
        let until = now + self.ttl;
        state.held.insert(name.to_owned(), Held { token, until });
        Ok(Acquired::Granted(Lock { name: name.to_owned(), token, valid_until: until }))
    }

    async fn release(&self, lock: &Lock) -> Result<(), LeaseError> {
        let mut state = self.locks.standing();
        if state.held.get(&lock.name).is_some_and(|held| held.token == lock.token) {
            state.held.remove(&lock.name);
        }
        Ok(())
    }

    async fn renew(&self, locks: &[Lock]) -> Result<Vec<Renewal>, LeaseError> {
        let until = self.locks.clock.now() + self.ttl;
        let mut state = self.locks.standing();
        let renewals = locks.iter().map(|lock| {
            let held =
                state.held.entry(lock.name.clone()).or_insert(Held { token: lock.token, until });
            if held.token != lock.token {
                return Renewal::Foreign;
            }
            held.until = until;
            Renewal::Renewed
        });
        Ok(renewals.collect())
    }
}

//! The locks.

use queue_worker::domain::{LockToken, WorkerId};
use queue_worker::lease::Lock;

use super::Checker;

impl Checker {
    pub(crate) fn locked(&mut self, worker: WorkerId, lock: &Lock) {
        self.tokens.entry(worker).or_default().insert(lock.token.0);
    }

    pub(crate) fn unlocked(&mut self, lock: &Lock, before: Option<LockToken>) {
        if before != Some(lock.token) && before != self.locks.token(&lock.name) {
            self.violate(&format!("7: {} was deleted with another's token", lock.name));
        }
        self.released_tokens.insert(lock.token.0);
    }

    pub(crate) fn relocked(&mut self, locks: &[Lock], before: &[Option<LockToken>]) {
        for (lock, before) in locks.iter().zip(before) {
            let after = self.locks.token(&lock.name);
            if before.is_some() && *before != after {
                self.violate(&format!("8: {} changed hands by a renewal", lock.name));
            }
            if after == Some(lock.token) && self.released_tokens.contains(&lock.token.0) {
                self.violate(&format!("8: {} lives on after its release", lock.name));
            }
        }
    }
}

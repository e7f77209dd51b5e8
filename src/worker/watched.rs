//! A value that tasks wait for.
//!
//! Like tokio's `watch`, which however wakes its waiters in a random order; here they wake in the
//! order in which they came, so that a simulation replays from its seed.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A value and whoever waits for it to change.
pub struct Watched<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Clone> Watched<T> {
    /// A value that nobody waits for yet.
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value now.
    pub fn get(&self) -> T {
        self.lock().clone()
    }

    /// Changes the value and wakes everybody.
    pub fn update(&self, change: impl FnOnce(&mut T)) {
        self.update_if(|value| {
            change(value);
            true
        });
    }

    /// Wakes everybody if `change` says that it changed the value.
    pub fn update_if(&self, change: impl FnOnce(&mut T) -> bool) {
        let changed = change(&mut self.lock());
        if changed {
            self.changed.notify_waiters();
        }
    }

    /// Sets the value, wakes everybody, and gives what it was.
    pub fn replace(&self, value: T) -> T {
        let before = std::mem::replace(&mut *self.lock(), value);
        self.changed.notify_waiters();
        before
    }

    /// Waits until the value is as wanted, and gives it.
    pub async fn wait_for(&self, wanted: impl Fn(&T) -> bool) -> T {
        loop {
            // Before the look: a change in between is not missed.
            let changed = self.changed.notified();
            let value = self.get();
            if wanted(&value) {
                return value;
            }
            changed.await;
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watched")
            .field(&*self.value.lock().unwrap_or_else(PoisonError::into_inner))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiters_see_the_value_that_they_wait_for() {
        let value = Watched::new(1);
        assert_eq!(value.wait_for(|value| *value > 0).await, 1);
        let (seen, ()) = tokio::join!(value.wait_for(|value| *value > 2), async {
            value.update(|value| *value = 2);
            tokio::task::yield_now().await;
            value.update(|value| *value = 3);
        });
        assert_eq!(seen, 3);
    }
}

//! Which kind is run by what, and how often, how long.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::Handler;
use crate::domain::{Kind, RetryPolicy};

/// How one kind is run.
#[derive(Clone)]
pub struct Entry {
    /// What runs it.
    pub handler: Handler,
    /// How long one attempt may take, unless the task says otherwise.
    pub timeout: Duration,
    /// Attempts and delays.
    pub policy: RetryPolicy,
    /// How long a run that was asked to stop has before it is dropped.
    pub kill_after: Duration,
}

/// Kinds and their handlers, replaceable while tasks run.
#[derive(Default)]
pub struct Registry(RwLock<HashMap<Box<str>, Arc<Entry>>>);

impl Registry {
    /// The handler of a kind.
    pub fn get(&self, kind: &str) -> Option<Arc<Entry>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(kind).cloned()
    }

    /// Sets the handler of a kind.
    pub fn insert(&self, kind: &Kind, entry: Entry) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(kind.as_str().into(), Arc::new(entry));
    }
}

//! Which handler runs a kind, and by which rules.
//!
//! Looked up for each task, replaced as a whole at a reload: a run that has begun keeps the entry
//! that it began with. The registry never looks into a handler.
//!
//! ```
//! use queue_worker::handler::exec::{ExecHandler, ExecOptions};
//! use queue_worker::handler::native;
//! use queue_worker::handler::registry::{EntryOptions, Registry};
//!
//! let registry = Registry::builder()
//!     .external("resize", EntryOptions::default(), ExecHandler::new(ExecOptions::new(["resize"])))
//!     .handler("ping", EntryOptions::default(), native::external(async |_run| Ok(None)))
//!     .build()?;
//! assert!(registry.get("resize").is_some());
//! # Ok::<(), queue_worker::handler::registry::RegistryError>(())
//! ```

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::{ExternalHandler, Handler};
use crate::domain::{IdError, Kind, RetryPolicy};
use crate::ledger::Effect;

/// The rules for the runs of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryOptions {
    /// A run is cancelled after this time, unless its task names another.
    pub timeout: Duration,
    /// How often it is tried and how long it waits in between.
    pub policy: RetryPolicy,
    /// From the cancel signal until a run that has not returned is dropped.
    pub kill_after: Duration,
}

impl Default for EntryOptions {
    /// 5 minutes for a run, 5 s to end; 10 attempts, 1 s to 10 minutes apart.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(300),
            policy: RetryPolicy {
                max_attempts: 10,
                base: Duration::from_secs(1),
                max: Duration::from_secs(600),
            },
            kill_after: Duration::from_secs(5),
        }
    }
}

/// What is known about a kind.
#[derive(Clone)]
pub struct Entry {
    /// What runs it.
    pub handler: Handler,
    /// See [`EntryOptions::timeout`].
    pub timeout: Duration,
    /// See [`EntryOptions::policy`].
    pub policy: RetryPolicy,
    /// See [`EntryOptions::kill_after`].
    pub kill_after: Duration,
}

/// A registry that was not built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The name of a kind is not allowed.
    #[error("kind `{kind}`: {error}")]
    Kind {
        /// As it was given.
        kind: String,
        /// What is wrong with it.
        error: IdError,
    },
    /// Two handlers for one kind.
    #[error("kind `{0}` has two handlers; remove one of them")]
    Twice(String),
}

type Entries = HashMap<Box<str>, Arc<Entry>>;

/// The handlers of all kinds that this worker knows.
#[derive(Default)]
pub struct Registry {
    entries: RwLock<Arc<Entries>>,
}

impl Registry {
    /// An empty builder.
    pub fn builder() -> RegistryBuilder {
        RegistryBuilder { entries: Entries::new(), error: None }
    }

    /// The entry of a kind; `None` if nobody here knows it.
    pub fn get(&self, kind: &str) -> Option<Arc<Entry>> {
        self.current().get(kind).cloned()
    }

    /// The names of all kinds, sorted.
    pub fn kinds(&self) -> Vec<String> {
        let mut kinds: Vec<_> = self.current().keys().map(ToString::to_string).collect();
        kinds.sort_unstable();
        kinds
    }

    /// Takes over all entries of `other` and forgets its own, at once.
    pub fn replace(&self, other: Self) {
        let entries = other.entries.into_inner().unwrap_or_else(PoisonError::into_inner);
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = entries;
    }

    fn current(&self) -> Arc<Entries> {
        Arc::clone(&self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Collects handlers; the first mistake is told at the end.
pub struct RegistryBuilder {
    entries: Entries,
    error: Option<RegistryError>,
}

impl RegistryBuilder {
    /// A handler with an effect outside of the ledger.
    #[must_use]
    pub fn external(
        self,
        kind: &str,
        options: EntryOptions,
        handler: impl ExternalHandler,
    ) -> Self {
        self.handler(kind, options, Handler::External(Arc::new(handler)))
    }

    /// A handler whose effect is part of the completion's transaction.
    #[must_use]
    pub fn in_transaction(self, kind: &str, options: EntryOptions, effect: impl Effect) -> Self {
        self.handler(kind, options, Handler::InTransaction(Arc::new(effect)))
    }

    /// A handler of either sort, such as the functions of [`super::native`] make.
    #[must_use]
    pub fn handler(mut self, kind: &str, options: EntryOptions, handler: Handler) -> Self {
        let EntryOptions { timeout, policy, kill_after } = options;
        let entry = Entry { handler, timeout, policy, kill_after };
        let error = match Kind::new(kind) {
            Err(error) => Some(RegistryError::Kind { kind: kind.to_owned(), error }),
            Ok(_) => self
                .entries
                .insert(kind.into(), Arc::new(entry))
                .map(|_| RegistryError::Twice(kind.to_owned())),
        };
        self.error = self.error.or(error);
        self
    }

    /// All entries of another registry too.
    #[must_use]
    pub fn with(mut self, other: &Registry) -> Self {
        for (kind, entry) in other.current().iter() {
            if self.entries.insert(kind.clone(), Arc::clone(entry)).is_some() {
                self.error = self.error.or_else(|| Some(RegistryError::Twice(kind.to_string())));
            }
        }
        self
    }

    /// The registry, or the first mistake.
    pub fn build(self) -> Result<Registry, RegistryError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(Registry { entries: RwLock::new(Arc::new(self.entries)) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::native;
    use super::*;

    fn with(kinds: &[&str]) -> Result<Registry, RegistryError> {
        let builder = kinds.iter().fold(Registry::builder(), |builder, kind| {
            let handler = native::external(async |_run| Ok(None));
            builder.handler(kind, EntryOptions::default(), handler)
        });
        builder.build()
    }

    #[test]
    fn a_reload_replaces_everything_and_keeps_what_is_in_use() {
        let registry = with(&["a", "b"]).unwrap();
        let in_use = registry.get("a").unwrap();
        registry.replace(with(&["b", "c"]).unwrap());
        assert_eq!(registry.kinds(), ["b", "c"]);
        assert!(registry.get("a").is_none());
        assert_eq!(in_use.timeout, EntryOptions::default().timeout);
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(with(&["a", "b", "a"]).err(), Some(RegistryError::Twice("a".into())));
        assert!(matches!(with(&["a\n"]).err(), Some(RegistryError::Kind { .. })));
    }
}

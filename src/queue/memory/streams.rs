//! The streams that all workers of a simulated world share.
//!
//! A simulation may also put its own hand to them: lose entries, give them to others, forget all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{BootInstant, Clock};
use crate::domain::{EntryId, QueueName, RawEntry, WorkerId};

/// The beginning of every stream.
pub(super) const START: EntryId = EntryId { ms: 0, seq: 0 };

/// Who has what was given back.
pub(super) const NOBODY: WorkerId = WorkerId(uuid::Uuid::nil());

/// An entry that was delivered and not settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingEntry {
    /// To whom.
    pub(super) consumer: WorkerId,
    /// Since when it idles.
    pub(super) since: BootInstant,
    /// What an idle time that was set by hand adds.
    pub(super) idle: Duration,
}

impl PendingEntry {
    pub(super) fn idle(&self, now: BootInstant) -> Duration {
        now.saturating_since(self.since) + self.idle
    }
}

/// The consumer group of a stream.
#[derive(Default)]
pub(super) struct Group {
    pub(super) last: Option<EntryId>,
    pub(super) pending: BTreeMap<EntryId, PendingEntry>,
    /// When each consumer was last heard of.
    pub(super) consumers: BTreeMap<WorkerId, BootInstant>,
}

/// Entries, and the group if there is one.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) entries: BTreeMap<EntryId, RawEntry>,
    pub(super) group: Option<Group>,
}

/// All streams.
#[derive(Default)]
pub(super) struct State {
    pub(super) streams: BTreeMap<QueueName, Stream>,
    last: u64,
}

/// The streams that all workers share. Cheap to clone.
#[derive(Clone)]
pub struct MemoryStreams {
    pub(super) clock: Clock,
    state: Arc<Mutex<State>>,
    pub(super) added: Arc<Notify>,
}

impl MemoryStreams {
    /// No streams.
    pub fn new(clock: Clock) -> Self {
        Self { clock, state: Arc::default(), added: Arc::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry, as producers do.
    pub fn add(&self, queue: &QueueName, raw: RawEntry) -> EntryId {
        let mut state = self.lock();
        state.last += 1;
        let id = EntryId { ms: 1, seq: state.last };
        state.streams.entry(queue.clone()).or_default().entries.insert(id, raw);
        drop(state);
        self.added.notify_waiters();
        id
    }

    /// All entries of a stream.
    pub fn entries(&self, queue: &QueueName) -> Vec<(EntryId, RawEntry)> {
        let state = self.lock();
        let stream = state.streams.get(queue);
        stream.map_or_else(Vec::new, |stream| {
            stream.entries.iter().map(|(id, raw)| (*id, raw.clone())).collect()
        })
    }

    /// One entry of a stream.
    pub fn entry(&self, queue: &QueueName, id: EntryId) -> Option<RawEntry> {
        self.lock().streams.get(queue)?.entries.get(&id).cloned()
    }

    /// The pending list of a stream, with idle times.
    pub fn pending(&self, queue: &QueueName) -> Vec<(EntryId, WorkerId, Duration)> {
        let now = self.clock.now();
        let state = self.lock();
        let group = state.streams.get(queue).and_then(|stream| stream.group.as_ref());
        group.map_or_else(Vec::new, |group| {
            let line =
                |(id, entry): (&EntryId, &PendingEntry)| (*id, entry.consumer, entry.idle(now));
            group.pending.iter().map(line).collect()
        })
    }

    /// Who has an entry pending.
    pub fn owner(&self, queue: &QueueName, id: EntryId) -> Option<WorkerId> {
        let state = self.lock();
        Some(state.streams.get(queue)?.group.as_ref()?.pending.get(&id)?.consumer)
    }

    /// The consumers of a stream's group.
    pub fn consumers(&self, queue: &QueueName) -> Vec<WorkerId> {
        let state = self.lock();
        let group = state.streams.get(queue).and_then(|stream| stream.group.as_ref());
        group.map_or_else(Vec::new, |group| group.consumers.keys().copied().collect())
    }

    /// Deletes an entry and leaves it in the pending list, as a trimmed stream does.
    pub fn lose(&self, queue: &QueueName, id: EntryId) {
        if let Some(stream) = self.lock().streams.get_mut(queue) {
            stream.entries.remove(&id);
        }
    }

    /// Forgets an entry from the pending list, as `XACK` does.
    pub fn forget_pending(&self, queue: &QueueName, id: EntryId) {
        let mut state = self.lock();
        if let Some(group) = state.streams.get_mut(queue).and_then(|stream| stream.group.as_mut()) {
            group.pending.remove(&id);
        }
    }

    /// Gives a pending entry to another worker, idle for `idle`, as `XCLAIM` by hand does.
    pub fn give(&self, queue: &QueueName, id: EntryId, to: WorkerId, idle: Duration) {
        let since = self.clock.now();
        let mut state = self.lock();
        if let Some(group) = state.streams.get_mut(queue).and_then(|stream| stream.group.as_mut())
            && let Some(entry) = group.pending.get_mut(&id)
        {
            *entry = PendingEntry { consumer: to, since, idle };
        }
    }

    /// Forgets everything, as a Redis without persistence does.
    pub fn flush(&self) {
        self.lock().streams.clear();
    }
}

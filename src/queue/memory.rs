//! A queue in memory, for simulations and tests only: nothing survives the process.
//!
//! [`MemoryStreams`] are what all workers of a simulated world share, a [`MemoryQueue`] is one
//! worker's way to them. It answers as the queue in Redis Streams does, which the conformance suite
//! proves, at once and without ever losing an answer; only a fetch waits. Idle times come from the
//! clock. Delivery counts are not kept: nobody asks for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::{Demand, Queue, QueueError};
use crate::clock::{BootInstant, Clock};
use crate::domain::{Delivery, EntryId, Origin, QueueName, RawEntry, WorkerId};

/// The beginning of every stream.
const START: EntryId = EntryId { ms: 0, seq: 0 };

/// An entry that was delivered and not settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingEntry {
    /// To whom.
    pub consumer: WorkerId,
    /// Since when it idles.
    since: BootInstant,
    /// What an idle time that was set by hand adds.
    idle: Duration,
}

impl PendingEntry {
    fn idle(&self, now: BootInstant) -> Duration {
        now.saturating_since(self.since) + self.idle
    }
}

#[derive(Default)]
struct Group {
    last: Option<EntryId>,
    pending: BTreeMap<EntryId, PendingEntry>,
    /// When each consumer was last heard of.
    consumers: BTreeMap<WorkerId, BootInstant>,
}

#[derive(Default)]
struct Stream {
    entries: BTreeMap<EntryId, RawEntry>,
    group: Option<Group>,
}

#[derive(Default)]
struct State {
    streams: BTreeMap<QueueName, Stream>,
    last: u64,
}

/// The streams that all workers share. Cheap to clone.
#[derive(Clone)]
pub struct MemoryStreams {
    clock: Clock,
    state: Arc<Mutex<State>>,
    added: Arc<Notify>,
}

impl MemoryStreams {
    /// No streams.
    pub fn new(clock: Clock) -> Self {
        Self { clock, state: Arc::default(), added: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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

/// One worker's way to the [`MemoryStreams`].
pub struct MemoryQueue {
    streams: MemoryStreams,
    worker: WorkerId,
    min_idle: Duration,
    reads: Mutex<BTreeMap<QueueName, Arc<Read>>>,
    cursors: Mutex<BTreeMap<QueueName, EntryId>>,
}

/// The read of one queue, under way or not.
#[derive(Default)]
struct Read {
    state: Mutex<ReadState>,
    interrupt: Notify,
    rested: Notify,
}

#[derive(Default)]
struct ReadState {
    interrupted: bool,
    under_way: bool,
}

impl Read {
    fn lock(&self) -> MutexGuard<'_, ReadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks a read as under way until it is dropped.
struct Reading<'a>(&'a Read);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.lock().under_way = false;
        self.0.rested.notify_waiters();
    }
}

/// What a call has in hand, and what it may still take.
struct Taken<'a> {
    queue: &'a QueueName,
    origin: Origin,
    left: Demand,
    deliveries: Vec<Delivery>,
}

impl<'a> Taken<'a> {
    const fn new(queue: &'a QueueName, origin: Origin, left: Demand) -> Self {
        Self { queue, origin, left, deliveries: Vec::new() }
    }

    const fn wants_more(&self) -> bool {
        self.left.entries > 0 && self.left.bytes > 0
    }

    fn add(&mut self, entry: EntryId, raw: RawEntry) {
        self.left.entries -= 1;
        self.left.bytes = self.left.bytes.saturating_sub(raw.bytes());
        let (queue, origin) = (self.queue.clone(), self.origin);
        self.deliveries.push(Delivery { queue, entry, origin, raw });
    }
}

impl MemoryQueue {
    /// A worker's queue over the shared streams. Entries may be taken over after `min_idle`.
    pub const fn new(streams: MemoryStreams, worker: WorkerId, min_idle: Duration) -> Self {
        Self {
            streams,
            worker,
            min_idle,
            reads: Mutex::new(BTreeMap::new()),
            cursors: Mutex::new(BTreeMap::new()),
        }
    }

    fn read(&self, queue: &QueueName) -> Arc<Read> {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(reads.entry(queue.clone()).or_default())
    }

    fn pending_entry(&self, idle: Duration) -> PendingEntry {
        PendingEntry { consumer: self.worker, since: self.streams.clock.now(), idle }
    }

    /// The stream and its group, made where they are missing; our consumer is heard of.
    fn heard<'a>(
        &self,
        state: &'a mut State,
        queue: &QueueName,
    ) -> (&'a mut Group, &'a mut BTreeMap<EntryId, RawEntry>) {
        let stream = state.streams.entry(queue.clone()).or_default();
        let group = stream.group.get_or_insert_default();
        group.consumers.insert(self.worker, self.streams.clock.now());
        (group, &mut stream.entries)
    }

    fn take_new(&self, queue: &QueueName, demand: Demand) -> Vec<Delivery> {
        let mut state = self.streams.lock();
        let (group, entries) = self.heard(&mut state, queue);
        let mut taken = Taken::new(queue, Origin::Fresh, demand);
        let after = group.last.unwrap_or(START);
        for (id, raw) in entries.range(after..).filter(|(id, _)| **id > after) {
            if !taken.wants_more() {
                break;
            }
            group.last = Some(*id);
            group.pending.insert(*id, self.pending_entry(Duration::ZERO));
            taken.add(*id, raw.clone());
        }
        taken.deliveries
    }

    /// Sets the idle time if the entry is still ours; `true` if it is gone from the stream and
    /// nobody else holds it.
    fn give_back(&self, queue: &QueueName, id: EntryId, idle: Duration) -> bool {
        let mut state = self.streams.lock();
        let Some(stream) = state.streams.get_mut(queue) else { return true };
        let pending = stream.group.as_mut().and_then(|group| group.pending.get_mut(&id));
        if pending.as_ref().is_some_and(|entry| entry.consumer != self.worker) {
            return false;
        }
        if !stream.entries.contains_key(&id) {
            return true;
        }
        if let Some(entry) = pending {
            *entry = self.pending_entry(idle);
        }
        false
    }
}

#[async_trait]
impl Queue for MemoryQueue {
    async fn check(&self) -> Result<(), QueueError> {
        Ok(())
    }

    async fn fetch(
        &self,
        queue: &QueueName,
        demand: Demand,
        block: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        let read = self.read(queue);
        *read.lock() = ReadState { interrupted: false, under_way: true };
        let _reading = Reading(&read);
        let until = tokio::time::Instant::now() + block;
        loop {
            let (added, interrupted) = (self.streams.added.notified(), read.interrupt.notified());
            let deliveries = self.take_new(queue, demand);
            let over = read.lock().interrupted || demand.entries == 0 || demand.bytes == 0;
            if !deliveries.is_empty() || over {
                return Ok(deliveries);
            }
            tokio::select! {
                biased;
                () = added => {}
                () = interrupted => {}
                () = tokio::time::sleep_until(until) => return Ok(self.take_new(queue, demand)),
            }
        }
    }

    async fn interrupt(&self, queue: &QueueName) {
        let read = self.read(queue);
        loop {
            let rested = read.rested.notified();
            {
                let mut state = read.lock();
                state.interrupted = true;
                if !state.under_way {
                    return;
                }
            }
            read.interrupt.notify_waiters();
            rested.await;
        }
    }

    async fn reclaim(
        &self,
        queue: &QueueName,
        demand: Demand,
    ) -> Result<Vec<Delivery>, QueueError> {
        let now = self.streams.clock.now();
        let mut state = self.streams.lock();
        let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        let cursor = cursors.entry(queue.clone()).or_insert(START);
        let (group, entries) = self.heard(&mut state, queue);
        let mut taken = Taken::new(queue, Origin::Reclaimed, demand);
        let ids: Vec<EntryId> = group.pending.range(*cursor..).map(|(id, _)| *id).collect();
        for id in ids {
            if !taken.wants_more() {
                *cursor = id;
                return Ok(taken.deliveries);
            }
            let Some(raw) = entries.get(&id) else {
                group.pending.remove(&id);
                continue;
            };
            if let Some(entry) = group.pending.get_mut(&id)
                && entry.idle(now) >= self.min_idle
            {
                *entry = self.pending_entry(Duration::ZERO);
                taken.add(id, raw.clone());
            }
        }
        *cursor = START;
        Ok(taken.deliveries)
    }

    async fn delivered(
        &self,
        queue: &QueueName,
        after: EntryId,
        demand: Demand,
    ) -> Result<Vec<Delivery>, QueueError> {
        let mut state = self.streams.lock();
        let mut taken = Taken::new(queue, Origin::Reclaimed, demand);
        if state.streams.get(queue).is_none_or(|stream| stream.group.is_none()) {
            return Ok(taken.deliveries);
        }
        let (group, entries) = self.heard(&mut state, queue);
        let ours: Vec<EntryId> = group
            .pending
            .range(after..)
            .filter(|(id, entry)| **id > after && entry.consumer == self.worker)
            .map(|(id, _)| *id)
            .collect();
        for id in ours {
            if !taken.wants_more() {
                break;
            }
            match entries.get(&id) {
                Some(raw) => taken.add(id, raw.clone()),
                None => drop(group.pending.remove(&id)),
            }
        }
        Ok(taken.deliveries)
    }

    async fn settle(&self, queue: &QueueName, entry: EntryId) -> Result<(), QueueError> {
        self.streams.forget_pending(queue, entry);
        self.streams.lose(queue, entry);
        Ok(())
    }

    async fn hand_over(
        &self,
        queue: &QueueName,
        entry: EntryId,
        raw: &RawEntry,
    ) -> Result<(), QueueError> {
        if self.give_back(queue, entry, self.min_idle) {
            self.streams.forget_pending(queue, entry);
            self.streams.add(queue, raw.clone());
        }
        Ok(())
    }

    async fn postpone(
        &self,
        queue: &QueueName,
        entry: EntryId,
        remaining: Duration,
    ) -> Result<(), QueueError> {
        self.give_back(queue, entry, self.min_idle.saturating_sub(remaining));
        Ok(())
    }

    async fn touch(&self, entries: &[(QueueName, EntryId)]) -> Result<Vec<bool>, QueueError> {
        let mut state = self.streams.lock();
        let touched = entries.iter().map(|(queue, id)| {
            let group = state.streams.get_mut(queue).and_then(|stream| stream.group.as_mut());
            let entry = group.and_then(|group| group.pending.get_mut(id));
            match entry.filter(|entry| entry.consumer == self.worker) {
                Some(entry) => {
                    *entry = self.pending_entry(Duration::ZERO);
                    true
                }
                None => false,
            }
        });
        Ok(touched.collect())
    }

    async fn append(&self, queue: &QueueName, raw: &RawEntry) -> Result<EntryId, QueueError> {
        Ok(self.streams.add(queue, raw.clone()))
    }

    async fn contains(&self, queue: &QueueName, entry: EntryId) -> Result<bool, QueueError> {
        Ok(self.streams.entry(queue, entry).is_some())
    }

    async fn reap_consumers(
        &self,
        queue: &QueueName,
        stale_after: Duration,
    ) -> Result<u64, QueueError> {
        let now = self.streams.clock.now();
        let mut state = self.streams.lock();
        let group = state.streams.get_mut(queue).and_then(|stream| stream.group.as_mut());
        let Some(group) = group else { return Ok(0) };
        let before = group.consumers.len();
        let Group { consumers, pending, .. } = group;
        consumers.retain(|consumer, heard| {
            let stale = *consumer == self.worker || now.saturating_since(*heard) >= stale_after;
            !stale || pending.values().any(|entry| entry.consumer == *consumer)
        });
        Ok(u64::try_from(before - group.consumers.len()).unwrap_or(u64::MAX))
    }
}

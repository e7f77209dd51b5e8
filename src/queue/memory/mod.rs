//! A queue in memory, for simulations and tests only: nothing survives the process.
//!
//! [`MemoryStreams`] are what all workers of a simulated world share, a [`MemoryQueue`] is one
//! worker's way to them. It answers as the queue in Redis Streams does, which the conformance suite
//! proves, at once and without ever losing an answer; only a fetch waits. Idle times come from the
//! clock. Delivery counts are not kept: nobody asks for them.

mod read;
mod streams;
mod taken;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use self::read::{Read, ReadState, Reading};
pub use self::streams::MemoryStreams;
use self::streams::{Group, NOBODY, PendingEntry, START, State};
use self::taken::Taken;
use super::{CutShort, Demand, Queue, QueueError};
use crate::domain::{Delivery, EntryId, Origin, QueueName, RawEntry, WorkerId};

/// One worker's way to the [`MemoryStreams`].
pub struct MemoryQueue {
    streams: MemoryStreams,
    worker: WorkerId,
    min_idle: Duration,
    reads: Mutex<BTreeMap<QueueName, Arc<Read>>>,
    cursors: Mutex<BTreeMap<QueueName, EntryId>>,
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
            *entry = PendingEntry { consumer: NOBODY, ..self.pending_entry(idle) };
        }
        false
    }
}

#[async_trait]
impl Queue for MemoryQueue {
    async fn check(&self) -> Result<(), QueueError> {
        Ok(())
    }

    async fn check_writes(&self) -> Result<(), QueueError> {
        Ok(())
    }

    async fn fetch(
        &self,
        queue: &QueueName,
        demand: Demand,
        block: Duration,
    ) -> Result<Vec<Delivery>, CutShort> {
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

    async fn reclaim(&self, queue: &QueueName, demand: Demand) -> Result<Vec<Delivery>, CutShort> {
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
    ) -> Result<Vec<Delivery>, CutShort> {
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
            let goes = *consumer == self.worker || now.saturating_since(*heard) >= stale_after;
            !goes || pending.values().any(|entry| entry.consumer == *consumer)
        });
        Ok(u64::try_from(before - group.consumers.len()).unwrap_or(u64::MAX))
    }
}

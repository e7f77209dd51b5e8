//! The stores in memory, on the machine's own clock.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_worker::clock::Clock;
use queue_worker::domain::{EntryId, QueueName, Task, TaskId, WorkerId};
use queue_worker::lease::LeaseStore;
use queue_worker::lease::memory::{MemoryLeases, MemoryLocks};
use queue_worker::ledger::Ledger;
use queue_worker::ledger::memory::{Letter, MemoryLedger, MemoryOptions, MemoryTables};
use queue_worker::queue::Queue;
use queue_worker::queue::memory::{MemoryQueue, MemoryStreams};

use crate::stage::{LeaseStage, LedgerStage, QueueStage, Seen, eventually};

/// Everything in memory.
pub(crate) struct InMemory {
    tables: MemoryTables,
    streams: MemoryStreams,
    locks: MemoryLocks,
}

impl InMemory {
    pub(crate) async fn start() -> Self {
        let clock = Clock::System;
        let stage = Self {
            tables: MemoryTables::new(clock),
            streams: MemoryStreams::new(clock),
            locks: MemoryLocks::new(clock),
        };
        // A lease counts if it is younger than the database; both are told in milliseconds.
        let started = stage.tables.now_ms();
        eventually("the clock", async || (stage.tables.now_ms() > started).then_some(())).await;
        stage
    }
}

impl LedgerStage for InMemory {
    fn worker(&self, lease: Duration) -> Arc<dyn Ledger> {
        let options = MemoryOptions {
            lease,
            released_recheck: lease,
            ..MemoryOptions::new(WorkerId::random())
        };
        Arc::new(MemoryLedger::new(self.tables.clone(), options))
    }

    async fn row(&self, id: &str) -> Option<Seen> {
        let row = self.tables.row(&TaskId::new(id).unwrap())?;
        Some(Seen {
            status: row.status,
            fence: row.fence.0,
            attempts: row.attempts,
            crashes: row.crashes,
            has_payload: row.payload.is_some(),
            waits: row.run_at.is_some(),
            entry: row.entry.map(|entry| entry.to_string()),
        })
    }

    async fn waits(&self, task: &Task) -> Duration {
        let run_at = self.tables.row(&task.id).unwrap().run_at.unwrap();
        Duration::from_millis(u64::try_from(run_at - self.tables.now_ms()).unwrap_or(0))
    }

    async fn letters(&self) -> Vec<String> {
        let reason = |letter: Letter| match letter {
            Letter::Task(_, reason) => reason.to_owned(),
            Letter::Entry(_, _, reason) => reason.as_str().to_owned(),
        };
        let mut reasons: Vec<String> = self.tables.letters().into_iter().map(reason).collect();
        reasons.sort();
        reasons
    }

    async fn notes(&self) -> Vec<(String, i64)> {
        let fence = |value: Bytes| std::str::from_utf8(&value).unwrap().parse().unwrap();
        let effects = self.tables.effects().into_iter();
        let mut notes: Vec<_> = effects.map(|(key, value)| (key, fence(value))).collect();
        notes.sort();
        notes
    }
}

impl QueueStage for InMemory {
    fn worker(&self, min_idle: Duration) -> Arc<dyn Queue> {
        Arc::new(MemoryQueue::new(self.streams.clone(), WorkerId::random(), min_idle))
    }

    async fn lose(&self, queue: &QueueName, entry: EntryId) {
        self.streams.lose(queue, entry);
    }

    async fn consumers(&self, queue: &QueueName) -> usize {
        self.streams.consumers(queue).len()
    }

    /// It does from the first time that it is polled.
    async fn until_a_fetch_waits(&self) {}
}

impl LeaseStage for InMemory {
    fn worker(&self, ttl: Duration) -> Arc<dyn LeaseStore> {
        Arc::new(MemoryLeases::new(self.locks.clone(), ttl))
    }

    async fn forget(&self, name: &str) {
        self.locks.forget(name);
    }
}

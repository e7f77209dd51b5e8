//! What must always hold, judged at each write to a store, and once more at the end.
//!
//! The numbers in the messages are those of the invariants in ARCHITECTURE.md. The checker keeps its
//! own copy of each row, so that a store that lies about what was there before is found out.

mod end;
mod locks;
mod rows;
mod runs;
mod stream;
mod tally;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use queue_worker::domain::{EntryId, Fence, LockKey, QueueName, TaskId, WorkerId};
use queue_worker::lease::memory::MemoryLocks;
use queue_worker::ledger::Status;
use queue_worker::ledger::memory::{MemoryTables, Row};
use queue_worker::queue::memory::MemoryStreams;

use super::link::Link;
use super::workload::{Spec, Workload};

pub(crate) use tally::Tally;

/// After a fault of the world, what it explains is explained for so long.
const AFTERMATH: Duration = Duration::from_secs(15);

/// A run that is under way somewhere.
struct Active {
    link: Arc<Link>,
    id: TaskId,
    key: Option<LockKey>,
}

pub(crate) struct Checker {
    tables: MemoryTables,
    streams: MemoryStreams,
    locks: MemoryLocks,
    queue: QueueName,
    specs: BTreeMap<TaskId, Spec>,
    now: Duration,
    sequence: u64,
    violations: Vec<String>,
    pub(crate) tally: Tally,
    /// Rows as they were last seen in the log.
    rows: BTreeMap<TaskId, Row>,
    /// The newest fence of each resource.
    resources: BTreeMap<LockKey, Fence>,
    /// How many effects have been judged.
    effects_seen: usize,
    effects: BTreeMap<TaskId, u32>,
    /// The newest fence under which an effect on a resource was committed.
    effect_fences: BTreeMap<LockKey, Fence>,
    /// When a row was last done, or waiting with its payload.
    safe: BTreeMap<TaskId, u64>,
    deliveries: BTreeMap<(WorkerId, EntryId), u64>,
    postponed: BTreeSet<(WorkerId, EntryId)>,
    /// The entries that have brought a task to a worker.
    brought: BTreeMap<(WorkerId, TaskId), BTreeSet<EntryId>>,
    /// The claims that workers know of, with the fence and the local deadline.
    leases: BTreeMap<(WorkerId, TaskId), (Fence, Duration)>,
    active: Vec<Active>,
    /// How often a task failed by its own fault.
    failures: BTreeMap<TaskId, u32>,
    failed_for_good: BTreeSet<TaskId>,
    claimed_at: BTreeMap<TaskId, Duration>,
    released_tokens: BTreeSet<u128>,
    tokens: BTreeMap<WorkerId, BTreeSet<u128>>,
    links: BTreeMap<WorkerId, Arc<Link>>,
    /// How often a task has brought its worker down.
    brought_down: BTreeMap<TaskId, u32>,
    /// Workers that went without a clean exit, and when.
    gone: BTreeMap<WorkerId, Duration>,
    last_jump: Option<Duration>,
}

impl Checker {
    pub(crate) fn new(
        tables: MemoryTables,
        streams: MemoryStreams,
        locks: MemoryLocks,
        queue: QueueName,
        workload: &Workload,
    ) -> Self {
        Self {
            tables,
            streams,
            locks,
            queue,
            specs: workload.specs.clone(),
            now: Duration::ZERO,
            sequence: 0,
            violations: Vec::new(),
            tally: Tally::default(),
            rows: BTreeMap::new(),
            resources: BTreeMap::new(),
            effects_seen: 0,
            effects: BTreeMap::new(),
            effect_fences: BTreeMap::new(),
            safe: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            postponed: BTreeSet::new(),
            brought: BTreeMap::new(),
            leases: BTreeMap::new(),
            active: Vec::new(),
            failures: BTreeMap::new(),
            failed_for_good: BTreeSet::new(),
            claimed_at: BTreeMap::new(),
            released_tokens: BTreeSet::new(),
            tokens: BTreeMap::new(),
            links: BTreeMap::new(),
            brought_down: BTreeMap::new(),
            gone: BTreeMap::new(),
            last_jump: None,
        }
    }

    pub(crate) fn set_now(&mut self, now: Duration) {
        self.now = now;
        self.sequence += 1;
    }

    pub(crate) fn violations(&self) -> &[String] {
        &self.violations
    }

    fn violate(&mut self, what: &str) {
        self.violations.push(format!("at {} ms: {what}", self.now.as_millis()));
    }

    pub(crate) fn starts_up(&mut self, link: &Arc<Link>) {
        self.links.insert(link.worker, Arc::clone(link));
    }

    pub(crate) fn jumped(&mut self) {
        self.last_jump = Some(self.now);
    }

    /// A worker went without giving back what it had.
    pub(crate) fn went(&mut self, worker: WorkerId, crashed: bool) {
        self.gone.insert(worker, self.now);
        self.active.retain(|run| run.link.worker != worker);
        if crashed {
            self.tally.crashes += 1;
        } else {
            self.tally.spent_drains += 1;
        }
    }
}

/// Whether the row needs no entry of the stream.
fn is_safe(row: &Row) -> bool {
    match row.status {
        Status::Succeeded | Status::Failed | Status::Dead => true,
        Status::Delayed | Status::Released => row.payload.is_some(),
        // Its payload is there too, but finding it takes a sweep.
        Status::Running => false,
    }
}

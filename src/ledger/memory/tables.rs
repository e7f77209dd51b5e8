//! The tables that all workers of a simulated world share, their clock, and a log of changes.
//!
//! A simulation reads the log after each call and judges it; it may also put its own hand to a row,
//! to play a ledger that is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::millis;
use super::row::{Resource, Row};
use crate::clock::Clock;
use crate::domain::{EntryId, Fence, LockKey, MalformedReason, QueueName, TaskId, WorkerId};

/// Where the database's clock starts, so that it can be turned back.
const EPOCH_MS: i64 = 1_000_000_000;

/// Which call changed a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A claim.
    Claim,
    /// The end of a run.
    Record,
    /// An effect and success.
    Perform,
    /// A delay of a task that was not claimed.
    Delay,
    /// The end of a task that crashed too often.
    Condemn,
    /// A renewal of a lease.
    Renew,
    /// A reservation by a sweep.
    Reserve,
    /// A note that the task is in the stream again.
    Promote,
}

/// One change of a row, as it was committed.
#[derive(Debug, Clone)]
pub struct Change {
    /// Which task.
    pub id: TaskId,
    /// The row before, if there was one.
    pub before: Option<Row>,
    /// The row after.
    pub after: Row,
    /// Who did it.
    pub by: WorkerId,
    /// By which call.
    pub action: Action,
    /// The fence that the call named.
    pub under: Option<Fence>,
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Letter {
    /// Of a task, with the word for why.
    Task(TaskId, &'static str),
    /// Of an entry that can never run.
    Entry(QueueName, EntryId, MalformedReason),
}

#[derive(Default)]
pub(super) struct State {
    pub(super) rows: BTreeMap<TaskId, Row>,
    pub(super) resources: BTreeMap<LockKey, Resource>,
    pub(super) letters: Vec<Letter>,
    pub(super) effects: Vec<(String, Bytes)>,
    /// Rows that a transaction has locked.
    pub(super) locked: BTreeSet<TaskId>,
    /// Up to which `created_at` rows were searched for strays.
    pub(super) strays_upto: i64,
    offset_ms: i64,
    pub(super) started_ms: i64,
    log: Vec<Change>,
}

impl State {
    /// Writes a row and the log.
    pub(super) fn write(
        &mut self,
        id: &TaskId,
        after: Row,
        by: WorkerId,
        action: Action,
        under: Option<Fence>,
    ) {
        let before = self.rows.insert(id.clone(), after.clone());
        self.log.push(Change { id: id.clone(), before, after, by, action, under });
    }
}

/// The shared tables. Cheap to clone.
#[derive(Clone)]
pub struct MemoryTables {
    clock: Clock,
    state: Arc<Mutex<State>>,
}

impl MemoryTables {
    /// Empty tables of a database that has just started.
    pub fn new(clock: Clock) -> Self {
        let tables = Self { clock, state: Arc::default() };
        tables.restart();
        tables
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now_of(&self, state: &State) -> i64 {
        EPOCH_MS + self.clock.wall_ms() + state.offset_ms
    }

    /// Now by the database's clock, in milliseconds.
    pub fn now_ms(&self) -> i64 {
        self.now_of(&self.lock())
    }

    /// Sets the database's clock forward.
    pub fn jump_forward(&self, by: Duration) {
        self.lock().offset_ms += millis(by);
    }

    /// Sets the database's clock back.
    pub fn jump_back(&self, by: Duration) {
        self.lock().offset_ms -= millis(by);
    }

    /// The database starts again: leases that are older could not be renewed.
    pub fn restart(&self) {
        self.restart_in(Duration::ZERO);
    }

    /// The database starts again a while from now, and is away until then.
    pub fn restart_in(&self, time: Duration) {
        let mut state = self.lock();
        state.started_ms = self.now_of(&state) + millis(time);
    }

    /// When the database started, in milliseconds by its own clock.
    pub fn started_ms(&self) -> i64 {
        self.lock().started_ms
    }

    /// The row of a task.
    pub fn row(&self, id: &TaskId) -> Option<Row> {
        self.lock().rows.get(id).cloned()
    }

    /// All rows, by id.
    pub fn rows(&self) -> Vec<(TaskId, Row)> {
        self.lock().rows.iter().map(|(id, row)| (id.clone(), row.clone())).collect()
    }

    /// The row of a resource.
    pub fn resource(&self, key: &LockKey) -> Option<Resource> {
        self.lock().resources.get(key).cloned()
    }

    /// All dead letters, in order.
    pub fn letters(&self) -> Vec<Letter> {
        self.lock().letters.clone()
    }

    /// What effects have written and committed, in order.
    pub fn effects(&self) -> Vec<(String, Bytes)> {
        self.lock().effects.clone()
    }

    /// Writes as an effect would, in no transaction.
    pub fn write_effect(&self, key: String, value: Bytes) {
        self.lock().effects.push((key, value));
    }

    /// Changes a row by hand; where its last change is still in the log, that tells the new state.
    pub fn edit(&self, id: &TaskId, edit: impl FnOnce(&mut Row)) {
        let mut state = self.lock();
        let State { rows, log, .. } = &mut *state;
        let Some(row) = rows.get_mut(id) else { return };
        edit(row);
        if let Some(change) = log.iter_mut().rev().find(|change| change.id == *id) {
            change.after = row.clone();
        }
    }

    /// Takes the changes since the last call.
    pub fn take_log(&self) -> Vec<Change> {
        std::mem::take(&mut self.lock().log)
    }

    pub(super) fn bury(&self, queue: &QueueName, entry: EntryId, reason: MalformedReason) {
        let mut state = self.lock();
        let known = state.letters.iter().any(|letter| match letter {
            Letter::Entry(q, e, _) => q == queue && *e == entry,
            Letter::Task(..) => false,
        });
        if !known {
            state.letters.push(Letter::Entry(queue.clone(), entry, reason));
        }
    }
}

//! Exits, and the end of the simulation.

use std::collections::BTreeMap;

use queue_worker::domain::{TaskId, WorkerId};
use queue_worker::ledger::Status;
use queue_worker::ledger::memory::Letter;

use super::super::link::Side;
use super::super::world::{LEASE, MAX_CRASHES};
use super::{AFTERMATH, Checker};

impl Checker {
    /// A worker has drained.
    pub(crate) fn exits(&mut self, worker: WorkerId) {
        self.tally.clean_exits += 1;
        self.active.retain(|run| run.link.worker != worker);
        let quiet = |checker: &Self, side| {
            let trouble = checker.links.get(&worker).and_then(|link| link.last_trouble(side));
            trouble.is_none_or(|at| checker.now >= at + AFTERMATH)
        };
        if !quiet(self, Side::Redis) || !quiet(self, Side::Postgres) {
            return;
        }
        let tokens = self.tokens.get(&worker).cloned().unwrap_or_default();
        for (name, token, _) in self.locks.all() {
            if tokens.contains(&token.0) {
                self.violate(&format!("7: {name} is still locked by {worker}, which has exited"));
            }
        }
        for (entry, owner, idle) in self.streams.pending(&self.queue) {
            if owner == worker && idle < LEASE && !self.postponed.contains(&(worker, entry)) {
                self.violate(&format!("7: {entry} is pending for {worker}, which has exited"));
            }
        }
    }

    /// Whether every task has come to an end.
    pub(crate) fn is_done(&self) -> bool {
        self.streams.entries(&self.queue).is_empty()
            && self.specs.keys().all(|id| {
                self.rows.get(id).is_some_and(|row| {
                    matches!(row.status, Status::Succeeded | Status::Failed | Status::Dead)
                })
            })
    }

    /// The time is up: what has not come to an end?
    pub(crate) fn too_late(&mut self) {
        let open: Vec<String> = self
            .specs
            .keys()
            .filter_map(|id| {
                let row = self.tables.row(id);
                let done = row.as_ref().is_some_and(|row| {
                    matches!(row.status, Status::Succeeded | Status::Failed | Status::Dead)
                });
                (!done).then(|| format!("{id}: {row:?}"))
            })
            .collect();
        let entries: Vec<_> =
            self.streams.entries(&self.queue).into_iter().map(|(id, _)| id).collect();
        let pending = self.streams.pending(&self.queue);
        self.violate(&format!(
            "4: not at an end: {open:#?}, entries {entries:?}, pending {pending:?}"
        ));
    }

    /// A worker does not exit.
    pub(crate) fn stays(&mut self) {
        self.violate("7: a worker does not exit");
    }

    /// All workers have gone.
    pub(crate) fn finish(&mut self) {
        self.judge();
        for (id, row) in self.tables.rows() {
            let effects = self.effects.get(&id).copied().unwrap_or_default();
            let transactional = self.specs.get(&id).is_some_and(|spec| spec.way.is_transactional());
            if transactional && (row.status == Status::Succeeded) != (effects == 1) {
                self.violate(&format!("1: {id} is {:?} with {effects} effects", row.status));
            }
            if row.status == Status::Dead
                && row.waits_since.is_none()
                && row.crashes != MAX_CRASHES + 1
            {
                self.violate(&format!("6: {id} is dead after {} crashes", row.crashes));
            }
        }
        let mut letters = BTreeMap::<TaskId, u32>::new();
        for letter in self.tables.letters() {
            if let Letter::Task(id, _) = letter {
                *letters.entry(id).or_default() += 1;
            }
        }
        for (id, count) in letters {
            if count > 1 {
                self.violate(&format!("6: {id} has {count} dead letters"));
            }
        }
        let left = (
            self.streams.entries(&self.queue).len(),
            self.streams.pending(&self.queue),
            self.locks.all(),
            self.streams.consumers(&self.queue),
        );
        if left.0 > 0 || !left.1.is_empty() || !left.2.is_empty() || !left.3.is_empty() {
            self.violate(&format!("10: entries, pending, locks, consumers left: {left:?}"));
        }
    }
}

//! Tasks that wait in the ledger, and those that it gives up: the statements `DELAY`, `GIVE_UP`,
//! `CONDEMN`, `DUE_TASKS` and `PROMOTED_TASKS` of the ledger in Postgres.

use std::time::Duration;

use super::row::Row;
use super::tables::{Action, Letter};
use super::{MemoryLedger, locked, millis};
use crate::domain::{EntryId, Fence, Task, TaskId};
use crate::ledger::{
    Claimed, DelayReason, Delayed, Due, LedgerError, Pruned, Recorded, Retention, Status,
};
use crate::protocol::backoff::Growing;

/// How long after it was made a row is looked at by the search for strays.
const STRAY_AFTER_MS: i64 = 60_000;

/// For how long a sweep has its rows to itself, in milliseconds; no longer than a lease.
const RESERVATION_MS: i64 = 5_000;

impl MemoryLedger {
    /// See [`crate::ledger::Ledger::delay`].
    pub(super) fn delay_row(
        &self,
        task: &Task,
        wait: Growing,
        reason: DelayReason,
    ) -> Result<Delayed, LedgerError> {
        let mut state = self.tables.lock();
        if state.locked.contains(&task.id) {
            return Err(locked("delay"));
        }
        let by = self.claimant(&state, task);
        let found = state.rows.get(&task.id);
        if let Some(row) = found {
            let waits = row.status == Status::Delayed || row.is_claimable(&by);
            let crashes = row.crashes + row.crash(&by);
            if row.hash != task.hash || !waits || crashes > self.options.max_crashes {
                return Ok(match self.refusal(found, task, &by, Duration::ZERO) {
                    Claimed::Done(_) => Delayed::Done,
                    Claimed::Conflict => Delayed::Conflict,
                    Claimed::Running { remaining } => Delayed::Running { remaining },
                    Claimed::Granted(_)
                    | Claimed::Delayed
                    | Claimed::Contended { .. }
                    | Claimed::Suspect { .. }
                    | Claimed::Poisoned { .. } => Delayed::Stale,
                });
            }
        }
        let seen = found.map(|row| row.created_at);
        let old = found.cloned().unwrap_or_else(|| Row::of(task, by.now_ms));
        let give_up = match reason {
            DelayReason::UnknownKind { give_up } => Some(millis(give_up)),
            DelayReason::NotBefore | DelayReason::Contended | DelayReason::Suspect => None,
        };
        let over = old.lease_until.filter(|_| old.status == Status::Running);
        let begun = match reason {
            DelayReason::UnknownKind { .. } => Some(by.now_ms),
            DelayReason::Suspect => Some(over.unwrap_or(by.now_ms)),
            DelayReason::NotBefore | DelayReason::Contended => None,
        };
        let since = if begun.is_some() { old.waits_since } else { old.started_at.or(seen) };
        let so_far = Duration::from_millis(
            since.and_then(|since| u64::try_from(by.now_ms - since).ok()).unwrap_or(0),
        );
        let waits_since = begun.map(|begun| old.waits_since.unwrap_or(begun));
        let mut row = Row {
            status: Status::Delayed,
            fence: Fence(old.fence.0 + i64::from(old.status == Status::Running)),
            crashes: old.crashes + found.map_or(0, |row| row.crash(&by)),
            worker: None,
            lease_until: None,
            entry: None,
            queue: task.queue.clone(),
            run_at: Some(by.now_ms + millis(wait.after(so_far))),
            waits_since,
            ..old
        };
        row.keep(task);
        let waited = waits_since.map_or(0, |since| by.now_ms - since);
        let dead = give_up.is_some_and(|give_up| waited >= give_up);
        if dead {
            let processed_at = Some(by.now_ms);
            row = Row { status: Status::Dead, processed_at, ..row }.without_payload();
            state.letters.push(Letter::Task(task.id.clone(), "unknown_kind"));
        }
        state.write(&task.id, row, self.options.worker, Action::Delay, None);
        let waited = Duration::from_millis(u64::try_from(waited).unwrap_or(0));
        Ok(match reason {
            _ if dead => Delayed::GaveUp,
            DelayReason::UnknownKind { .. } if !wait.is_news(waited) => Delayed::Still,
            DelayReason::UnknownKind { .. }
            | DelayReason::NotBefore
            | DelayReason::Contended
            | DelayReason::Suspect => Delayed::Committed,
        })
    }

    /// See [`crate::ledger::Ledger::condemn`].
    pub(super) fn condemn_row(&self, task: &Task) -> Result<Recorded, LedgerError> {
        let mut state = self.tables.lock();
        if state.locked.contains(&task.id) {
            return Err(locked("condemn"));
        }
        let by = self.claimant(&state, task);
        let Some(row) = state.rows.get(&task.id).filter(|row| {
            row.hash == task.hash
                && row.status == Status::Running
                && row.lease_until.is_some_and(|until| until <= by.now_ms)
                && row.crashes + row.crash(&by) > self.options.max_crashes
        }) else {
            return Ok(Recorded::Stale);
        };
        let crashes = row.crashes + row.crash(&by);
        let mut row = Row {
            status: Status::Dead,
            lease_until: None,
            processed_at: Some(by.now_ms),
            error: Some("crashed".to_owned()),
            crashes,
            ..row.clone()
        }
        .without_payload();
        row.note_options(task);
        state.letters.push(Letter::Task(task.id.clone(), "crashed"));
        state.write(&task.id, row, self.options.worker, Action::Condemn, None);
        Ok(Recorded::Committed)
    }

    /// See [`crate::ledger::Ledger::due`].
    pub(super) fn due_rows(&self, limit: usize) -> Vec<Due> {
        let mut state = self.tables.lock();
        let now_ms = self.tables.now_of(&state);
        let mut due: Vec<(i64, TaskId)> = state
            .rows
            .iter()
            .filter(|(id, row)| {
                matches!(row.status, Status::Delayed | Status::Released | Status::Running)
                    && row.lease_until.is_none_or(|until| until <= now_ms)
                    && !state.locked.contains(id)
            })
            .filter_map(|(id, row)| Some((row.run_at.filter(|at| *at <= now_ms)?, id.clone())))
            .collect();
        due.sort();
        due.truncate(limit);
        due.into_iter()
            .filter_map(|(_, id)| {
                let mut row = state.rows.get(&id)?.clone();
                if row.status == Status::Running {
                    row.run_at = Some(now_ms + millis(self.options.released_recheck));
                } else {
                    row.lease_until = Some(now_ms + RESERVATION_MS.min(self.lease_ms()));
                }
                let task = row.task(&id)?;
                let (fence, delayed) = (row.fence, row.status == Status::Delayed);
                let entry = row.entry.filter(|_| !delayed);
                state.write(&id, row, self.options.worker, Action::Reserve, None);
                Some(Due {
                    queue: task.queue.clone(),
                    entry,
                    raw: task.to_raw(),
                    task_id: id.as_str().to_owned(),
                    fence,
                })
            })
            .collect()
    }

    /// See [`crate::ledger::Ledger::find_strays`].
    pub(super) fn find_stray_rows(&self) -> u64 {
        let mut state = self.tables.lock();
        let now_ms = self.tables.now_of(&state);
        let upto = now_ms - STRAY_AFTER_MS;
        let since = state.strays_upto;
        state.strays_upto = upto.max(since);
        let strays: Vec<TaskId> = state
            .rows
            .iter()
            .filter(|(_, row)| {
                row.status == Status::Running
                    && row.run_at.is_none()
                    && row.created_at > since
                    && row.created_at <= upto
                    && row.lease_until.is_some_and(|until| until <= now_ms)
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in &strays {
            if let Some(row) = state.rows.get(id).cloned() {
                let row = Row { run_at: Some(now_ms), ..row };
                state.write(id, row, self.options.worker, Action::Reserve, None);
            }
        }
        strays.len() as u64
    }

    /// See [`crate::ledger::Ledger::prune`]. Letters have no age here and stay.
    pub(super) fn prune_rows(&self, retention: &Retention) -> Pruned {
        let mut state = self.tables.lock();
        let now_ms = self.tables.now_of(&state);
        let old: Vec<TaskId> = state
            .rows
            .iter()
            .filter(|(_, row)| {
                let age = match row.status {
                    Status::Succeeded => retention.succeeded,
                    Status::Failed | Status::Dead => retention.failed,
                    Status::Running | Status::Released | Status::Delayed => return false,
                };
                row.processed_at.is_some_and(|at| at < now_ms - millis(age))
            })
            .map(|(id, _)| id.clone())
            .take(usize::try_from(retention.batch).unwrap_or(usize::MAX))
            .collect();
        for id in &old {
            state.rows.remove(id);
        }
        let tasks = u64::try_from(old.len()).unwrap_or(u64::MAX);
        Pruned { tasks, letters: 0, more: tasks >= u64::from(retention.batch) }
    }

    /// See [`crate::ledger::Ledger::promoted`].
    pub(super) fn promote_row(&self, due: &Due, entry: EntryId) {
        let mut state = self.tables.lock();
        let now_ms = self.tables.now_of(&state);
        let Ok(id) = TaskId::new(&due.task_id) else { return };
        let Some(row) = state.rows.get(&id).filter(|row| {
            row.fence == due.fence
                && matches!(row.status, Status::Delayed | Status::Released | Status::Running)
                && row.lease_until.is_some()
        }) else {
            return;
        };
        let run_at = Some(now_ms + millis(self.options.released_recheck));
        let mut row = Row { entry: Some(entry), run_at, ..row.clone() };
        if row.status != Status::Running {
            row.status = Status::Released;
            row.lease_until = None;
        }
        state.write(&id, row, self.options.worker, Action::Promote, Some(due.fence));
    }
}

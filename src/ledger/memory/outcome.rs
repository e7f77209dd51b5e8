//! How runs end, and how they are kept alive: the statements `SUCCEED`, `SETTLE`, `OUTCOMES`,
//! `FREE_RESOURCES` and `RENEW_*` of the ledger in Postgres.

use super::row::Row;
use super::tables::{Action, Letter, State};
use super::{MemoryLedger, locked, millis};
use crate::domain::{Fence, Held, Task};
use crate::ledger::{Beat, LedgerError, Recorded, Status, Verdict};

impl MemoryLedger {
    /// See [`crate::ledger::Ledger::record`].
    pub(super) fn record_row(
        &self,
        task: &Task,
        held: &Held,
        verdict: &Verdict,
    ) -> Result<Recorded, LedgerError> {
        let mut state = self.tables.lock();
        if state.locked.contains(&task.id) {
            return Err(locked("record outcome"));
        }
        let freed = free(&mut state, held);
        let counts = freed || !matches!(verdict, Verdict::Succeeded { .. });
        match running(&state, held).filter(|_| counts) {
            None => Ok(self.look_up(&state, held, target(verdict))),
            Some(row) => {
                let row = self.settled(row, task, verdict, self.tables.now_of(&state));
                if row.status == Status::Failed {
                    state.letters.push(Letter::Task(task.id.clone(), "failed"));
                }
                let (by, under) = (self.options.worker, Some(held.fence));
                state.write(&task.id, row, by, Action::Record, under);
                Ok(Recorded::Committed)
            }
        }
    }

    fn settled(&self, row: Row, task: &Task, verdict: &Verdict, now_ms: i64) -> Row {
        let mut row = Row { status: target(verdict), lease_until: None, ..row };
        match verdict {
            Verdict::Succeeded { result } => {
                let (result, processed_at) = (result.clone(), Some(now_ms));
                return Row { result, processed_at, error: None, ..row }.without_payload();
            }
            Verdict::Retry { failure, delay } | Verdict::Postponed { failure, delay } => {
                row.keep(task);
                row.run_at = Some(now_ms + millis(*delay));
                row.error = Some(failure.message.clone());
            }
            Verdict::Failed { failure } => {
                row.note_options(task);
                row = Row { processed_at: Some(now_ms), ..row }.without_payload();
                row.error = Some(failure.message.clone());
            }
            Verdict::Released => {
                row.keep(task);
                row.run_at = Some(now_ms + millis(self.options.released_recheck));
                row.entry = None;
                row.fence = Fence(row.fence.0 + 1);
                return row;
            }
        }
        row.entry = None;
        row.attempts += u32::from(!matches!(verdict, Verdict::Postponed { .. }));
        row.crashes = 0;
        row
    }

    /// Whether this very outcome is there already, its reply lost.
    pub(super) fn look_up(&self, state: &State, held: &Held, target: Status) -> Recorded {
        let fence = Fence(held.fence.0 + i64::from(target == Status::Released));
        let recorded = state.rows.get(&held.task_id).is_some_and(|row| {
            row.worker == Some(self.options.worker) && row.status == target && row.fence == fence
        });
        if recorded { Recorded::Committed } else { Recorded::Stale }
    }

    /// See [`crate::ledger::Ledger::renew`].
    pub(super) fn renew_rows(&self, held: &[Held]) -> Vec<Beat> {
        held.iter().map(|held| self.renew_row(held)).collect()
    }

    fn renew_row(&self, held: &Held) -> Beat {
        let mut state = self.tables.lock();
        let until = Some(self.tables.now_of(&state) + self.lease_ms());
        let mut ours = true;
        let mut free = true;
        if let Some((key, fence)) = &held.resource {
            match state.resources.get_mut(key) {
                Some(found) if found.fence == *fence && found.holder.is_some() => {
                    found.lease_until = until;
                }
                Some(_) | None => ours = false,
            }
        }
        match running(&state, held) {
            Some(_) if state.locked.contains(&held.task_id) => free = false,
            Some(row) => {
                let now_ms = self.tables.now_of(&state);
                let later = now_ms + 2 * self.lease_ms();
                let run_at = row.run_at.filter(|at| *at > now_ms).or(Some(later));
                let row = Row { lease_until: until, run_at, ..row };
                let (by, under) = (self.options.worker, Some(held.fence));
                state.write(&held.task_id, row, by, Action::Renew, under);
            }
            None => ours = false,
        }
        match (ours, free) {
            (true, true) => Beat::Renewed,
            (true, false) => Beat::Locked,
            (false, _) => Beat::Lost,
        }
    }
}

/// The row, if it is running under the fence that is held.
pub(super) fn running(state: &State, held: &Held) -> Option<Row> {
    let row = state.rows.get(&held.task_id)?;
    (row.status == Status::Running && row.fence == held.fence).then(|| row.clone())
}

/// Frees the resource; whether it was held as it should be, or none is needed.
pub(super) fn free(state: &mut State, held: &Held) -> bool {
    let Some((key, fence)) = &held.resource else { return true };
    match state.resources.get_mut(key) {
        Some(found) if found.fence == *fence && found.holder.as_ref() == Some(&held.task_id) => {
            found.holder = None;
            found.lease_until = None;
            true
        }
        Some(_) | None => false,
    }
}

fn target(verdict: &Verdict) -> Status {
    match verdict {
        Verdict::Succeeded { .. } => Status::Succeeded,
        Verdict::Retry { .. } | Verdict::Postponed { .. } => Status::Delayed,
        Verdict::Failed { .. } => Status::Failed,
        Verdict::Released => Status::Released,
    }
}

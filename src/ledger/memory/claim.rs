//! Claims: the statements `CLAIM`, `CLASSIFY` and `CLAIM_RESOURCES` of the ledger in Postgres.

use std::time::Duration;

use super::row::{Claimant, Resource, Row};
use super::tables::{Action, State};
use super::{MemoryLedger, left};
use crate::domain::{Fence, Held, LockKey, Task};
use crate::ledger::{Claimed, Grant, Status};

/// From how many crashes in a row on a task is a suspect.
const SUSPECT_CRASHES: u32 = 2;

/// Who else is in flight beside a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    /// Any others: a suspect is refused.
    Others,
    /// Nobody.
    Nobody,
}

/// A claim that would be granted, and what it writes.
pub(super) struct Plan {
    pub(super) grant: Grant,
    pub(super) row: Row,
    pub(super) resource: Option<(LockKey, Resource)>,
}

impl MemoryLedger {
    /// See [`crate::ledger::Ledger::claim`].
    pub(super) fn claim_row(&self, task: &Task, company: Company) -> Claimed {
        let mut state = self.tables.lock();
        match self.plan(&state, task, company) {
            Ok(Plan { grant, row, resource }) => {
                state.resources.extend(resource);
                state.write(&task.id, row, self.options.worker, Action::Claim, None);
                Claimed::Granted(grant)
            }
            Err(refused) => refused,
        }
    }

    pub(super) fn claimant(&self, state: &State, task: &Task) -> Claimant {
        Claimant {
            worker: self.options.worker,
            now_ms: self.tables.now_of(state),
            started_ms: state.started_ms,
            lease_ms: self.lease_ms(),
            in_doubt: self.is_doubted(&task.id),
        }
    }

    /// What a claim would write, or why it is refused.
    pub(super) fn plan(
        &self,
        state: &State,
        task: &Task,
        company: Company,
    ) -> Result<Plan, Claimed> {
        let by = self.claimant(state, task);
        if state.locked.contains(&task.id) {
            return Err(Claimed::Running { remaining: self.options.lock_timeout });
        }
        let found = state.rows.get(&task.id);
        let resource = match &task.lock_key {
            None => None,
            Some(key) => {
                let known = state.resources.get(key);
                if known.is_some_and(|known| !known.is_free_for(&task.id, by.now_ms)) {
                    let remaining = left(known.and_then(|known| known.lease_until), by.now_ms);
                    return Err(self.refusal(found, task, &by, remaining));
                }
                let fence = Fence(known.map_or(0, |known| known.fence.0) + 1);
                let holder = Some(task.id.clone());
                let lease_until = Some(by.now_ms + by.lease_ms);
                Some((key.clone(), Resource { fence, holder, lease_until }))
            }
        };
        if found.is_some_and(|row| !self.grants(row, task, &by, company)) {
            let known = resource.as_ref().and_then(|(key, _)| state.resources.get(key));
            let remaining = left(known.and_then(|known| known.lease_until), by.now_ms);
            return Err(self.refusal(found, task, &by, remaining));
        }
        let row = claimed(found, task, &by);
        let held = Held {
            task_id: task.id.clone(),
            fence: row.fence,
            resource: resource.as_ref().map(|(key, resource)| (key.clone(), resource.fence)),
        };
        let grant = Grant { held, attempt: row.attempts.saturating_add(1), crashes: row.crashes };
        Ok(Plan { grant, row, resource })
    }

    fn grants(&self, row: &Row, task: &Task, by: &Claimant, company: Company) -> bool {
        let crashes = row.crashes + row.crash(by);
        row.hash == task.hash
            && row.is_claimable(by)
            && (row.status != Status::Running || crashes <= self.options.max_crashes)
            && (company == Company::Nobody || crashes < SUSPECT_CRASHES)
    }

    /// What stands in the way: the row first, else the resource.
    pub(super) fn refusal(
        &self,
        row: Option<&Row>,
        task: &Task,
        by: &Claimant,
        resource_left: Duration,
    ) -> Claimed {
        let otherwise = match task.lock_key {
            Some(_) => Claimed::Contended { remaining: resource_left },
            None => Claimed::Running { remaining: Duration::ZERO },
        };
        let Some(row) = row else { return otherwise };
        if row.hash != task.hash {
            return Claimed::Conflict;
        }
        let crashes = row.crashes + row.crash(by);
        match row.status {
            Status::Succeeded | Status::Failed | Status::Dead => Claimed::Done(row.status),
            Status::Delayed if !row.is_claimable(by) => Claimed::Delayed,
            Status::Running if !row.is_claimable(by) => {
                Claimed::Running { remaining: left(row.lease_until, by.now_ms) }
            }
            Status::Running if crashes > self.options.max_crashes => Claimed::Poisoned { crashes },
            Status::Released | Status::Delayed | Status::Running if crashes >= SUSPECT_CRASHES => {
                let over = row.lease_until.filter(|_| row.status == Status::Running);
                let waited = row.waits_since.or(over).map_or(0, |since| by.now_ms - since);
                let waited = Duration::from_millis(u64::try_from(waited).unwrap_or(0));
                Claimed::Suspect { crashes, waited }
            }
            Status::Released | Status::Delayed | Status::Running => otherwise,
        }
    }
}

/// The row as a claim writes it.
fn claimed(found: Option<&Row>, task: &Task, by: &Claimant) -> Row {
    let mut old = found.cloned().unwrap_or_else(|| Row::of(task, by.now_ms));
    old.keep(task);
    Row {
        status: Status::Running,
        fence: Fence(old.fence.0 + 1),
        worker: Some(by.worker),
        crashes: old.crashes + found.map_or(0, |row| row.crash(by)),
        lease_until: Some(by.now_ms + by.lease_ms),
        run_at: found.map(|_| by.now_ms + 2 * by.lease_ms),
        entry: None,
        started_at: Some(by.now_ms),
        processed_at: None,
        waits_since: None,
        queue: task.queue.clone(),
        ..old
    }
}

//! Effects that commit together with the success of their tasks.
//!
//! As in Postgres: a claim that is part of the transaction locks its row until the end; a claim that
//! was committed before does not, and the fenced success comes last.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;

use super::MemoryLedger;
use super::claim::{Company, Plan};
use super::outcome::{free, running};
use super::row::Row;
use super::tables::{Action, MemoryTables};
use crate::domain::{Failure, Fence, Task, TaskId};
use crate::ledger::{
    Effect, EffectConnection, EffectError, EffectItem, Grant, Performed, Recorded, Status,
};

/// What an effect writes; it exists once the transaction has committed.
#[derive(Debug, Default)]
pub struct MemoryTransaction {
    writes: Vec<(String, Bytes)>,
}

impl MemoryTransaction {
    /// Writes a line into the one table that effects in memory have.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Bytes>) {
        self.writes.push((key.into(), value.into()));
    }
}

/// Keeps others from a row until it is dropped.
struct Locked {
    tables: MemoryTables,
    id: TaskId,
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.tables.lock().locked.remove(&self.id);
    }
}

impl MemoryLedger {
    /// See [`crate::ledger::Ledger::perform`].
    pub(super) async fn perform_effect(
        &self,
        task: &Arc<Task>,
        held: Option<&Grant>,
        effect: &Arc<dyn Effect>,
        timeout: Duration,
    ) -> Performed {
        let mut transaction = MemoryTransaction::default();
        if let Some(grant) = held {
            return match apply(&mut transaction, task, grant, effect, timeout).await {
                Ok(()) => self.succeed(grant, transaction),
                Err(failure) => Performed::Failed(failure),
            };
        }
        let (plan, locked) = {
            let mut state = self.tables.lock();
            let plan = match self.plan(&state, task, Company::Others) {
                Ok(plan) => plan,
                Err(refused) => return Performed::NotClaimed(refused),
            };
            state.locked.insert(task.id.clone());
            (plan, Locked { tables: self.tables.clone(), id: task.id.clone() })
        };
        match apply(&mut transaction, task, &plan.grant, effect, timeout).await {
            Ok(()) => {
                self.commit(task, plan, transaction);
                drop(locked);
                Performed::Committed
            }
            Err(failure) => Performed::Failed(failure),
        }
    }

    /// Claim, effect and success at once.
    fn commit(&self, task: &Task, plan: Plan, transaction: MemoryTransaction) {
        let Plan { row, .. } = plan;
        let mut state = self.tables.lock();
        state.effects.extend(transaction.writes);
        let processed_at = Some(self.tables.now_of(&state));
        let row = Row { status: Status::Succeeded, lease_until: None, processed_at, ..row }
            .without_payload();
        state.write(&task.id, row, self.options.worker, Action::Perform, None);
    }

    /// The fenced success of a claim that was committed before.
    fn succeed(&self, grant: &Grant, transaction: MemoryTransaction) -> Performed {
        let held = &grant.held;
        let mut state = self.tables.lock();
        let row = running(&state, held);
        // Nothing may be freed by a transaction that is rolled back.
        let Some(row) = row.filter(|_| free(&mut state, held)) else {
            return match self.look_up(&state, held, Status::Succeeded) {
                Recorded::Committed => Performed::Committed,
                Recorded::Stale => Performed::Stale,
            };
        };
        state.effects.extend(transaction.writes);
        let (lease_until, processed_at) = (None, Some(self.tables.now_of(&state)));
        let row = Row { status: Status::Succeeded, lease_until, processed_at, error: None, ..row }
            .without_payload();
        let under: Option<Fence> = Some(held.fence);
        state.write(&held.task_id, row, self.options.worker, Action::Perform, under);
        Performed::Committed
    }
}

async fn apply(
    transaction: &mut MemoryTransaction,
    task: &Arc<Task>,
    grant: &Grant,
    effect: &Arc<dyn Effect>,
    timeout: Duration,
) -> Result<(), Failure> {
    let items = [EffectItem {
        task: Arc::clone(task),
        fence: grant.held.effect_fence(),
        attempt: grant.attempt,
    }];
    let applied = AssertUnwindSafe(effect.apply(EffectConnection::Memory(transaction), &items))
        .catch_unwind();
    match tokio::time::timeout(timeout, applied).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(EffectError::Failed(failure)))) => Err(failure),
        Ok(Ok(Err(EffectError::Database(error)))) => Err(Failure::retry(error.to_string())),
        Ok(Err(_)) => {
            let message = format!("the effect {} panicked", effect.name());
            Err(Failure::retry(message).with_status("panic"))
        }
        Err(_) => Err(Failure::retry("the effect ran over its time limit").with_status("timeout")),
    }
}

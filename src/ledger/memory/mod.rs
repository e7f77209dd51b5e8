//! A ledger in memory, for simulations and tests only: nothing survives the process.
//!
//! [`MemoryTables`] are what all workers of a simulated world share, a [`MemoryLedger`] is one
//! worker's way to them. It answers as the ledger in Postgres does, which the conformance suite
//! proves; time comes from the [`crate::clock::Clock`], and the database's clock may be set apart
//! from it. Each call takes effect at once and as a whole; only an effect takes its time, and then
//! its row is locked where Postgres would lock it. It never loses an answer: a simulation wraps it
//! for that.

mod claim;
mod outcome;
mod row;
mod tables;
mod transaction;
mod wait;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use claim::Company;
pub use row::{Resource, Row};
pub use tables::{Action, Change, Letter, MemoryTables};
pub use transaction::MemoryTransaction;

use super::{
    Beat, Claimed, DelayReason, Delayed, Due, Effect, Grant, Ledger, LedgerError, Performed,
    Pruned, Recorded, Retention, Verdict,
};
use crate::domain::{EntryId, Held, Malformed, QueueName, RawEntry, Task, TaskId, WorkerId};
use crate::protocol::backoff::Growing;

/// How a ledger in memory works.
#[derive(Debug, Clone)]
pub struct MemoryOptions {
    /// Under which name tasks are claimed.
    pub worker: WorkerId,
    /// For how long a claim or a renewal lasts.
    pub lease: Duration,
    /// How many crashes in a row a task may have caused; one more is too many.
    pub max_crashes: u32,
    /// What a row that an effect has locked is said to be busy for.
    pub lock_timeout: Duration,
    /// How long after its release a task is looked after, in case that its entry was lost.
    pub released_recheck: Duration,
}

impl MemoryOptions {
    /// The defaults of the ledger in Postgres.
    pub const fn new(worker: WorkerId) -> Self {
        Self {
            worker,
            lease: Duration::from_secs(5),
            max_crashes: 3,
            lock_timeout: Duration::from_millis(500),
            released_recheck: Duration::from_secs(30),
        }
    }
}

/// One worker's way to the [`MemoryTables`].
pub struct MemoryLedger {
    tables: MemoryTables,
    options: MemoryOptions,
    doubts: Mutex<BTreeSet<TaskId>>,
}

impl MemoryLedger {
    /// A worker's ledger over the shared tables.
    pub fn new(tables: MemoryTables, options: MemoryOptions) -> Self {
        Self { tables, options, doubts: Mutex::default() }
    }

    /// Takes note that the answer to a claim never reached the worker, as the ledger in Postgres
    /// does when a connection breaks.
    pub fn doubt(&self, task: &Task) {
        self.doubts().insert(task.id.clone());
    }

    fn doubts(&self) -> MutexGuard<'_, BTreeSet<TaskId>> {
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_doubted(&self, id: &TaskId) -> bool {
        self.doubts().contains(id)
    }

    fn claim_beside(&self, task: &Task, company: Company) -> Claimed {
        let answer = self.claim_row(task, company);
        self.doubts().remove(&task.id);
        answer
    }

    fn lease_ms(&self) -> i64 {
        millis(self.options.lease)
    }
}

/// Milliseconds as the tables count them.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4)
}

/// What is left of `until_ms`, zero where it has passed.
fn left(until_ms: Option<i64>, now_ms: i64) -> Duration {
    let ms = until_ms.map_or(0, |until| until.saturating_sub(now_ms));
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// A row that somebody's effect has locked for too long.
fn locked(action: &'static str) -> LedgerError {
    LedgerError::Conflict {
        address: "memory".to_owned(),
        action,
        message: "the row is locked".to_owned(),
    }
}

#[async_trait]
impl Ledger for MemoryLedger {
    async fn check(&self) -> Result<(), LedgerError> {
        Ok(())
    }

    async fn claim_in_company(&self, task: &Arc<Task>) -> Result<Claimed, LedgerError> {
        Ok(self.claim_beside(task, Company::Others))
    }

    async fn claim(&self, task: &Arc<Task>) -> Result<Claimed, LedgerError> {
        Ok(self.claim_beside(task, Company::Nobody))
    }

    async fn record(
        &self,
        task: &Arc<Task>,
        held: &Held,
        verdict: Verdict,
    ) -> Result<Recorded, LedgerError> {
        self.record_row(task, held, &verdict)
    }

    async fn perform(
        &self,
        task: &Arc<Task>,
        held: Option<&Grant>,
        effect: &Arc<dyn Effect>,
        timeout: Duration,
    ) -> Result<Performed, LedgerError> {
        assert!(
            held.is_some() || task.lock_key.is_none(),
            "a task with a lock key is claimed first"
        );
        Ok(self.perform_effect(task, held, effect, timeout).await)
    }

    async fn delay(
        &self,
        task: &Arc<Task>,
        wait: Growing,
        reason: DelayReason,
    ) -> Result<Delayed, LedgerError> {
        self.delay_row(task, wait, reason)
    }

    async fn condemn(&self, task: &Arc<Task>) -> Result<Recorded, LedgerError> {
        self.condemn_row(task)
    }

    async fn bury(
        &self,
        queue: &QueueName,
        entry: EntryId,
        _raw: &RawEntry,
        malformed: &Malformed,
    ) -> Result<(), LedgerError> {
        self.tables.bury(queue, entry, malformed.reason);
        Ok(())
    }

    async fn renew(&self, held: &[Held]) -> Result<Vec<Beat>, LedgerError> {
        Ok(self.renew_rows(held))
    }

    async fn due(&self, limit: usize) -> Result<Vec<Due>, LedgerError> {
        Ok(self.due_rows(limit))
    }

    async fn promoted(&self, due: &Due, entry: EntryId) -> Result<(), LedgerError> {
        self.promote_row(due, entry);
        Ok(())
    }

    async fn find_strays(&self) -> Result<u64, LedgerError> {
        Ok(self.find_stray_rows())
    }

    async fn prune(&self, retention: &Retention) -> Result<Pruned, LedgerError> {
        Ok(self.prune_rows(retention))
    }
}

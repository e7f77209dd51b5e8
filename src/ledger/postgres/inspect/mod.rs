//! Questions that people ask: how many, which ones, what happened to this one.
//!
//! Never on a worker's way: some of these read the whole table. Times are milliseconds since the
//! Unix epoch by the database's clock; ages and remainders are by the same clock.

mod backlog;
mod letters;
mod tasks;

pub use backlog::{MOST_COUNTED, Waiting};
pub use letters::{DeadLetter, LetterFilter};
pub use tasks::{Count, HistoryLine, RunningTask, TaskDetails, TaskFilter, TaskLine};

use std::collections::HashMap;
use std::time::Duration;

use super::PostgresLedger;
use crate::ledger::{DeadLetterId, LedgerError, Status};

impl PostgresLedger {
    /// Rows by queue and status. Reads the whole table.
    pub async fn counts(&self) -> Result<Vec<Count>, LedgerError> {
        tasks::counts(&self.inner).await
    }

    /// Dead letters by queue that nobody has requeued. Reads the whole table of letters.
    pub async fn open_letters(&self) -> Result<Vec<(String, u64)>, LedgerError> {
        letters::open_letters(&self.inner).await
    }

    /// What waits of these queues, in their order. Looks at no more than [`MOST_COUNTED`] rows and
    /// as many letters, the newest.
    pub async fn backlog(&self, queues: &[String]) -> Result<Vec<Waiting>, LedgerError> {
        backlog::backlog(&self.inner, queues).await
    }

    /// Tasks, newest first. Reads the whole table.
    pub async fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskLine>, LedgerError> {
        tasks::tasks(&self.inner, filter).await
    }

    /// Running tasks, oldest claim first. Reads the whole table.
    pub async fn running(&self, limit: u32) -> Result<Vec<RunningTask>, LedgerError> {
        tasks::running(&self.inner, limit).await
    }

    /// Everything that is known of one task.
    pub async fn task(&self, id: &str) -> Result<Option<TaskDetails>, LedgerError> {
        tasks::task(&self.inner, id).await
    }

    /// The status of each of these tasks that is known.
    pub async fn statuses(&self, ids: &[String]) -> Result<HashMap<String, Status>, LedgerError> {
        tasks::statuses(&self.inner, ids).await
    }

    /// Dead letters, newest first, without their bytes.
    pub async fn letters(&self, filter: &LetterFilter) -> Result<Vec<DeadLetter>, LedgerError> {
        letters::letters(&self.inner, filter).await
    }

    /// The ids of dead letters at least so old, in the order of their ids, after `after` (nil at
    /// first): for those who page through all of them.
    pub async fn letter_ids(
        &self,
        filter: &LetterFilter,
        age: Duration,
        after: DeadLetterId,
    ) -> Result<Vec<DeadLetterId>, LedgerError> {
        letters::letter_ids(&self.inner, filter, age, after).await
    }

    /// One dead letter, with its bytes.
    pub async fn letter(&self, id: DeadLetterId) -> Result<Option<DeadLetter>, LedgerError> {
        letters::letter(&self.inner, id).await
    }
}

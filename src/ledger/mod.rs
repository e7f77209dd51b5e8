//! Rank 2: the authority. One row of Postgres per task says whether it is done, dead, running or
//! delayed, under which fence, and how often it failed or crashed.
//!
//! Every write names the fence under which it was claimed; a write that finds another fence changes
//! nothing and says so. The per-task calls look single; the store gathers the calls that are
//! waiting now and sends one statement for all of them.

mod effect;
mod error;
pub mod memory;
mod postgres;

pub use effect::{Effect, EffectConnection, EffectError, EffectItem};
pub use error::LedgerError;
pub use postgres::{
    Count, DeadLetter, HistoryLine, LetterFilter, MOST_COUNTED, MigrationReport, PostgresLedger,
    PostgresOptions, RunningTask, TaskDetails, TaskFilter, TaskLine, Waiting, expected_version,
    migrate, migrate_schema, session,
};

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use crate::domain::{EntryId, Failure, Fence, Held, Malformed, QueueName, RawEntry, Task};
use crate::protocol::backoff::Growing;

pub use crate::domain::Verdict;

/// The primary key of a dead letter.
pub type DeadLetterId = Uuid;

/// The state of a task's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Claimed by a worker.
    Running,
    /// In the stream, to be claimed by anyone.
    Released,
    /// Waits in Postgres, with its payload, until `run_at`.
    Delayed,
    /// Done.
    Succeeded,
    /// No attempt left, or failed for good.
    Failed,
    /// Given up without a verdict of its handler: it crashed workers, or nobody knows its kind.
    Dead,
}

impl Status {
    /// The word in the table.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Released => "released",
            Self::Delayed => "delayed",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Dead => "dead",
        }
    }
}

/// A claim that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// What we hold.
    pub held: Held,
    /// Which attempt this is; 1 for the first.
    pub attempt: u32,
    /// Crashes in a row before this claim.
    pub crashes: u32,
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// Ours: run it.
    Granted(Grant),
    /// Succeeded, failed or dead already: acknowledge the entry.
    Done(Status),
    /// Delayed and not due; the row holds the payload: acknowledge the entry.
    Delayed,
    /// The id belongs to a task of another kind, payload or lock key: dead-letter the newcomer.
    Conflict,
    /// Another worker's lease stands for `remaining`: leave the entry pending.
    Running {
        /// By the database's clock.
        remaining: Duration,
    },
    /// The resource is held by another task for `remaining`: delay this one.
    Contended {
        /// By the database's clock.
        remaining: Duration,
    },
    /// It has crashed workers `crashes` times in a row and is claimed only to run alone:
    /// [`Ledger::claim`].
    Suspect {
        /// How often.
        crashes: u32,
        /// For how long it has waited for its turn, on whatever worker, by the database's clock.
        waited: Duration,
    },
    /// Its lease has expired and it has crashed workers `crashes` times in a row, this one
    /// included, which is over the limit: [`Ledger::condemn`] it.
    Poisoned {
        /// How often.
        crashes: u32,
    },
}

/// Whether a fenced write took place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Recorded {
    /// Committed.
    Committed,
    /// The fence has moved on, or the task is no longer running: nothing was written.
    Stale,
}

/// Why a task waits in Postgres without having run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelayReason {
    /// `not_before_ms` lies ahead.
    NotBefore,
    /// No handler here knows the kind; dead after `give_up` of waiting, counted from the first time.
    UnknownKind {
        /// See above.
        give_up: Duration,
    },
    /// Its lock key is held by another task.
    Contended,
    /// It has crashed workers and waits for its turn to run alone.
    Suspect,
}

/// The answer to a delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delayed {
    /// Committed as delayed: acknowledge the entry.
    Committed,
    /// The same, and it has waited for the same before: there is nothing new to tell.
    Still,
    /// Committed as dead, with a dead letter: acknowledge the entry.
    GaveUp,
    /// The task has succeeded, failed or died before: acknowledge the entry.
    Done,
    /// The row is of another task with the same id: the newcomer is refused.
    Conflict,
    /// Somebody runs it, under a lease that stands for `remaining`: leave the entry pending.
    Running {
        /// By the database's clock.
        remaining: Duration,
    },
    /// The row is in another state by now; ask for a claim again later.
    Stale,
}

/// What a heartbeat found for one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// The lease is a full one again.
    Renewed,
    /// The row is locked by a transaction, most likely our own completion: neither renewed nor lost.
    Locked,
    /// The fence has moved on, or the task is no longer running.
    Lost,
}

/// A row that the promotion put back, or will put back, into the stream.
#[derive(Debug, Clone)]
pub struct Due {
    /// Which queue.
    pub queue: QueueName,
    /// The entry that it had, where it was released and Redis may have lost it.
    pub entry: Option<EntryId>,
    /// What to add to the stream.
    pub raw: RawEntry,
    /// For [`Ledger::promoted`].
    pub task_id: String,
    /// For [`Ledger::promoted`]: nothing happens if the row has moved on.
    pub fence: Fence,
}

/// How long what has ended is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Rows of tasks that succeeded: so long a duplicate is recognised.
    pub succeeded: Duration,
    /// Rows of tasks that failed or are dead.
    pub failed: Duration,
    /// Dead letters.
    pub letters: Duration,
    /// At most so many of a sort in one call.
    pub batch: u32,
}

/// What one call of [`Ledger::prune`] deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    /// Rows of tasks.
    pub tasks: u64,
    /// Dead letters.
    pub letters: u64,
    /// Whether a batch was full, so that there may be more.
    pub more: bool,
}

/// The answer to [`Ledger::perform`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Performed {
    /// Effect and success are committed.
    Committed,
    /// The claim that was to be part of the transaction was not granted.
    NotClaimed(Claimed),
    /// The fence has moved on: nothing was written.
    Stale,
    /// The effect failed: nothing was written, the claim neither if it was part of it.
    Failed(Failure),
    /// The server, which goes on, refused the effect for a reason that need not be the task's: a
    /// deadlock, a full disk, another server that it could not reach. Nothing was written. The same
    /// again may work; where it never does, this is the failure.
    Hindered(Failure),
}

/// The rows of tasks and resources, the delayed ones, and the dead letters.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// Whether Postgres answers, lets us in, and has a schema that this version can work with.
    async fn check(&self) -> Result<(), LedgerError>;

    /// Claims a task that may run beside others, with its resource in the same transaction, for one
    /// lease from now. A task that has crashed workers twice in a row is refused as a suspect, so
    /// that its neighbours are not condemned with it.
    async fn claim_in_company(&self, task: &Arc<Task>) -> Result<Claimed, LedgerError>;

    /// Claims a task, a suspect too, that runs alone in its worker.
    async fn claim(&self, task: &Arc<Task>) -> Result<Claimed, LedgerError>;

    /// Records how a run ended, under the fence of its claim. Also frees the resource.
    async fn record(
        &self,
        task: &Arc<Task>,
        held: &Held,
        verdict: Verdict,
    ) -> Result<Recorded, LedgerError>;

    /// Applies an effect and records success in one transaction. With `held` absent the claim is
    /// part of it too, in company (only for a first delivery of a task without a lock key, and an
    /// effect with [`Effect::single_commit`]). A caller that goes away after a claim gives the transaction up;
    /// what has become of it the row tells, under the fence.
    async fn perform(
        &self,
        task: &Arc<Task>,
        held: Option<&Grant>,
        effect: &Arc<dyn Effect>,
        timeout: Duration,
    ) -> Result<Performed, LedgerError>;

    /// Puts a task that was not claimed into Postgres for `wait`, with its payload; burns nothing.
    /// The wait grows with the time that an unknown kind has waited, or that has passed since the
    /// task ran last or was first seen.
    async fn delay(
        &self,
        task: &Arc<Task>,
        wait: Growing,
        reason: DelayReason,
    ) -> Result<Delayed, LedgerError>;

    /// Declares a task dead that crashed too often, with a dead letter, if that is still so.
    async fn condemn(&self, task: &Arc<Task>) -> Result<Recorded, LedgerError>;

    /// Stores an entry that can never run, with its bytes exact. The same entry twice is one letter.
    async fn bury(
        &self,
        queue: &QueueName,
        entry: EntryId,
        raw: &RawEntry,
        malformed: &Malformed,
    ) -> Result<(), LedgerError>;

    /// Renews the leases of running tasks and their resources; one answer each, in order. For the
    /// heartbeat, on a connection of its own.
    async fn renew(&self, held: &[Held]) -> Result<Vec<Beat>, LedgerError>;

    /// Up to `limit` rows that are due for promotion, or were released or claimed long ago and may
    /// have lost their entry. They stay as they are until [`Ledger::promoted`].
    async fn due(&self, limit: usize) -> Result<Vec<Due>, LedgerError>;

    /// The row's entry is in the stream (again): status `released`.
    async fn promoted(&self, due: &Due, entry: EntryId) -> Result<(), LedgerError>;

    /// Looks once at each row, a while after it was made, for tasks that run nowhere although nobody
    /// looks after them, and makes them due. Answers how many there were.
    async fn find_strays(&self) -> Result<u64, LedgerError>;

    /// Deletes one small batch of what has outlived `retention`. Resources are never pruned: their
    /// fences must not start again.
    async fn prune(&self, retention: &Retention) -> Result<Pruned, LedgerError>;
}

//! Rows of tasks as people ask for them: how many, which ones, what happened to this one.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::ledger::postgres::session::within;
use crate::ledger::postgres::{Inner, claim, statements};
use crate::ledger::{LedgerError, Status};

/// The most lines of a task's history that are shown.
const HISTORY: i64 = 200;

/// How many rows a queue has in a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// The queue.
    pub queue: String,
    /// The status.
    pub status: Status,
    /// How many.
    pub rows: u64,
}

/// Which tasks are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFilter {
    /// In this status only.
    pub status: Option<Status>,
    /// Of this queue only.
    pub queue: Option<String>,
    /// Of this kind only.
    pub kind: Option<String>,
    /// At most so many, newest first.
    pub limit: u32,
}

/// A task in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskLine {
    /// Its id.
    pub task_id: String,
    /// Its queue.
    pub queue: String,
    /// Its kind.
    pub kind: String,
    /// Its status.
    pub status: Status,
    /// Failures recorded.
    pub attempts: i32,
    /// Crashes in a row.
    pub crashes: i32,
    /// What went wrong last.
    pub error: Option<String>,
    /// First seen.
    pub created_at_ms: i64,
    /// Done, failed or given up.
    pub processed_at_ms: Option<i64>,
}

/// A task that runs somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningTask {
    /// Its id.
    pub task_id: String,
    /// Its queue.
    pub queue: String,
    /// Its kind.
    pub kind: String,
    /// The fence of its claim.
    pub fence: i64,
    /// Who runs it.
    pub worker: Option<Uuid>,
    /// The resource that it holds.
    pub lock_key: Option<String>,
    /// Failures recorded so far.
    pub attempts: i32,
    /// Crashes in a row so far.
    pub crashes: i32,
    /// Since its claim.
    pub age: Duration,
    /// Until another worker may take over; zero if one may already.
    pub lease_left: Duration,
}

/// Everything that is known of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDetails {
    /// Its queue.
    pub queue: String,
    /// Its kind.
    pub kind: String,
    /// Its status.
    pub status: Status,
    /// The fence of its last claim.
    pub fence: i64,
    /// Who claimed it last.
    pub worker: Option<Uuid>,
    /// The resource that it names.
    pub lock_key: Option<String>,
    /// Failures recorded.
    pub attempts: i32,
    /// Crashes in a row.
    pub crashes: i32,
    /// Its own limit of attempts, known while it waits.
    pub max_attempts: Option<i32>,
    /// Its own time limit in milliseconds, known while it waits.
    pub timeout_ms: Option<i64>,
    /// Its stream entry, known after a promotion.
    pub entry: Option<String>,
    /// Its trace context, known while it waits.
    pub traceparent: Option<String>,
    /// What its handler gave back.
    pub result: Option<Vec<u8>>,
    /// What went wrong last.
    pub error: Option<String>,
    /// The status that led to it.
    pub error_status: Option<String>,
    /// Its payload, while it waits.
    pub payload: Option<Vec<u8>>,
    /// First seen.
    pub created_at_ms: i64,
    /// Last claimed.
    pub started_at_ms: Option<i64>,
    /// Done, failed or given up.
    pub processed_at_ms: Option<i64>,
    /// Due, or to be looked after.
    pub run_at_ms: Option<i64>,
    /// When another worker may take over.
    pub lease_until_ms: Option<i64>,
    /// What happened to it, newest first.
    pub history: Vec<HistoryLine>,
}

/// One line of a task's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryLine {
    /// When.
    pub at_ms: i64,
    /// What, in a word: `claimed`, `delayed`, `retry`, `failed`, `released`, `dead`, `requeued`.
    pub event: String,
    /// Under which fence.
    pub fence: Option<i64>,
    /// In which attempt.
    pub attempt: Option<i32>,
    /// By whom.
    pub worker: Option<Uuid>,
    /// One sentence more.
    pub detail: Option<String>,
}

/// Rows by queue and status.
pub(super) async fn counts(inner: &Inner) -> Result<Vec<Count>, LedgerError> {
    let mut session = inner.effects.open().await?;
    let answer = within(inner.call_timeout, read_counts(session.connection())).await;
    session.finish("count tasks", answer).await
}

async fn read_counts(connection: &mut PgConnection) -> Result<Vec<Count>, sqlx::Error> {
    let rows = sqlx::query(statements::COUNTS).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(Count {
                queue: row.try_get(0)?,
                status: claim::status(row.try_get(1)?)?,
                rows: u64::try_from(row.try_get::<i64, _>(2)?).unwrap_or(0),
            })
        })
        .collect()
}

/// Tasks, newest first.
pub(super) async fn tasks(
    inner: &Inner,
    filter: &TaskFilter,
) -> Result<Vec<TaskLine>, LedgerError> {
    let mut session = inner.effects.open().await?;
    let answer = within(inner.call_timeout, read_tasks(session.connection(), filter)).await;
    session.finish("list tasks", answer).await
}

async fn read_tasks(
    connection: &mut PgConnection,
    filter: &TaskFilter,
) -> Result<Vec<TaskLine>, sqlx::Error> {
    let rows = sqlx::query(statements::TASKS)
        .bind(filter.status.map(Status::as_str))
        .bind(filter.queue.as_deref())
        .bind(filter.kind.as_deref())
        .bind(i64::from(filter.limit))
        .fetch_all(connection)
        .await?;
    rows.iter()
        .map(|row| {
            Ok(TaskLine {
                task_id: row.try_get(0)?,
                queue: row.try_get(1)?,
                kind: row.try_get(2)?,
                status: claim::status(row.try_get(3)?)?,
                attempts: row.try_get(4)?,
                crashes: row.try_get(5)?,
                error: row.try_get(6)?,
                created_at_ms: row.try_get(7)?,
                processed_at_ms: row.try_get(8)?,
            })
        })
        .collect()
}

/// Running tasks, oldest claim first.
pub(super) async fn running(inner: &Inner, limit: u32) -> Result<Vec<RunningTask>, LedgerError> {
    let mut session = inner.effects.open().await?;
    let answer = within(inner.call_timeout, read_running(session.connection(), limit)).await;
    session.finish("list running tasks", answer).await
}

async fn read_running(
    connection: &mut PgConnection,
    limit: u32,
) -> Result<Vec<RunningTask>, sqlx::Error> {
    let rows =
        sqlx::query(statements::RUNNING).bind(i64::from(limit)).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(RunningTask {
                task_id: row.try_get(0)?,
                queue: row.try_get(1)?,
                kind: row.try_get(2)?,
                fence: row.try_get(3)?,
                worker: row.try_get(4)?,
                lock_key: row.try_get(5)?,
                attempts: row.try_get(6)?,
                crashes: row.try_get(7)?,
                age: claim::duration(row.try_get(8)?),
                lease_left: claim::duration(row.try_get(9)?),
            })
        })
        .collect()
}

/// The statuses of those that are known.
pub(super) async fn statuses(
    inner: &Inner,
    ids: &[String],
) -> Result<HashMap<String, Status>, LedgerError> {
    let mut session = inner.effects.open().await?;
    let answer = within(inner.call_timeout, read_statuses(session.connection(), ids)).await;
    session.finish("look up tasks", answer).await
}

async fn read_statuses(
    connection: &mut PgConnection,
    ids: &[String],
) -> Result<HashMap<String, Status>, sqlx::Error> {
    let rows = sqlx::query(statements::STATUSES).bind(ids).fetch_all(connection).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, claim::status(row.try_get(1)?)?))).collect()
}

/// One task, with its history.
pub(super) async fn task(inner: &Inner, id: &str) -> Result<Option<TaskDetails>, LedgerError> {
    let mut session = inner.effects.open().await?;
    let answer = within(inner.call_timeout, read_task(session.connection(), id)).await;
    session.finish("show task", answer).await
}

async fn read_task(
    connection: &mut PgConnection,
    id: &str,
) -> Result<Option<TaskDetails>, sqlx::Error> {
    let row = sqlx::query(statements::TASK).bind(id).fetch_optional(&mut *connection).await?;
    let Some(row) = row else { return Ok(None) };
    let lines =
        sqlx::query(statements::HISTORY).bind(id).bind(HISTORY).fetch_all(connection).await?;
    let history = lines.iter().map(history_line).collect::<Result<_, _>>()?;
    Ok(Some(TaskDetails {
        queue: row.try_get(0)?,
        kind: row.try_get(1)?,
        status: claim::status(row.try_get(2)?)?,
        fence: row.try_get(3)?,
        worker: row.try_get(4)?,
        lock_key: row.try_get(5)?,
        attempts: row.try_get(6)?,
        crashes: row.try_get(7)?,
        max_attempts: row.try_get(8)?,
        timeout_ms: row.try_get(9)?,
        entry: row.try_get(10)?,
        traceparent: row.try_get(11)?,
        result: row.try_get(12)?,
        error: row.try_get(13)?,
        error_status: row.try_get(14)?,
        payload: row.try_get(15)?,
        created_at_ms: row.try_get(16)?,
        started_at_ms: row.try_get(17)?,
        processed_at_ms: row.try_get(18)?,
        run_at_ms: row.try_get(19)?,
        lease_until_ms: row.try_get(20)?,
        history,
    }))
}

fn history_line(row: &PgRow) -> Result<HistoryLine, sqlx::Error> {
    Ok(HistoryLine {
        at_ms: row.try_get(0)?,
        event: row.try_get(1)?,
        fence: row.try_get(2)?,
        attempt: row.try_get(3)?,
        worker: row.try_get(4)?,
        detail: row.try_get(5)?,
    })
}

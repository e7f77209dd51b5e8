//! `queue-worker tasks`: what the ledger knows of one task, and lists of tasks. Only reads.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::{Map, Value, json};

use super::table::{Side, Table, write_facts};
use super::text::{insert_bytes, one_line, rfc3339, write_block};
use super::{GlobalOptions, stores};
use crate::config::{Config, Environment};
use crate::domain::{Kind, QueueName, TaskId};
use crate::ledger::{HistoryLine, PostgresLedger, Status, TaskDetails, TaskFilter, TaskLine};

const STATUSES: [Status; 6] = [
    Status::Running,
    Status::Released,
    Status::Delayed,
    Status::Succeeded,
    Status::Failed,
    Status::Dead,
];

/// Characters of an error in a list.
const ERROR_WIDTH: usize = 80;

/// Look at tasks: one in full, or a list
///
/// Postgres knows a task from its first claim on; before that it is only an entry of the stream.
#[derive(Debug, clap::Args)]
pub(super) struct Tasks {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Show(Show),
    List(List),
}

/// Show everything that is known of a task
///
/// Status, failures and crashes, fence, times (RFC 3339, UTC), result, last error, the payload while
/// the task waits in Postgres, and its history. Exits with 1 if the task is not known.
#[derive(Debug, clap::Args)]
#[command(after_long_help = SHOW_FIELDS)]
struct Show {
    /// The task's id
    id: TaskId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the result's bytes and nothing else
    #[arg(long, conflicts_with = "json")]
    raw_result: bool,
}

const SHOW_FIELDS: &str = "\
Fields of --json; null if there is none:
  task_id, queue, kind, status, fence, worker, lock_key, attempts (failures recorded),
  crashes (in a row), max_attempts, timeout_ms, entry, traceparent, error, error_status,
  created_at, started_at, processed_at, run_at, lease_until,
  result and payload (result_hex and payload_hex if they are not UTF-8),
  history: at, event, fence, attempt, worker, detail; newest first";

/// List tasks, newest first
///
/// Reads the whole table of tasks, which takes a while where there are millions.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LIST_FIELDS)]
struct List {
    /// Only tasks in this status
    #[arg(long, value_parser = statuses())]
    status: Option<Status>,
    /// Only tasks of this queue
    #[arg(long)]
    queue: Option<QueueName>,
    /// Only tasks of this kind
    #[arg(long)]
    kind: Option<Kind>,
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    limit: u32,
    /// Print one JSON object for each task, one a line
    #[arg(long)]
    json: bool,
}

const LIST_FIELDS: &str = "\
Fields of --json: task_id, queue, kind, status, attempts, crashes, error, created_at, processed_at";

fn statuses() -> impl TypedValueParser<Value = Status> {
    PossibleValuesParser::new(STATUSES.map(Status::as_str)).try_map(|word| {
        let found = STATUSES.into_iter().find(|status| status.as_str() == word);
        found.ok_or_else(|| format!("{word} is no status"))
    })
}

impl Tasks {
    pub(super) async fn run(self, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
        let config = Config::load(&global.config, &Environment::of_process())?;
        let ledger = stores::ledger(&config).await?;
        let mut out = io::stdout().lock();
        match self.command {
            Command::Show(show) => show.run(&ledger, &mut out).await?,
            Command::List(list) => list.run(&ledger, &mut out).await?,
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Show {
    async fn run(&self, ledger: &PostgresLedger, out: &mut impl Write) -> anyhow::Result<()> {
        let id = self.id.as_str();
        let Some(task) = ledger.task(id).await? else {
            bail!(
                "the ledger knows no task {id}; either the id is wrong, or no worker has claimed it \
                 yet (`queue-worker status` shows whether the stream moves)"
            );
        };
        if self.raw_result {
            let nothing =
                || format!("the task {id} has no result; its status is {}", task.status.as_str());
            out.write_all(task.result.as_ref().with_context(nothing)?)?;
        } else if self.json {
            writeln!(out, "{}", details(id, &task))?;
        } else {
            write_task(out, id, &task)?;
        }
        Ok(())
    }
}

fn details(id: &str, task: &TaskDetails) -> Value {
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("task_id", id.into());
    put("queue", json!(task.queue));
    put("kind", json!(task.kind));
    put("status", task.status.as_str().into());
    put("fence", task.fence.into());
    put("worker", json!(task.worker));
    put("lock_key", json!(task.lock_key));
    put("attempts", task.attempts.into());
    put("crashes", task.crashes.into());
    put("max_attempts", json!(task.max_attempts));
    put("timeout_ms", json!(task.timeout_ms));
    put("entry", json!(task.entry));
    put("traceparent", json!(task.traceparent));
    put("error", json!(task.error));
    put("error_status", json!(task.error_status));
    put("created_at", rfc3339(task.created_at_ms).into());
    put("started_at", json!(task.started_at_ms.map(rfc3339)));
    put("processed_at", json!(task.processed_at_ms.map(rfc3339)));
    put("run_at", json!(task.run_at_ms.map(rfc3339)));
    put("lease_until", json!(task.lease_until_ms.map(rfc3339)));
    put("history", task.history.iter().map(event).collect());
    insert_bytes(&mut object, "result", task.result.as_deref());
    insert_bytes(&mut object, "payload", task.payload.as_deref());
    object.into()
}

fn event(line: &HistoryLine) -> Value {
    json!({
        "at": rfc3339(line.at_ms), "event": line.event, "fence": line.fence,
        "attempt": line.attempt, "worker": line.worker, "detail": line.detail,
    })
}

fn write_task(out: &mut impl Write, id: &str, task: &TaskDetails) -> io::Result<()> {
    let run_at = if task.status == Status::Delayed { "due" } else { "looked after" };
    write_facts(
        out,
        &[
            ("task", Some(id.to_owned())),
            ("queue", Some(task.queue.clone())),
            ("kind", Some(task.kind.clone())),
            ("status", Some(task.status.as_str().to_owned())),
            ("failures", Some(task.attempts.to_string())),
            ("crashes in a row", Some(task.crashes.to_string())),
            ("attempts allowed", task.max_attempts.map(|limit| limit.to_string())),
            ("time limit", task.timeout_ms.map(|limit| format!("{limit} ms"))),
            ("fence", Some(task.fence.to_string())),
            ("worker", task.worker.map(|worker| worker.to_string())),
            ("lock key", task.lock_key.clone()),
            ("entry", task.entry.clone()),
            ("traceparent", task.traceparent.clone()),
            ("first seen", Some(rfc3339(task.created_at_ms))),
            ("last claimed", task.started_at_ms.map(rfc3339)),
            ("lease until", task.lease_until_ms.map(rfc3339)),
            (run_at, task.run_at_ms.map(rfc3339)),
            ("ended", task.processed_at_ms.map(rfc3339)),
            ("last error", task.error.clone()),
            ("its status", task.error_status.clone()),
        ],
    )?;
    if let Some(result) = &task.result {
        writeln!(out)?;
        write_block(out, "result", result, "--raw-result writes all of it")?;
    }
    if let Some(payload) = &task.payload {
        writeln!(out)?;
        write_block(out, "payload", payload, "--json shows all of it")?;
    }
    if !task.history.is_empty() {
        writeln!(out)?;
        write_history(out, &task.history)?;
    }
    Ok(())
}

fn write_history(out: &mut impl Write, history: &[HistoryLine]) -> io::Result<()> {
    let mut table = Table::new(&[
        ("HISTORY, NEWEST FIRST", Side::Left),
        ("EVENT", Side::Left),
        ("ATTEMPT", Side::Right),
        ("FENCE", Side::Right),
        ("WORKER", Side::Left),
        ("DETAIL", Side::Left),
    ]);
    for line in history {
        table.row([
            rfc3339(line.at_ms),
            line.event.clone(),
            line.attempt.map(|attempt| attempt.to_string()).unwrap_or_default(),
            line.fence.map(|fence| fence.to_string()).unwrap_or_default(),
            line.worker.map(|worker| worker.to_string()).unwrap_or_default(),
            line.detail.clone().unwrap_or_default(),
        ]);
    }
    table.write(out)
}

impl List {
    async fn run(&self, ledger: &PostgresLedger, out: &mut impl Write) -> anyhow::Result<()> {
        let filter = TaskFilter {
            status: self.status,
            queue: self.queue.as_ref().map(ToString::to_string),
            kind: self.kind.as_ref().map(ToString::to_string),
            limit: self.limit,
        };
        let tasks = ledger.tasks(&filter).await?;
        if self.json {
            tasks.iter().try_for_each(|task| writeln!(out, "{}", line(task)))?;
        } else if tasks.is_empty() {
            writeln!(out, "no such tasks")?;
        } else {
            write_list(out, &tasks)?;
        }
        Ok(())
    }
}

fn line(task: &TaskLine) -> Value {
    json!({
        "task_id": task.task_id, "queue": task.queue, "kind": task.kind,
        "status": task.status.as_str(), "attempts": task.attempts, "crashes": task.crashes,
        "error": task.error, "created_at": rfc3339(task.created_at_ms),
        "processed_at": task.processed_at_ms.map(rfc3339),
    })
}

fn write_list(out: &mut impl Write, tasks: &[TaskLine]) -> io::Result<()> {
    let mut table = Table::new(&[
        ("TASK", Side::Left),
        ("QUEUE", Side::Left),
        ("KIND", Side::Left),
        ("STATUS", Side::Left),
        ("FAILURES", Side::Right),
        ("CRASHES", Side::Right),
        ("FIRST SEEN", Side::Left),
        ("ENDED", Side::Left),
        ("LAST ERROR", Side::Left),
    ]);
    for task in tasks {
        table.row([
            task.task_id.clone(),
            task.queue.clone(),
            task.kind.clone(),
            task.status.as_str().to_owned(),
            task.attempts.to_string(),
            task.crashes.to_string(),
            rfc3339(task.created_at_ms),
            task.processed_at_ms.map(rfc3339).unwrap_or_default(),
            task.error.as_deref().map(|error| one_line(error, ERROR_WIDTH)).unwrap_or_default(),
        ]);
    }
    table.write(out)
}

//! `queue-worker status`: queues, workers and running tasks, from both stores.
//!
//! It only reads. If one store is away, it tells what the other one knows and exits with 1.

mod report;

use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;
use std::time::Duration;

use self::report::{Local, QueueLine, Report, RunningLine, WorkerLine};
use super::GlobalOptions;
use super::table::{Side, Table};
use super::text::span;
use crate::config::{Config, Environment, format_duration, parse_duration};

/// Show queues, workers and running tasks
///
/// Of each queue: entries in the stream, those of them that are pending (delivered and not settled)
/// and those never delivered (lag), tasks by status, and open dead letters. If Redis or Postgres
/// does not answer, what the other one knows is shown, and the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(after_long_help = JSON_FIELDS)]
pub(super) struct Status {
    /// Print one JSON object; with --watch one in each line
    #[arg(long)]
    json: bool,
    /// Go on until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// How often with --watch
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    every: Duration,
    /// How many running tasks are listed, the oldest claims first
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    limit: u32,
}

const JSON_FIELDS: &str = "\
Fields of --json; what a store that is away would know is null:
  time              RFC 3339
  redis, postgres   url, error
  queues            name, configured, length, pending, lag, running, released, delayed,
                    succeeded, failed, dead, dead_letters
  workers           worker, queue, pending, idle_ms
  running           task_id, queue, kind, attempt, crashes, fence, worker, lock_key, age_ms,
                    lease_left_ms
  local             the worker of this machine, if its state directory can be read: pid, worker,
                    started, drain: timeout_ms, kill_after_ms, margin_ms, extend_at_most_ms,
                    stop_timeout_ms (null: no limit, or unknown)";

/// Moves the cursor home and clears the screen (ECMA-48: CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[2J";

impl Status {
    pub(super) async fn run(self, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
        let config = Config::load(&global.config, &Environment::of_process())?;
        loop {
            let report = Report::gather(&config, self.limit).await;
            self.show(&report)?;
            if !self.watch {
                let whole = report.is_whole();
                return Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
            tokio::time::sleep(self.every.max(Duration::from_millis(100))).await;
        }
    }

    fn show(&self, report: &Report) -> anyhow::Result<()> {
        let errors =
            [&report.redis, &report.postgres].into_iter().filter_map(|it| it.error.as_ref());
        let mut page = Vec::new();
        if self.json {
            writeln!(page, "{}", serde_json::to_string(report)?)?;
        } else {
            write_page(&mut page, report)?;
        }
        let mut out = io::stdout().lock();
        if self.watch && !self.json {
            let clear = if out.is_terminal() { CLEAR } else { "\n" };
            write!(out, "{clear}{}\n\n", report.time)?;
            errors.clone().try_for_each(|error| writeln!(out, "{error}\n"))?;
        }
        out.write_all(&page)?;
        out.flush()?;
        if !self.watch {
            errors.for_each(|error| eprintln!("queue-worker: {error}"));
        }
        Ok(())
    }
}

fn write_page(out: &mut impl Write, report: &Report) -> io::Result<()> {
    write_queues(out, &report.queues)?;
    if let Some(local) = &report.local {
        writeln!(out)?;
        write_local(out, local)?;
    }
    if let Some(workers) = &report.workers {
        writeln!(out)?;
        write_workers(out, workers)?;
    }
    if let Some(running) = &report.running {
        writeln!(out)?;
        write_running(out, running)?;
        let all: u64 = report.queues.iter().filter_map(|queue| queue.running).sum();
        let more = all.saturating_sub(running.len() as u64);
        if more > 0 {
            writeln!(out, "and {more} more; --limit shows more of them")?;
        }
    }
    Ok(())
}

fn write_queues(out: &mut impl Write, queues: &[QueueLine]) -> io::Result<()> {
    let mut table = Table::new(&[
        ("QUEUE", Side::Left),
        ("STREAM", Side::Right),
        ("PENDING", Side::Right),
        ("LAG", Side::Right),
        ("RUNNING", Side::Right),
        ("RELEASED", Side::Right),
        ("DELAYED", Side::Right),
        ("SUCCEEDED", Side::Right),
        ("FAILED", Side::Right),
        ("DEAD", Side::Right),
        ("LETTERS", Side::Right),
    ]);
    let number = |count: Option<u64>| count.map(|count| count.to_string()).unwrap_or_default();
    for queue in queues {
        let note = if queue.configured { "" } else { " (not configured)" };
        let numbers = [
            queue.length,
            queue.pending,
            queue.lag,
            queue.running,
            queue.released,
            queue.delayed,
            queue.succeeded,
            queue.failed,
            queue.dead,
            queue.dead_letters,
        ];
        let name = format!("{}{note}", queue.name);
        table.row(std::iter::once(name).chain(numbers.map(number)));
    }
    table.write(out)
}

fn write_local(out: &mut impl Write, local: &Local) -> io::Result<()> {
    write!(out, "here: worker {}, pid {}", local.worker, local.pid)?;
    if let Some(drain) = &local.drain {
        let show = |ms| format_duration(Duration::from_millis(ms));
        let (timeout, kill_after) = (show(drain.timeout_ms), show(drain.kill_after_ms));
        write!(out, "; a drain may take {timeout} + {kill_after} + {}", show(drain.margin_ms))?;
        if let Some(limit) = drain.stop_timeout_ms {
            write!(out, ", a stop {}", show(limit))?;
        }
        if drain.extend_at_most_ms > 0 {
            write!(out, ", and {} more while tasks end", show(drain.extend_at_most_ms))?;
        }
    }
    writeln!(out)
}

fn write_workers(out: &mut impl Write, workers: &[WorkerLine]) -> io::Result<()> {
    if workers.is_empty() {
        return writeln!(out, "no workers");
    }
    let mut table = Table::new(&[
        ("WORKER", Side::Left),
        ("QUEUE", Side::Left),
        ("PENDING", Side::Right),
        ("IDLE", Side::Right),
    ]);
    for line in workers {
        let idle = span(Duration::from_millis(line.idle_ms));
        table.row([line.worker.clone(), line.queue.clone(), line.pending.to_string(), idle]);
    }
    table.write(out)
}

fn write_running(out: &mut impl Write, running: &[RunningLine]) -> io::Result<()> {
    if running.is_empty() {
        return writeln!(out, "nothing runs");
    }
    let mut table = Table::new(&[
        ("RUNNING TASK", Side::Left),
        ("QUEUE", Side::Left),
        ("KIND", Side::Left),
        ("AGE", Side::Right),
        ("LEASE LEFT", Side::Right),
        ("ATTEMPT", Side::Right),
        ("CRASHES", Side::Right),
        ("FENCE", Side::Right),
        ("WORKER", Side::Left),
        ("LOCK KEY", Side::Left),
    ]);
    for line in running {
        table.row([
            line.task_id.clone(),
            line.queue.clone(),
            line.kind.clone(),
            span(Duration::from_millis(line.age_ms)),
            span(Duration::from_millis(line.lease_left_ms)),
            line.attempt.to_string(),
            line.crashes.to_string(),
            line.fence.to_string(),
            line.worker.clone().unwrap_or_default(),
            line.lock_key.clone().unwrap_or_default(),
        ]);
    }
    table.write(out)
}

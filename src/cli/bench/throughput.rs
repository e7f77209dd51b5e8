//! A backlog, a fresh worker process, and how fast it is gone.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::servers::{EXEC_CONCURRENCY, GIT_CONCURRENCY, STREAM, Servers};

/// What the tasks do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Load {
    /// Nothing, as an external effect: claim and completion are two commits.
    External,
    /// `SELECT 1` in the completion's transaction: one commit.
    Transaction,
    /// An insert in a transaction of its own.
    Sql,
    /// An insert in a transaction shared with others.
    SqlBatch,
    /// The program `true`.
    Exec,
    /// Commits of a repository.
    #[value(skip)]
    Git,
    /// Waits until it is cancelled.
    #[value(skip)]
    Hold,
}

impl Load {
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::External => "noop",
            Self::Transaction => "transaction",
            Self::Sql => "sql",
            Self::SqlBatch => "sql_batch",
            Self::Exec => "exec",
            Self::Git => "commits",
            Self::Hold => "hold",
        }
    }

    const fn concurrency(self) -> usize {
        match self {
            Self::External | Self::Transaction | Self::Sql | Self::SqlBatch => 64,
            Self::Exec => EXEC_CONCURRENCY,
            Self::Git => GIT_CONCURRENCY,
            // All that a worker takes into its hands.
            Self::Hold => 2_000,
        }
    }
}

/// Entries added by one write.
const PIPELINE: u32 = 1_000;

/// A measurement that makes no progress for this long is broken.
const STALLED: Duration = Duration::from_secs(60);

/// Tasks per second, from the first that is gone to the last.
pub(super) async fn rate(servers: &Servers, load: Load, tasks: u32) -> anyhow::Result<f64> {
    let mut redis = servers.redis().await?;
    enqueue(&mut redis, load, tasks).await?;
    let worker = start(servers, load)?;
    let mut first = None;
    let mut last_progress = (Instant::now(), u64::from(tasks));
    let rate = loop {
        let length: u64 = redis::cmd("XLEN").arg(STREAM).query_async(&mut redis).await?;
        let now = Instant::now();
        if length < last_progress.1 {
            last_progress = (now, length);
            first.get_or_insert((now, length));
        } else if now - last_progress.0 > STALLED {
            bail!("{load:?}: no progress at {length} of {tasks} tasks");
        }
        if let (0, Some((start, left))) = (length, first) {
            #[expect(clippy::cast_precision_loss, reason = "a count of tasks")]
            break left as f64 / (now - start).as_secs_f64();
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    stop(worker).await?;
    Ok(rate)
}

/// Resident memory of a worker, in MiB, with this many tasks in flight.
pub(super) async fn memory(servers: &Servers, tasks: u32) -> anyhow::Result<f64> {
    let mut redis = servers.redis().await?;
    enqueue(&mut redis, Load::Hold, tasks).await?;
    let worker = start(servers, Load::Hold)?;
    let pool = sqlx::PgPool::connect(&servers.database).await?;
    let start = Instant::now();
    loop {
        let running: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM queue_worker.processed_tasks WHERE status = 'running'",
        )
        .fetch_one(&pool)
        .await?;
        if running >= i64::from(tasks) {
            break;
        }
        if start.elapsed() > STALLED {
            bail!("only {running} of {tasks} tasks came into flight");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // One heartbeat over all of them, which is part of having them in flight.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let pid = worker.id().context("the worker has ended")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u32>().ok()
        })
        .context("no VmRSS in /proc")?;
    stop(worker).await?;
    redis::cmd("DEL").arg(STREAM).query_async::<()>(&mut redis).await?;
    Ok(f64::from(kib) / 1024.0)
}

async fn enqueue(
    redis: &mut redis::aio::MultiplexedConnection,
    load: Load,
    tasks: u32,
) -> anyhow::Result<()> {
    let run = uuid::Uuid::new_v4();
    let mut sent = 0;
    while sent < tasks {
        let mut pipeline = redis::pipe();
        for n in sent..(sent + PIPELINE).min(tasks) {
            pipeline
                .cmd("XADD")
                .arg(STREAM)
                .arg("*")
                .arg("task_id")
                .arg(format!("{run}-{n}"))
                .arg("kind")
                .arg(load.kind())
                .arg("payload")
                .arg("a payload of some forty bytes, as many do")
                .ignore();
        }
        pipeline.query_async::<()>(redis).await?;
        sent += PIPELINE;
    }
    Ok(())
}

/// Starts a worker process that knows the bench's native handlers.
pub(super) fn start(servers: &Servers, load: Load) -> anyhow::Result<Child> {
    servers.write_config(load.concurrency())?;
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(servers.folder().join("worker.log"))?;
    Ok(Command::new(std::env::current_exe()?)
        .args(["bench", "--worker"])
        .arg(servers.config())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()?)
}

/// Terminates a worker, which must drain well.
pub(super) async fn stop(mut worker: Child) -> anyhow::Result<()> {
    let pid = worker.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    kill_process(pid.context("the worker has ended by itself")?, Signal::TERM)?;
    // A worker full of tasks that wait is asked twice.
    if tokio::time::timeout(Duration::from_secs(2), worker.wait()).await.is_err() {
        kill_process(pid.context("the worker has ended by itself")?, Signal::TERM)?;
    }
    let status = worker.wait().await?;
    if !status.success() {
        bail!("a worker ended its drain with {status}");
    }
    Ok(())
}

//! The servers, the workers, and what is asked of the ledger.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{PgPool, Row};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use uuid::Uuid;

use super::report::Report;
use crate::cli::trial;
use crate::private_servers::{
    AppendFsync, PostgresOptions, PostgresServer, RedisOptions, RedisServer, random_password,
};

/// Nothing in the demo takes longer.
const LIMIT: Duration = Duration::from_secs(80);

/// Everything that the demo plays on. Dropping it ends all processes.
pub(super) struct Stage {
    redis: RedisServer,
    _postgres: PostgresServer,
    database: String,
    pool: PgPool,
    folder: TempDir,
}

/// One worker process.
pub(super) struct Worker {
    child: Child,
    id: Uuid,
}

impl Stage {
    pub(super) async fn set() -> anyhow::Result<Self> {
        let options = RedisOptions {
            append_only: Some(AppendFsync::Always),
            password: Some(random_password()),
            ..RedisOptions::default()
        };
        let redis = RedisServer::start(options).await?;
        let options =
            PostgresOptions { password: Some(random_password()), ..PostgresOptions::default() };
        let postgres = PostgresServer::start(options).await?;
        let database = postgres.create_database("demo").await?;
        let folder = tempfile::tempdir()?;
        let pool = PgPool::connect(&database).await?;
        sqlx::query(
            "CREATE TABLE charges (task_id text, fence bigint, at timestamptz DEFAULT now())",
        )
        .execute(&pool)
        .await?;
        let stage = Self { redis, _postgres: postgres, database, pool, folder };
        stage.write_config()?;
        trial::migrate(&stage.config()).await?;
        Ok(stage)
    }

    fn write_config(&self) -> anyhow::Result<()> {
        let journal = self.journal();
        // Every tenth program fails for good, which is an outcome too.
        let script = format!(
            "echo \"$QUEUE_WORKER_TASK_ID\" >> {}; sleep 0.25; \
             case $QUEUE_WORKER_TASK_ID in *[13579]7) exit 65;; esac; echo done",
            journal.display()
        );
        let text = format!(
            r#"
[redis]
url = "{redis}"

[postgres]
url = "{postgres}"

[drain]
timeout = "10s"

[[queue]]
name = "demo"
concurrency = 8

[handler.charge]
type = "sql"
statement = "INSERT INTO charges (task_id, fence) SELECT $2, $3 FROM pg_sleep(0.02)"

[handler.render]
type = "exec"
command = ["/bin/sh", "-c", '''{script}''']
timeout = "30s"

[handler.commits]
type = "git-analysis"
protocols = ["file"]
trusted_paths = ["*"]
mirrors = "{mirrors}"

[log]
format = "text"
"#,
            redis = self.redis.url(),
            postgres = self.database,
            mirrors = self.folder.path().join("mirrors").display(),
        );
        std::fs::write(self.config(), text)?;
        Ok(())
    }

    /// Where there is room for files.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn config(&self) -> PathBuf {
        self.folder.path().join("queue-worker.toml")
    }

    fn journal(&self) -> PathBuf {
        self.folder.path().join("renders")
    }

    /// Starts a worker and waits until it is ready to pull.
    pub(super) async fn start_worker(&self, name: &str) -> anyhow::Result<Worker> {
        let state = self.folder.path().join(name);
        std::fs::create_dir(&state)?;
        let log = std::fs::File::create(self.folder.path().join(format!("{name}.log")))?;
        let child = Command::new(std::env::current_exe()?)
            .args(["run", "--config"])
            .arg(self.config())
            .env("QUEUE_WORKER_WORKER__STATE_DIR", &state)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let id = wait("a worker to start", async || {
            Ok(trial::noted_worker(&state).map(|(_, worker)| worker))
        })
        .await?;
        Ok(Worker { child, id })
    }

    /// Half of the tasks are sql effects, half are programs.
    pub(super) async fn enqueue(&self, tasks: u32) -> anyhow::Result<()> {
        let mut lines = String::new();
        for n in 0..tasks {
            let kind = if n % 2 == 0 { "charge" } else { "render" };
            // Programs have the odd numbers, of which a tenth end in an odd digit and a 7.
            let id = format!("{kind}-{n:05}");
            writeln!(lines, r#"{{"task_id":"{id}","kind":"{kind}","payload":"demo"}}"#)?;
        }
        let file = self.folder.path().join("tasks.jsonl");
        std::fs::write(&file, lines)?;
        let status = Command::new(std::env::current_exe()?)
            .args(["enqueue", "demo", "--file"])
            .arg(&file)
            .arg("--config")
            .arg(self.config())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .await?;
        if !status.success() {
            bail!("queue-worker enqueue ended with {status}");
        }
        Ok(())
    }

    /// The programs that a worker runs right now, with their fences. Effects in the database last too
    /// short to be met twice.
    async fn running_under(&self, worker: &Worker) -> anyhow::Result<Vec<(String, i64)>> {
        let rows = sqlx::query(
            "SELECT task_id, fence FROM queue_worker.processed_tasks \
             WHERE status = 'running' AND worker = $1 AND kind = 'render'",
        )
        .bind(worker.id)
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    /// The programs that the worker was met with. Effects in the database last too short for whoever
    /// wants to do something about it, and so may a second question.
    pub(super) async fn until_busy(&self, worker: &Worker) -> anyhow::Result<Vec<(String, i64)>> {
        wait("a worker to be in mid-task", async || {
            let running = self.running_under(worker).await?;
            Ok((!running.is_empty()).then_some(running))
        })
        .await
    }

    /// Seconds from the kill until every task that it cut off was claimed again.
    pub(super) async fn until_taken_over(
        &self,
        victims: &[(String, i64)],
        kill: Instant,
    ) -> anyhow::Result<f64> {
        for (task, fence) in victims {
            wait("a killed task to be taken over", async || {
                let now: i64 = sqlx::query_scalar(
                    "SELECT fence FROM queue_worker.processed_tasks WHERE task_id = $1 \
                     AND (fence > $2 OR status <> 'running')",
                )
                .bind(task)
                .bind(fence)
                .fetch_optional(&self.pool)
                .await?
                .unwrap_or(0);
                Ok((now > 0).then_some(()))
            })
            .await?;
        }
        Ok(kill.elapsed().as_secs_f64())
    }

    pub(super) async fn until_all_ended(&self, tasks: u32) -> anyhow::Result<()> {
        wait("every task to end", async || {
            let ended: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM queue_worker.processed_tasks \
                 WHERE status IN ('succeeded', 'failed', 'dead')",
            )
            .fetch_one(&self.pool)
            .await?;
            Ok((ended >= i64::from(tasks)).then_some(()))
        })
        .await
    }

    pub(super) async fn count(&self, enqueued: u32) -> anyhow::Result<Report> {
        let statuses = sqlx::query(
            "SELECT count(*) FILTER (WHERE status = 'succeeded'), \
             count(*) FILTER (WHERE status = 'failed'), count(*) FILTER (WHERE status = 'dead') \
             FROM queue_worker.processed_tasks",
        )
        .fetch_one(&self.pool)
        .await?;
        let effects =
            sqlx::query("SELECT count(*), count(*) - count(DISTINCT task_id) FROM charges")
                .fetch_one(&self.pool)
                .await?;
        let (succeeded, failed, dead) =
            (statuses.try_get::<i64, _>(0)?, statuses.try_get(1)?, statuses.try_get(2)?);
        let journal = std::fs::read_to_string(self.journal())?;
        let starts = journal.lines().count();
        let distinct = journal.lines().collect::<std::collections::HashSet<_>>().len();
        Ok(Report {
            enqueued,
            planned_failures: planned_failures(enqueued),
            succeeded,
            failed,
            dead,
            effects_in_database: effects.try_get(0)?,
            lost: i64::from(enqueued) - succeeded - failed - dead,
            duplicated: effects.try_get(1)?,
            external_reruns: i64::try_from(starts - distinct)?,
            zombie_locks: self.locks().await?,
            ..Report::default()
        })
    }

    async fn locks(&self) -> anyhow::Result<i64> {
        Ok(i64::try_from(trial::task_locks(&self.redis.url()).await?.len())?)
    }
}

impl Worker {
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.start_kill().context("failed to kill a worker")
    }

    /// Seconds from the SIGTERM to the exit, which must be with 0.
    pub(super) async fn terminate(&mut self) -> anyhow::Result<f64> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let pid = pid.context("the worker has ended by itself")?;
        let start = Instant::now();
        kill_process(pid, Signal::TERM)?;
        let status = self.child.wait().await?;
        if !status.success() {
            bail!("a worker ended its drain with {status}");
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Programs have the odd numbers; those that end in an odd digit and a 7 fail for good.
fn planned_failures(tasks: u32) -> i64 {
    i64::from((0..tasks).map(|n| u32::from(n % 20 == 17)).sum::<u32>())
}

async fn wait<T>(
    what: &str,
    ask: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    trial::until(what, LIMIT, ask).await
}

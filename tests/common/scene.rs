//! Real servers, real worker processes, and what tests ask about them.
//!
//! The default handlers: those of an `instance`, and `exit`, which writes `ID start FENCE` to the
//! journal and ends with the code in its payload.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use queue_worker::domain::WorkerId;
use queue_worker::ledger::{PostgresLedger, PostgresOptions as LedgerOptions};
use queue_worker::private_servers::{
    AppendFsync, PostgresOptions, PostgresServer, RedisOptions, RedisServer,
};
use sqlx::{PgPool, Row};
use tempfile::TempDir;
use tokio::process::Command;

use super::{Worker, instance, wait_for};

/// The queue of the default configuration.
pub const QUEUE: &str = "q";
/// Its stream.
pub const STREAM: &str = "qw:{q}:tasks";
/// Its consumer group.
pub const GROUP: &str = "qw";

/// A folder with servers and everything that workers need.
pub struct Scene {
    pub redis: RedisServer,
    pub postgres: PostgresServer,
    pub pool: PgPool,
    pub database: String,
    folder: TempDir,
}

/// The row of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRow {
    pub status: String,
    pub fence: i64,
    pub attempts: i32,
    pub crashes: i32,
    pub error: Option<String>,
    pub result: Option<Vec<u8>>,
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    pub id: uuid::Uuid,
    pub task_id: Option<String>,
    pub reason: String,
    pub message: String,
    pub status: Option<String>,
    pub tail: Option<Vec<u8>>,
    pub payload: Option<Vec<u8>>,
    pub fields: Option<Vec<Vec<u8>>>,
    pub attempts: i32,
}

impl Scene {
    /// Servers that start fresh; Redis survives a restart with all that it confirmed.
    pub async fn start() -> Self {
        let redis =
            RedisOptions { append_only: Some(AppendFsync::Always), ..RedisOptions::default() };
        Self::with(redis, PostgresOptions::volatile()).await
    }

    /// Servers of the test's own choice.
    pub async fn with(redis: RedisOptions, postgres: PostgresOptions) -> Self {
        let redis = RedisServer::start(redis).await.expect("start redis");
        let postgres = PostgresServer::start(postgres).await.expect("start postgres");
        let database = postgres.create_database("test").await.expect("create a database");
        let pool = PgPool::connect(&database).await.expect("connect to postgres");
        sqlx::query("CREATE TABLE effects (task_id text, fence bigint)")
            .execute(&pool)
            .await
            .expect("create the table of effects");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let scene = Self { redis, postgres, pool, database, folder };
        scene.write_config("");
        let migrated =
            scene.command(["migrate"]).stdout(Stdio::null()).status().await.expect("run migrate");
        assert!(migrated.success(), "migrate ended with {migrated}");
        scene
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    fn folder(&self) -> &str {
        self.path().to_str().expect("a readable path")
    }

    pub fn config_path(&self) -> PathBuf {
        self.path().join("queue-worker.toml")
    }

    /// Writes the default configuration and `more` after it (more tables, or keys of `[log]`).
    pub fn write_config(&self, more: &str) {
        self.write_config_for(&self.redis.url(), &self.database, more);
    }

    /// The same with other addresses: those of a proxy.
    pub fn write_config_for(&self, redis: &str, postgres: &str, more: &str) {
        let journal = instance::journal_path(self.folder());
        let more = format!(
            r#"
[handler.exit]
type = "exec"
command = ["/bin/sh", "-c", '''
read -r code
echo "$QUEUE_WORKER_TASK_ID start $QUEUE_WORKER_FENCE" >> {journal}
echo "ends with $code" >&2
exit "$code"
''']
backoff_base = "200ms"
max_attempts = 3

[log]
format = "text"
{more}"#
        );
        let text = instance::config(redis, postgres, self.folder(), 8, &more);
        std::fs::write(self.config_path(), text).expect("write the configuration");
    }

    /// Lets the handlers `gate` end.
    pub fn open_gate(&self) {
        std::fs::write(instance::gate_path(self.folder()), "").expect("open the gate");
    }

    /// Lets those end that run under this fence.
    pub fn open_gate_for(&self, fence: i64) {
        let gate = instance::gate_path(self.folder());
        std::fs::write(format!("{gate}-{fence}"), "").expect("open the gate");
    }

    /// The program with the scene's configuration.
    pub fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_queue-worker"));
        command
            .args(arguments)
            .arg("--config")
            .arg(self.config_path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Starts a worker and waits until it pulls.
    pub async fn worker(&self, name: &str) -> Worker {
        self.worker_with(name, &[]).await
    }

    /// The same with more environment: `QUEUE_WORKER_DRAIN__TIMEOUT` and the like.
    pub async fn worker_with(&self, name: &str, environment: &[(&str, &str)]) -> Worker {
        let worker = self.spawn_worker(name, environment);
        worker.until_logged("both stores answer").await;
        worker
    }

    /// Starts a worker with more environment, and waits for nothing.
    pub fn spawn_worker(&self, name: &str, environment: &[(&str, &str)]) -> Worker {
        let state = self.path().join(name);
        std::fs::create_dir_all(&state).expect("create the state directory");
        let log_path = self.path().join(format!("{name}.log"));
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log_path)
            .expect("create the log");
        let log_start = log.metadata().expect("the log is a file").len();
        let child = self
            .command(["run"])
            .env("QUEUE_WORKER_WORKER__STATE_DIR", &state)
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start a worker");
        Worker { child, log_path, log_start, name: name.to_owned() }
    }

    pub async fn redis_connection(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.redis.url()).expect("a redis url");
        // However busy the machine is.
        let patient = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        client
            .get_multiplexed_async_connection_with_config(&patient)
            .await
            .expect("connect to redis")
    }

    /// XADD of raw fields, as any producer does it.
    pub async fn xadd(&self, fields: &[(&str, &[u8])]) -> String {
        let mut connection = self.redis_connection().await;
        let mut command = redis::cmd("XADD");
        command.arg(STREAM).arg("*");
        for (name, value) in fields {
            command.arg(*name).arg(*value);
        }
        command.query_async(&mut connection).await.expect("XADD")
    }

    /// A task with no options.
    pub async fn task(&self, id: &str, kind: &str, payload: &str) -> String {
        self.xadd(&[
            ("task_id", id.as_bytes()),
            ("kind", kind.as_bytes()),
            ("payload", payload.as_bytes()),
        ])
        .await
    }

    /// A task with options: `lock_key`, `max_attempts` and the like.
    pub async fn task_with(
        &self,
        id: &str,
        kind: &str,
        payload: &[u8],
        options: &[(&str, &str)],
    ) -> String {
        let mut fields: Vec<(&str, &[u8])> =
            vec![("task_id", id.as_bytes()), ("kind", kind.as_bytes()), ("payload", payload)];
        fields.extend(options.iter().map(|(name, value)| (*name, value.as_bytes())));
        self.xadd(&fields).await
    }

    /// The dead letters, oldest first.
    pub async fn letters(&self) -> Vec<Letter> {
        let rows = sqlx::query(
            "SELECT id, task_id, reason, message, status, tail, payload, fields, attempts \
             FROM queue_worker.dead_letters ORDER BY created_at",
        )
        .fetch_all(&self.pool)
        .await
        .expect("read the dead letters");
        rows.iter()
            .map(|row| Letter {
                id: row.get(0),
                task_id: row.get(1),
                reason: row.get(2),
                message: row.get(3),
                status: row.get(4),
                tail: row.get(5),
                payload: row.get(6),
                fields: row.get(7),
                attempts: row.get(8),
            })
            .collect()
    }

    /// How many dead letters there are.
    pub async fn letters_without_bytes(&self) -> i64 {
        self.count("SELECT count(*) FROM queue_worker.dead_letters").await
    }

    /// The ledger that the worker uses, for what has no command of its own.
    pub fn ledger(&self) -> PostgresLedger {
        let connect = self.database.parse().expect("a postgres url");
        PostgresLedger::new(LedgerOptions::new(connect, WorkerId::random()))
    }

    /// The row of a task, if there is one.
    pub async fn row(&self, id: &str) -> Option<TaskRow> {
        let row = sqlx::query(
            "SELECT status::text, fence, attempts, crashes, error, result \
             FROM queue_worker.processed_tasks WHERE task_id = $1",
        )
        .bind(id)
        .fetch_optional(&self.pool)
        .await
        .expect("read the task")?;
        Some(TaskRow {
            status: row.get(0),
            fence: row.get(1),
            attempts: row.get(2),
            crashes: row.get(3),
            error: row.get(4),
            result: row.get(5),
        })
    }

    pub async fn until_status(&self, id: &str, status: &str) -> TaskRow {
        wait_for(&format!("{id} to be {status}"), async || {
            self.row(id).await.is_some_and(|row| row.status == status)
        })
        .await;
        self.row(id).await.expect("just seen")
    }

    /// Waits until the lease that a task has now would be over, by the database's clock, had nobody
    /// renewed it; somebody must have, under the same fence.
    pub async fn until_it_outlives_its_lease(&self, id: &str) {
        let (lease_until, fence): (String, i64) = sqlx::query_as(
            "SELECT lease_until::text, fence FROM queue_worker.processed_tasks WHERE task_id = $1",
        )
        .bind(id)
        .fetch_one(&self.pool)
        .await
        .expect("a task that runs");
        wait_for(&format!("the lease of {id} to be over"), async || {
            sqlx::query_scalar("SELECT clock_timestamp() > $1::text::timestamptz")
                .bind(&lease_until)
                .fetch_one(&self.pool)
                .await
                .expect("the time")
        })
        .await;
        let renewed: bool = sqlx::query_scalar(
            "SELECT fence = $2 AND status = 'running' AND lease_until > clock_timestamp() \
             FROM queue_worker.processed_tasks WHERE task_id = $1",
        )
        .bind(id)
        .bind(fence)
        .fetch_one(&self.pool)
        .await
        .expect("a task that runs");
        assert!(renewed, "nobody has renewed the lease of {id}");
    }

    /// A number that Postgres counts.
    pub async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&self.pool).await.expect(query)
    }

    /// Lines of the journal: id, `start` or `end`, fence.
    pub fn journal(&self) -> Vec<(String, String, i64)> {
        instance::lines(&self.journal_text())
            .map(|(id, what, fence)| (id.to_owned(), what.to_owned(), fence))
            .collect()
    }

    fn journal_text(&self) -> String {
        std::fs::read_to_string(instance::journal_path(self.folder())).unwrap_or_default()
    }

    /// How often `what` (`start` or `end`) of a task is in the journal.
    pub fn journal_count(&self, id: &str, what: &str) -> usize {
        instance::count(&self.journal_text(), id, what)
    }

    pub async fn until_journal(&self, id: &str, what: &str) {
        wait_for(&format!("{id} {what} in the journal"), async || self.journal_count(id, what) > 0)
            .await;
    }

    /// How many entries of the stream are pending.
    pub async fn pending(&self) -> u64 {
        let mut connection = self.redis_connection().await;
        let summary: redis::Value = redis::cmd("XPENDING")
            .arg(STREAM)
            .arg(GROUP)
            .query_async(&mut connection)
            .await
            .unwrap_or(redis::Value::Nil);
        match summary {
            redis::Value::Array(items) => match items.first() {
                Some(redis::Value::Int(count)) => u64::try_from(*count).unwrap_or(0),
                _ => 0,
            },
            _ => 0,
        }
    }

    /// How many entries the stream holds.
    pub async fn length(&self) -> u64 {
        let mut connection = self.redis_connection().await;
        redis::cmd("XLEN").arg(STREAM).query_async(&mut connection).await.expect("XLEN")
    }

    /// The connections to Redis whose last command was `command`, by their ids.
    pub async fn clients(&self, command: &str) -> Vec<u64> {
        let mut connection = self.redis_connection().await;
        let list: String =
            redis::cmd("CLIENT").arg("LIST").query_async(&mut connection).await.expect("a list");
        let wanted = format!("cmd={command}");
        list.lines()
            .filter(|line| line.split(' ').any(|word| word == wanted))
            .filter_map(|line| line.strip_prefix("id=")?.split(' ').next()?.parse().ok())
            .collect()
    }

    /// The lock keys that exist.
    pub async fn locks(&self) -> Vec<String> {
        let mut connection = self.redis_connection().await;
        redis::cmd("KEYS").arg("lock:*").query_async(&mut connection).await.expect("KEYS")
    }

    pub async fn until_empty(&self) {
        wait_for("the stream to be empty", async || {
            self.length().await == 0 && self.pending().await == 0
        })
        .await;
    }
}

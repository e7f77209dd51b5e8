//! The servers, the folder with configurations, logs and journal, and questions to the ledger.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tempfile::TempDir;
use tokio::sync::Mutex;
use url::Url;

use super::proxy::AckDropper;
use super::receiver::Receiver;
use crate::cli::trial;
use crate::private_servers::{
    AppendFsync, PostgresOptions, PostgresServer, RedisOptions, RedisServer, random_password,
};

/// The queue of the drill, and its stream.
pub(super) const QUEUE: &str = "drill";
pub(super) const STREAM: &str = "qw:{drill}:tasks";
pub(super) const GROUP: &str = "qw";
/// The consumer that holds what was given back.
pub(super) const NOBODY: &str = "given-back";

/// The default of `lease.ttl`.
pub(super) const TTL: Duration = Duration::from_secs(5);
/// The default of `lease.sweep`: a worker whose connection was cut pauses for as long.
pub(super) const SWEEP: Duration = Duration::from_millis(500);
/// What a drain may take: `drain.timeout`, `drain.kill_after` and `drain.margin` below.
pub(super) const DRAIN_BUDGET: Duration = Duration::from_secs(7);

/// How long a question to the ledger may take, connecting included.
const PATIENCE: Duration = Duration::from_secs(3);

/// Everything that the drill stands on. Dropping it ends all servers.
pub(super) struct Ground {
    pub(super) redis: Mutex<RedisServer>,
    pub(super) postgres: Mutex<PostgresServer>,
    pub(super) redis_url: String,
    pub(super) pool: PgPool,
    pub(super) proxy: AckDropper,
    pub(super) receiver: Receiver,
    /// Whether Postgres is being restarted right now.
    pub(super) postgres_is_away: AtomicBool,
    database: String,
    folder: TempDir,
}

impl Ground {
    pub(super) async fn prepare(workers: u32) -> anyhow::Result<Self> {
        let options = RedisOptions {
            append_only: Some(AppendFsync::Always),
            password: Some(random_password()),
            ..RedisOptions::default()
        };
        let redis = RedisServer::start(options).await?;
        let options =
            PostgresOptions { password: Some(random_password()), ..PostgresOptions::default() };
        let postgres = PostgresServer::start(options).await?;
        let database = postgres.create_database("drill").await?;
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(PATIENCE)
            .connect(&database)
            .await?;
        for statement in TABLES {
            sqlx::query(statement).execute(&pool).await?;
        }
        let proxy = AckDropper::start(redis.port()).await?;
        let ground = Self {
            redis_url: redis.url(),
            redis: Mutex::new(redis),
            postgres: Mutex::new(postgres),
            pool,
            proxy,
            receiver: Receiver::start().await?,
            postgres_is_away: AtomicBool::new(false),
            database,
            folder: tempfile::Builder::new().prefix("queue-worker-drill-").tempdir()?,
        };
        for worker in 0..workers {
            ground.write_config(worker)?;
        }
        trial::migrate(&ground.config(0)).await?;
        Ok(ground)
    }

    /// The same for all workers but the state directory.
    fn write_config(&self, worker: u32) -> anyhow::Result<()> {
        let state = self.state_dir(worker);
        std::fs::create_dir(&state)?;
        let mut proxied = Url::parse(&self.redis_url)?;
        ensure!(proxied.set_port(Some(self.proxy.port())).is_ok(), "redis has no host");
        let text = format!(
            r#"
[worker]
state_dir = "{state}"

[redis]
url = "{redis}"

[postgres]
url = "{postgres}"

[drain]
timeout = "3s"
kill_after = "2s"
margin = "2s"

[[queue]]
name = "{QUEUE}"
concurrency = 16

[handler.charge]
type = "sql"
statement = "INSERT INTO effects (task_id, fence) VALUES ($2, $3)"

[handler.slow_charge]
type = "sql"
statement = "INSERT INTO effects (task_id, fence) SELECT $2, $3 FROM pg_sleep(0.02)"

[handler.account]
type = "sql"
statement = "INSERT INTO effects (task_id, fence, resource) VALUES ($2, $3, convert_from($1, 'UTF8'))"

[handler.refuse]
type = "sql"
statement = "SELECT refuse()"

[handler.render]
type = "exec"
command = ["/bin/sh", "-c", '''{SCRIPT}''']
environment = {{ JOURNAL = "{journal}" }}
max_attempts = 8
backoff_base = "200ms"
backoff_max = "2s"

[handler.notify]
type = "http"
url = "{receiver}"
max_attempts = 8
backoff_base = "200ms"
backoff_max = "2s"

[log]
format = "text"
"#,
            state = state.display(),
            redis = proxied,
            postgres = self.database,
            journal = self.journal().display(),
            receiver = self.receiver.url(),
        );
        std::fs::write(self.config(worker), text).context("write a worker's configuration")
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn config(&self, worker: u32) -> PathBuf {
        self.folder().join(format!("worker-{worker}.toml"))
    }

    pub(super) fn state_dir(&self, worker: u32) -> PathBuf {
        self.folder().join(format!("worker-{worker}"))
    }

    pub(super) fn log(&self, worker: u32) -> PathBuf {
        self.folder().join(format!("worker-{worker}.log"))
    }

    /// Where the programs write `ID start FENCE` and `ID end FENCE`.
    pub(super) fn journal(&self) -> PathBuf {
        self.folder().join("journal")
    }

    /// Leaves the folder behind, and says where it is.
    pub(super) fn keep(&mut self) -> PathBuf {
        self.folder.disable_cleanup(true);
        self.folder().to_owned()
    }

    pub(super) fn is_postgres_away(&self) -> bool {
        self.postgres_is_away.load(Ordering::SeqCst)
    }

    /// A connection to Redis that does not go through the proxy.
    pub(super) async fn redis(&self) -> anyhow::Result<redis::aio::MultiplexedConnection> {
        let client = redis::Client::open(self.redis_url.as_str())?;
        Ok(client.get_multiplexed_async_connection().await?)
    }
}

/// The effects have no unique key, so that a duplicate shows; each look around counts in `looks`.
const TABLES: [&str; 3] = [
    "CREATE TABLE effects (seq bigserial, task_id text, fence bigint, resource text)",
    "CREATE TABLE looks AS SELECT 0::bigint AS n",
    "CREATE FUNCTION refuse() RETURNS void LANGUAGE plpgsql AS \
     'BEGIN RAISE EXCEPTION ''refused, as planned'' USING ERRCODE = ''QW065''; END'",
];

/// Reads seconds, failures to come first, and the exit code after those.
const SCRIPT: &str = r#"
read -r seconds failures code
echo "$QUEUE_WORKER_TASK_ID start $QUEUE_WORKER_FENCE" >> "$JOURNAL"
sleep "$seconds"
[ "$QUEUE_WORKER_ATTEMPT" -gt "$failures" ] || exit 75
echo "$QUEUE_WORKER_TASK_ID end $QUEUE_WORKER_FENCE" >> "$JOURNAL"
exit "$code"
"#;

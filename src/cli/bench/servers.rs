//! The private servers of a bench, and the configuration of its worker.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{bail, ensure};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::private_servers::{
    PostgresOptions, PostgresServer, RedisOptions, RedisServer, random_password,
};

/// The stream of the bench.
pub(super) const STREAM: &str = "qw:{bench}:tasks";

/// How many programs run at once, for the worker and for the yardstick.
pub(super) const EXEC_CONCURRENCY: usize = 16;

/// How many tasks about commits run at once.
pub(super) const GIT_CONCURRENCY: usize = 8;

/// How many effects share a transaction.
const BATCH: usize = 256;

/// Servers, and a folder with a configuration.
pub(super) struct Servers {
    redis: RedisServer,
    password: String,
    _postgres: PostgresServer,
    pub(super) database: String,
    folder: TempDir,
}

impl Servers {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let password = random_password();
        let options = RedisOptions { password: Some(password.clone()), ..RedisOptions::default() };
        let redis = RedisServer::start(options).await?;
        let options = PostgresOptions {
            password: Some(random_password()),
            extra: vec![
                ("shared_buffers".to_owned(), "256MB".to_owned()),
                ("max_wal_size".to_owned(), "4GB".to_owned()),
            ],
            ..PostgresOptions::default()
        };
        let postgres = PostgresServer::start(options).await?;
        let database = postgres.create_database("bench").await?;
        let pool = sqlx::PgPool::connect(&database).await?;
        sqlx::query("CREATE TABLE effects (task_id text, fence bigint)").execute(&pool).await?;
        sqlx::query("CREATE TABLE yardstick (id text PRIMARY KEY, done boolean)")
            .execute(&pool)
            .await?;
        pool.close().await;
        let folder = tempfile::tempdir()?;
        let servers = Self { redis, password, _postgres: postgres, database, folder };
        std::fs::create_dir(servers.folder.path().join("state"))?;
        servers.write_config(64)?;
        let status = Command::new(std::env::current_exe()?)
            .args(["migrate", "--config"])
            .arg(servers.config())
            .stdout(Stdio::null())
            .status()
            .await?;
        if !status.success() {
            bail!("queue-worker migrate ended with {status}");
        }
        Ok(servers)
    }

    pub(super) fn config(&self) -> PathBuf {
        self.folder.path().join("queue-worker.toml")
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A connection to Redis that has logged in and speaks the bare protocol.
    pub(super) async fn bare_redis(&self) -> anyhow::Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.redis.port())).await?;
        let mut redis = BufReader::new(stream);
        redis.get_mut().write_all(format!("AUTH {}\r\n", self.password).as_bytes()).await?;
        let mut answer = String::new();
        redis.read_line(&mut answer).await?;
        ensure!(answer == "+OK\r\n", "redis refused the login: {answer}");
        Ok(redis)
    }

    /// Everything at its default but the concurrency and the log level: a line per task at a rate
    /// of tens of thousands would measure the terminal.
    pub(super) fn write_config(&self, concurrency: usize) -> anyhow::Result<()> {
        let text = format!(
            r#"
[worker]
state_dir = "{state}"

[redis]
url = "{redis}"

[postgres]
url = "{postgres}"

[[queue]]
name = "bench"
concurrency = {concurrency}

[handler.transaction]
type = "sql"
statement = "SELECT 1"
batch = {BATCH}

[handler.sql]
type = "sql"
statement = "INSERT INTO effects (task_id, fence) VALUES ($2, $3)"

[handler.sql_batch]
type = "sql"
statement = "INSERT INTO effects (task_id, fence) VALUES ($2, $3)"
batch = {BATCH}

[handler.exec]
type = "exec"
command = ["true"]

[handler.commits]
type = "git-analysis"
protocols = ["file"]
trusted_paths = ["*"]

[log]
level = "warn"
format = "text"
"#,
            state = self.folder.path().join("state").display(),
            redis = self.redis.url(),
            postgres = self.database,
        );
        std::fs::write(self.config(), text)?;
        Ok(())
    }

    pub(super) async fn redis(&self) -> anyhow::Result<redis::aio::MultiplexedConnection> {
        let client = redis::Client::open(self.redis.url())?;
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    }
}

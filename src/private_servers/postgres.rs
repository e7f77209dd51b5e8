//! A private Postgres on a loopback port, and on a Unix socket where the path is short enough.
//!
//! It counts as ready when its own `postmaster.pid` says so, which is what `pg_ctl --wait` reads:
//! a foreign server on the same port is not mistaken for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use url::Url;

use super::account::Account;
use super::cluster::{Cluster, SUPERUSER};
use super::error::PrivateServerError;
use super::folder::Folder;
use super::port::{START_ATTEMPTS, free_port};
use super::process::{Deadline, Launch, Output, ServerProcess};
use super::program;

/// How long a start may take; recovery after a kill takes seconds.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long an orderly end may take before the processes are killed.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How long `Drop` waits for an immediate shutdown, which frees the shared memory.
const DROP_LIMIT: Duration = Duration::from_secs(5);
/// How often readiness is looked at.
const READY_EVERY: Duration = Duration::from_millis(10);
/// The longest path of a Unix socket (unix(7): 108 bytes with the final NUL).
const SOCKET_PATH_BYTES: usize = 107;
/// The line of `postmaster.pid` that holds the status, counted from zero (miscadmin.h).
const STATUS_LINE: usize = 7;

/// How a private Postgres is set up.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// The folder of its files, made if missing; a temporary one if `None`.
    pub folder: Option<PathBuf>,
    /// The loopback port; a free one if `None`.
    pub port: Option<u16>,
    /// Whether anything is flushed to the disk at all.
    pub fsync: bool,
    /// Whether a commit waits for its flush.
    pub synchronous_commit: bool,
    /// The password of the superuser, asked for on every connection; without one the loopback
    /// is trusted. It takes effect when the folder is first filled.
    pub password: Option<String>,
    /// Further settings of postgresql.conf: name and value, taken last.
    pub extra: Vec<(String, String)>,
}

impl Default for PostgresOptions {
    /// As in production: every commit is flushed.
    fn default() -> Self {
        Self {
            folder: None,
            port: None,
            fsync: true,
            synchronous_commit: true,
            password: None,
            extra: Vec::new(),
        }
    }
}

impl PostgresOptions {
    /// For tests: what was committed survives a kill of the server, but not a power cut.
    pub fn volatile() -> Self {
        // Commits still reach the page cache, so that a killed server has what it confirmed.
        Self { fsync: false, ..Self::default() }
    }

    fn arguments(&self, folder: &Path, port: u16) -> Vec<String> {
        let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
        let sockets = socket_folder(folder, port)
            .map_or_else(String::new, |socket| socket.display().to_string());
        let settings = [
            ("listen_addresses", "127.0.0.1".to_owned()),
            ("port", port.to_string()),
            ("unix_socket_directories", sockets),
            ("fsync", switch(self.fsync)),
            ("synchronous_commit", switch(self.synchronous_commit)),
            ("full_page_writes", switch(self.fsync)),
            // In the data folder, so that a killed server leaves nothing in /dev/shm.
            ("dynamic_shared_memory_type", "mmap".to_owned()),
            ("logging_collector", "off".to_owned()),
            ("log_destination", "stderr".to_owned()),
        ];
        let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value));
        let mut arguments = vec!["-D".to_owned(), folder.join("data").display().to_string()];
        for (name, value) in settings.chain(self.extra.iter().cloned()) {
            arguments.push("-c".to_owned());
            arguments.push(format!("{name}={value}"));
        }
        arguments
    }
}

/// A running private Postgres. Dropping it ends the processes and removes a temporary folder.
#[derive(Debug)]
pub struct PostgresServer {
    // Before `folder`: the processes must be gone when the folder is removed.
    process: ServerProcess,
    cluster: Cluster,
    options: PostgresOptions,
    port: u16,
    folder: Folder,
}

impl PostgresServer {
    /// Makes the cluster if the folder has none yet, starts the server and waits until it accepts
    /// connections.
    pub async fn start(options: PostgresOptions) -> Result<Self, PrivateServerError> {
        let account = Account::for_postgres()?;
        let folder = Folder::open(options.folder.as_deref(), account.as_ref())?;
        let cluster = Cluster { programs: program::postgres_folder()?, account };
        fill(&cluster, &folder, options.password.as_deref()).await?;
        let mut attempt = 1;
        loop {
            let port = match options.port {
                Some(port) => port,
                None => free_port()
                    .map_err(|source| PrivateServerError::Port { server: "postgres", source })?,
            };
            let started = match launch(&cluster, folder.path(), &options, port) {
                Ok(mut process) => wait_ready(&mut process, folder.path()).await.map(|()| process),
                Err(error) => Err(error),
            };
            match started {
                Ok(process) => return Ok(Self { process, cluster, options, port, folder }),
                Err(error)
                    if error.is_lost_port()
                        && options.port.is_none()
                        && attempt < START_ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The database `postgres` over TCP, as the superuser.
    pub fn url(&self) -> String {
        self.database_url("postgres")
    }

    /// The given database over TCP, as the superuser; it need not exist yet.
    pub fn database_url(&self, database: &str) -> String {
        let mut url = self.base_url();
        url.set_host(Some("127.0.0.1")).expect("a constant host");
        url.set_port(Some(self.port)).expect("the URL has a host");
        url.set_path(database);
        url.into()
    }

    /// The given database over the Unix socket, which only root and the server's own user can
    /// reach; `None` where the folder's path is too long for a socket.
    pub fn socket_url(&self, database: &str) -> Option<String> {
        let socket = socket_folder(self.folder.path(), self.port)?;
        let mut url = self.base_url();
        url.set_path(database);
        url.query_pairs_mut()
            .append_pair("host", socket.to_str()?)
            .append_pair("port", &self.port.to_string());
        Some(url.into())
    }

    /// Creates a database if there is none of that name, and returns its URL.
    pub async fn create_database(&self, name: &str) -> Result<String, PrivateServerError> {
        let failed = |source| PrivateServerError::Database {
            action: format!("create database {name}"),
            source,
        };
        let options: PgConnectOptions = self.url().parse().map_err(failed)?;
        let options = options.ssl_mode(PgSslMode::Disable).disable_statement_logging();
        let mut connection = options.connect().await.map_err(failed)?;
        let exists: bool =
            sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
                .bind(name)
                .fetch_one(&mut connection)
                .await
                .map_err(failed)?;
        if !exists {
            // Only the name is put in, as a quoted identifier.
            let statement = format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\""));
            sqlx::query(AssertSqlSafe(statement)).execute(&mut connection).await.map_err(failed)?;
        }
        connection.close().await.map_err(failed)?;
        Ok(self.database_url(name))
    }

    /// The loopback port, the same for the whole life of the value.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process id of the postmaster while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Whether the postmaster runs (a paused one does).
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// SIGKILL to the postmaster and all its processes at once, and waits until they are gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Freezes all its processes (SIGSTOP): connections stay open and nothing is answered.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Thaws them (SIGCONT).
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Ends it in order and at once (SIGINT, a fast shutdown), or by SIGKILL after 30 seconds.
    pub async fn stop(&mut self) {
        self.process.stop(Signal::INT, STOP_LIMIT).await;
    }

    /// Starts it again on the same port with its data; a running one is stopped in order first.
    pub async fn restart(&mut self) -> Result<(), PrivateServerError> {
        self.stop().await;
        self.process = launch(&self.cluster, self.folder.path(), &self.options, self.port)?;
        wait_ready(&mut self.process, self.folder.path()).await
    }

    /// Scheme, user and password; the host is a placeholder without which a URL has no user.
    fn base_url(&self) -> Url {
        let mut url = Url::parse("postgres://localhost/").expect("a constant URL");
        url.set_username(SUPERUSER).expect("the URL has a host");
        // The one character that a URL of the standard takes for an escape and lets pass.
        let password = self.options.password.as_ref().map(|text| text.replace('%', "%25"));
        url.set_password(password.as_deref()).expect("the URL has a host");
        url
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // An immediate shutdown loses nothing that was committed.
        self.process.stop_blocking(Signal::QUIT, DROP_LIMIT);
    }
}

/// Makes the data and the socket folder where they are missing.
async fn fill(
    cluster: &Cluster,
    folder: &Folder,
    password: Option<&str>,
) -> Result<(), PrivateServerError> {
    if let Some(account) = &cluster.account {
        account.give(folder.path())?;
    }
    cluster.make_home(&folder.path().join("socket"))?;
    let data = folder.path().join("data");
    if data.join("PG_VERSION").is_file() {
        return Ok(());
    }
    if folder.is_temporary() && password.is_none() {
        cluster.copy_template(&data).await
    } else {
        cluster.initialise(&data, password).await
    }
}

fn launch(
    cluster: &Cluster,
    folder: &Path,
    options: &PostgresOptions,
    port: u16,
) -> Result<ServerProcess, PrivateServerError> {
    ServerProcess::spawn(&Launch {
        server: "postgres",
        program: &cluster.programs.join("postgres"),
        arguments: options.arguments(folder, port),
        folder,
        output: Output::Log(&folder.join("postgres.log")),
        account: cluster.account.as_ref(),
        death_signal: "INT",
    })
}

async fn wait_ready(process: &mut ServerProcess, folder: &Path) -> Result<(), PrivateServerError> {
    let file = folder.join("data/postmaster.pid");
    let deadline = Deadline::after(START_LIMIT);
    while !process.pid().is_some_and(|pid| is_ready(&file, pid)) {
        process.check_starting(deadline)?;
        tokio::time::sleep(READY_EVERY).await;
    }
    Ok(())
}

/// Whether `postmaster.pid` belongs to the process and says that connections are accepted.
fn is_ready(file: &Path, pid: u32) -> bool {
    let Ok(text) = fs::read_to_string(file) else { return false };
    text.lines().next() == Some(pid.to_string().as_str())
        && text.lines().nth(STATUS_LINE).is_some_and(|status| status.trim() == "ready")
}

/// The folder of the Unix socket, if the socket's path is not too long.
fn socket_folder(folder: &Path, port: u16) -> Option<PathBuf> {
    let socket = folder.join("socket");
    let path = socket.join(format!(".s.PGSQL.{port}"));
    (path.as_os_str().len() <= SOCKET_PATH_BYTES).then_some(socket)
}

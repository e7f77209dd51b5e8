//! A Postgres of the test's own, and shorthands for tasks and claims.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_worker::domain::{Kind, LockKey, PayloadHash, QueueName, Task, TaskId, WorkerId};
use queue_worker::ledger::{
    Claimed, Grant, Ledger, LedgerError, PostgresLedger, PostgresOptions, migrate,
};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;

/// How long a condition may take to become true.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running server, stopped when dropped.
pub(crate) struct Server {
    directory: TempDir,
    process: Option<Child>,
}

impl Server {
    /// An empty server.
    pub(crate) async fn empty() -> Self {
        let directory = TempDir::with_prefix("queue-worker-ledger-").unwrap();
        let path = directory.path();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        if let Some((uid, gid)) = unprivileged() {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
        }
        make_cluster(path);
        let mut server = Self { directory, process: None };
        server.start().await;
        server
    }

    /// A server with the schema.
    pub(crate) async fn migrated() -> Self {
        let server = Self::empty().await;
        migrate(&server.connect_options()).await.unwrap();
        server
    }

    /// Starts the server and waits until it takes connections.
    pub(crate) async fn start(&mut self) {
        let path = self.directory.path();
        let child = program("postgres", path)
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB", "-k"])
            .arg(path)
            .arg("-D")
            .arg(path.join("data"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(child);
        eventually(async || self.connect_options().connect().await.ok()).await;
    }

    /// Stops the server at once; its clients' connections break.
    pub(crate) fn stop(&mut self) {
        let Some(mut child) = self.process.take() else { return };
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::QUIT).unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn connect_options(&self) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .socket(self.directory.path())
            .username("postgres")
            .database("postgres")
    }

    /// A plain connection.
    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect_with(&self.connect_options()).await.unwrap()
    }

    /// The options of a worker: a new one at each call.
    pub(crate) fn options(&self) -> PostgresOptions {
        PostgresOptions::new(self.connect_options(), WorkerId::random())
    }

    /// A worker's ledger.
    pub(crate) fn ledger(&self) -> PostgresLedger {
        PostgresLedger::new(self.options())
    }

    /// A worker whose leases are over almost at once.
    pub(crate) fn hasty(&self) -> PostgresLedger {
        PostgresLedger::new(PostgresOptions { lease: Duration::from_millis(20), ..self.options() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Copies a new cluster to `data` in the directory; the first test makes the original, since
/// `initdb` takes several times as long as a copy.
fn make_cluster(directory: &Path) {
    let initdb = program("initdb", directory).get_program().to_string_lossy().replace('/', "_");
    let original = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cluster{initdb}"));
    let data = directory.join("data");
    if original.exists() {
        return copy(&original, &data);
    }
    let made = program("initdb", directory)
        .args([
            "--no-sync",
            "--wal-segsize=1",
            "--no-locale",
            "-E",
            "UTF8",
            "-A",
            "trust",
            "-U",
            "postgres",
            "-D",
        ])
        .arg(&data)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let half_done = original.with_extension(std::process::id().to_string());
    copy(&data, &half_done);
    if std::fs::rename(&half_done, &original).is_err() {
        // Another test was faster.
        std::fs::remove_dir_all(&half_done).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "copying {} failed", from.display());
}

fn program(name: &str, directory: &Path) -> Command {
    let installed: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin").join(name)))
        .filter(|path| path.exists())
        .collect();
    let mut command =
        Command::new(installed.into_iter().max().unwrap_or_else(|| PathBuf::from(name)));
    command.current_dir(directory).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    if let Some((uid, gid)) = unprivileged() {
        command.uid(uid).gid(gid);
    }
    command
}

/// Postgres refuses to run as root: then it is somebody else's.
fn unprivileged() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    ["postgres", "nobody"].iter().find_map(|name| {
        let fields: Vec<&str> =
            users.lines().find(|line| line.starts_with(&format!("{name}:")))?.split(':').collect();
        Some((fields[2].parse().ok()?, fields[3].parse().ok()?))
    })
}

/// Asks until there is an answer.
pub(crate) async fn eventually<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "it did not happen within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn task_with(id: &str, payload: &[u8], lock_key: Option<&str>) -> Arc<Task> {
    let kind = Kind::new("greet").unwrap();
    let payload = Bytes::copy_from_slice(payload);
    let lock_key = lock_key.map(|key| LockKey::new(key).unwrap());
    Arc::new(Task {
        id: TaskId::new(id).unwrap(),
        queue: QueueName::new("default").unwrap(),
        hash: PayloadHash::of(&kind, &payload, lock_key.as_ref()),
        kind,
        payload,
        lock_key,
        max_attempts: Some(7),
        timeout: Some(Duration::from_secs(9)),
        not_before_ms: None,
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
    })
}

pub(crate) fn task(id: &str) -> Arc<Task> {
    task_with(id, b"hello", None)
}

pub(crate) fn granted(claimed: Result<Claimed, LedgerError>) -> Grant {
    match claimed.unwrap() {
        Claimed::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// Claims once the lease of the last claim is over.
pub(crate) async fn take_over(ledger: &PostgresLedger, task: &Arc<Task>) -> Claimed {
    eventually(async || match ledger.claim(task).await.unwrap() {
        Claimed::Running { .. } => None,
        answer => Some(answer),
    })
    .await
}

/// The row as text: status, fence, attempts, crashes, and whether it has payload and run_at.
pub(crate) async fn row(server: &Server, id: &str) -> (String, i64, i32, i32, bool, bool) {
    sqlx::query_as(
        "SELECT status::text, fence, attempts, crashes, payload IS NOT NULL, run_at IS NOT NULL \
         FROM queue_worker.processed_tasks WHERE task_id = $1",
    )
    .bind(id)
    .fetch_one(&mut server.connect().await)
    .await
    .unwrap()
}

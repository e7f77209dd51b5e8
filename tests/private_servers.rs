//! The private servers: they start on free ports, obey, keep their data and leave nothing behind.
//!
//! Every test starts its own servers. Process ids are checked in /proc, because a server that is
//! gone cannot be asked.

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{TcpProxy, wait_for};
use queue_worker::private_servers::{
    AppendFsync, Companion, CompanionOutput, PostgresOptions, PostgresServer, PrivateServerError,
    RedisOptions, RedisServer,
};
use sqlx::{Connection, PgConnection};

fn runs(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z")))
}

async fn redis_connection(url: &str) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(2)))
        .set_response_timeout(Some(Duration::from_millis(300)));
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

async fn ping(url: &str) -> redis::RedisResult<String> {
    let mut connection = redis_connection(url).await?;
    redis::cmd("PING").query_async(&mut connection).await
}

#[tokio::test]
async fn redis_starts_restarts_and_ends() {
    let options =
        RedisOptions { append_only: Some(AppendFsync::Always), ..RedisOptions::default() };
    let mut server = RedisServer::start(options).await.unwrap();
    let folder = server.folder().to_owned();
    let first = server.pid().unwrap();
    let port = server.port();
    let mut connection = redis_connection(&server.url()).await.unwrap();
    let (): () = redis::cmd("SET").arg("k").arg("v").query_async(&mut connection).await.unwrap();

    server.kill();
    assert!(!runs(first));
    assert!(!server.is_running());
    assert_eq!(server.pid(), None);
    assert!(ping(&server.url()).await.is_err());

    server.restart().await.unwrap();
    assert_eq!(server.port(), port);
    let mut connection = redis_connection(&server.url()).await.unwrap();
    let value: String = redis::cmd("GET").arg("k").query_async(&mut connection).await.unwrap();
    assert_eq!(value, "v");

    let second = server.pid().unwrap();
    drop(server);
    assert!(!runs(second));
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_paused_redis_is_silent_and_comes_back() {
    let server = RedisServer::start(RedisOptions::volatile()).await.unwrap();
    let mut connection = redis_connection(&server.url()).await.unwrap();
    server.pause();
    let silence: redis::RedisResult<String> = redis::cmd("PING").query_async(&mut connection).await;
    assert!(silence.unwrap_err().is_timeout());
    server.resume();
    let url = server.url();
    wait_for("redis to answer again", async || ping(&url).await.is_ok()).await;
}

#[tokio::test]
async fn redis_asks_for_its_password_and_can_be_stopped() {
    let options = RedisOptions {
        password: Some("p@ss \"word\"/é".to_owned()),
        maxmemory_policy: "allkeys-lru".to_owned(),
        ..RedisOptions::volatile()
    };
    let mut server = RedisServer::start(options).await.unwrap();
    assert_eq!(ping(&server.url()).await.unwrap(), "PONG");
    assert!(ping(&format!("redis://127.0.0.1:{}/", server.port())).await.is_err());
    let mut connection = redis_connection(&server.url()).await.unwrap();
    let policy: (String, String) = redis::cmd("CONFIG")
        .arg("GET")
        .arg("maxmemory-policy")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(policy.1, "allkeys-lru");
    server.stop().await;
    assert!(!server.is_running());
}

#[tokio::test]
async fn a_port_that_is_taken_is_told_with_the_log() {
    let server = RedisServer::start(RedisOptions::volatile()).await.unwrap();
    let options = RedisOptions { port: Some(server.port()), ..RedisOptions::volatile() };
    let error = RedisServer::start(options).await.unwrap_err();
    assert!(matches!(&error, PrivateServerError::Exited { .. }), "{error}");
    assert!(error.to_string().contains("Address already in use"), "{error}");
}

#[tokio::test]
async fn postgres_starts_restarts_and_ends() {
    let mut server = PostgresServer::start(PostgresOptions::volatile()).await.unwrap();
    let folder = server.folder().to_owned();
    let url = server.create_database("odd \"name\"").await.unwrap();
    assert_eq!(server.create_database("odd \"name\"").await.unwrap(), url);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::query("CREATE TABLE t AS SELECT 1 AS n").execute(&mut connection).await.unwrap();

    let first = server.pid().unwrap();
    server.kill();
    assert!(!runs(first));
    assert!(sqlx::query("SELECT 1").execute(&mut connection).await.is_err());

    server.restart().await.unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let n: i32 = sqlx::query_scalar("SELECT n FROM t").fetch_one(&mut connection).await.unwrap();
    assert_eq!(n, 1);
    let socket = server.socket_url("postgres").unwrap();
    PgConnection::connect(&socket).await.unwrap();

    let second = server.pid().unwrap();
    drop(server);
    assert!(!runs(second));
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_paused_postgres_is_silent_with_its_open_connections() {
    let server = PostgresServer::start(PostgresOptions::volatile()).await.unwrap();
    let mut connection = PgConnection::connect(&server.url()).await.unwrap();
    server.pause();
    {
        let ask = sqlx::query("SELECT 1").execute(&mut connection);
        assert!(tokio::time::timeout(Duration::from_millis(300), ask).await.is_err());
    }
    server.resume();
    let mut fresh = PgConnection::connect(&server.url()).await.unwrap();
    fresh.ping().await.unwrap();
}

#[tokio::test]
async fn a_given_folder_keeps_a_postgres_with_a_password() {
    let parent = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .tempdir_in("/tmp")
        .unwrap();
    let options = PostgresOptions {
        folder: Some(parent.path().join("pg")),
        password: Some("s3cret/@".to_owned()),
        fsync: false,
        ..PostgresOptions::default()
    };
    let mut server = PostgresServer::start(options.clone()).await.unwrap();
    server.create_database("kept").await.unwrap();
    let stranger = format!("postgres://postgres:wrong@127.0.0.1:{}/postgres", server.port());
    assert!(PgConnection::connect(&stranger).await.is_err());
    server.stop().await;
    drop(server);

    let server = PostgresServer::start(options).await.unwrap();
    let mut connection = PgConnection::connect(&server.database_url("kept")).await.unwrap();
    let commit: String =
        sqlx::query_scalar("SHOW synchronous_commit").fetch_one(&mut connection).await.unwrap();
    assert_eq!(commit, "on");
    assert!(!leaks_password(parent.path()));
}

fn leaks_password(folder: &Path) -> bool {
    fs::read_dir(folder.join("pg"))
        .unwrap()
        .any(|entry| entry.unwrap().file_name().to_string_lossy().contains("password"))
}

/// The other half of [`servers_do_not_outlive_a_killed_parent`]: does nothing on its own.
#[tokio::test]
async fn parent_that_waits_to_be_killed() {
    let Ok(report) = std::env::var("PRIVATE_SERVERS_REPORT") else { return };
    let redis = RedisServer::start(RedisOptions::volatile()).await.unwrap();
    let postgres = PostgresServer::start(PostgresOptions::volatile()).await.unwrap();
    let lines = format!(
        "{}\n{}\n{}\n{}\n",
        redis.pid().unwrap(),
        redis.folder().display(),
        postgres.pid().unwrap(),
        postgres.folder().display()
    );
    let draft = format!("{report}.draft");
    fs::write(&draft, lines).unwrap();
    fs::rename(draft, report).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn servers_do_not_outlive_a_killed_parent() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "parent_that_waits_to_be_killed"])
        .env("PRIVATE_SERVERS_REPORT", &report)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the parent to report", async || report.exists()).await;
    let report = fs::read_to_string(&report).unwrap();
    let lines: Vec<&str> = report.lines().collect();
    let pids = [lines[0].parse::<u32>().unwrap(), lines[2].parse().unwrap()];
    assert!(pids.iter().all(|pid| runs(*pid)));
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_for("the servers to follow", async || !pids.iter().any(|pid| runs(*pid))).await;
    // A killed parent cannot remove its folders.
    fs::remove_dir_all(lines[1]).unwrap();
    fs::remove_dir_all(lines[3]).unwrap();
}

#[tokio::test]
async fn a_companion_is_signalled_waited_for_and_killed() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let start = || {
        let script = "trap 'echo told; exit 7' TERM; echo ready; while :; do sleep 0.01; done";
        let output = CompanionOutput::Log(log.clone());
        Companion::start(Path::new("/bin/sh"), &["-c", script], &output).unwrap()
    };
    let mut polite = start();
    let logged = |text: &str| fs::read_to_string(&log).is_ok_and(|log| log.ends_with(text));
    wait_for("the script to be ready", async || logged("ready\n")).await;
    polite.pause();
    polite.terminate();
    assert!(polite.is_running());
    polite.resume();
    let status = tokio::time::timeout(Duration::from_secs(30), polite.wait()).await.unwrap();
    assert_eq!(status.code(), Some(7));
    assert!(logged("told\n"));

    let mut other = start();
    let pid = other.pid().unwrap();
    other.kill();
    assert!(!runs(pid));
    assert_eq!(other.wait().await.signal(), Some(9));
}

#[tokio::test]
async fn the_proxy_forwards_falls_silent_slows_and_cuts() {
    let server = RedisServer::start(RedisOptions::volatile()).await.unwrap();
    let proxy = TcpProxy::start(server.port()).await;
    let url = format!("redis://127.0.0.1:{}/", proxy.port());
    assert_eq!(ping(&url).await.unwrap(), "PONG");

    let mut connection = redis_connection(&url).await.unwrap();
    proxy.silence();
    let silence: redis::RedisResult<String> = redis::cmd("PING").query_async(&mut connection).await;
    assert!(silence.unwrap_err().is_timeout());

    proxy.forward();
    assert_eq!(ping(&url).await.unwrap(), "PONG");

    let mut connection = redis_connection(&url).await.unwrap();
    proxy.delay(Duration::from_secs(1));
    let late: redis::RedisResult<String> = redis::cmd("PING").query_async(&mut connection).await;
    assert!(late.unwrap_err().is_timeout());
    proxy.forward();

    let mut connection = redis_connection(&url).await.unwrap();
    proxy.cut();
    let gone: redis::RedisResult<String> = redis::cmd("PING").query_async(&mut connection).await;
    assert!(gone.is_err());
    proxy.refuse();
    assert!(ping(&url).await.is_err());
    proxy.forward();
    assert_eq!(ping(&url).await.unwrap(), "PONG");
}

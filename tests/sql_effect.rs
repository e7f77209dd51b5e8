//! Effects within a transaction, against a Postgres that the test starts itself.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::FutureExt;
use queue_worker::domain::{
    Failure, FailureClass, Fence, Kind, PayloadHash, QueueName, Task, TaskId,
};
use queue_worker::handler::sql::{SqlEffect, SqlOptions};
use queue_worker::handler::{Handler, native};
use queue_worker::ledger::{Effect, EffectConnection, EffectError, EffectItem};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, Executor, PgConnection};
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_secs(30);

/// A server on a socket in a directory of its own; stopped when dropped.
struct Postgres {
    process: Child,
    directory: tempfile::TempDir,
}

impl Postgres {
    fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("qw-sql").tempdir().unwrap();
        let user = service_user();
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(directory.path(), Some(uid), Some(gid)).unwrap();
        }
        let data = directory.path().join("data");
        let program = |name: &str| {
            let mut command = Command::new(binaries().join(name));
            if let Some((uid, gid)) = user {
                command.gid(gid).uid(uid);
            }
            command.arg("-D").arg(&data).current_dir("/");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let made = program("initdb").args(["-U", "tester", "-A", "trust", "-N"]).status().unwrap();
        assert!(made.success());
        let settings = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB"];
        let process =
            program("postgres").arg("-k").arg(directory.path()).args(settings).spawn().unwrap();
        Self { process, directory }
    }

    async fn connect(&self) -> PgConnection {
        let options = PgConnectOptions::new()
            .socket(self.directory.path())
            .username("tester")
            .database("postgres");
        let deadline = Instant::now() + LIMIT;
        loop {
            match PgConnection::connect_with(&options).await {
                Ok(connection) => return connection,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
        let _ = self.process.wait();
    }
}

fn binaries() -> PathBuf {
    let debian = Path::new("/usr/lib/postgresql/15/bin");
    if debian.is_dir() {
        return debian.into();
    }
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).find(|dir| dir.join("initdb").is_file()).expect("no postgres")
}

/// Postgres refuses to run as root.
fn service_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    ["postgres:", "nobody:"].iter().find_map(|name| {
        let mut fields = passwd.lines().find(|line| line.starts_with(name))?.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

fn item(id: &str, payload: &'static [u8], fence: i64) -> EffectItem {
    let kind = Kind::new("count").unwrap();
    let task = Task {
        id: TaskId::new(id).unwrap(),
        queue: QueueName::new("q").unwrap(),
        payload: payload.into(),
        lock_key: None,
        max_attempts: None,
        timeout: None,
        not_before_ms: None,
        traceparent: None,
        hash: PayloadHash::of(&kind, payload, None),
        kind,
    };
    EffectItem { task: task.into(), fence: Fence(fence), attempt: 1 }
}

fn three() -> [EffectItem; 3] {
    [item("c", b"\x01", 3), item("a", b"\x02\x00", 1), item("b", b"", 2)]
}

fn sql(statement: &str) -> SqlEffect {
    let statement = statement.to_owned();
    SqlEffect::new(SqlOptions { kind: "count".into(), statement, batch: 64 })
}

/// Applies an effect in a transaction, commits if it did, and rolls back otherwise.
async fn apply(
    connection: &mut PgConnection,
    effect: &dyn Effect,
    items: &[EffectItem],
) -> Result<(), EffectError> {
    let mut transaction = connection.begin().await.unwrap();
    let result = effect.apply(EffectConnection::Postgres(&mut transaction), items).await;
    match result {
        Ok(()) => transaction.commit().await.unwrap(),
        Err(_) => transaction.rollback().await.unwrap(),
    }
    result
}

async fn failure(connection: &mut PgConnection, statement: &str) -> Failure {
    match apply(connection, &sql(statement), &three()).await {
        Err(EffectError::Failed(failure)) => failure,
        other => panic!("{statement}: {other:?}"),
    }
}

async fn log(connection: &mut PgConnection) -> Vec<(String, Vec<u8>, i64)> {
    sqlx::query_as("SELECT id, payload, value FROM log ORDER BY place")
        .fetch_all(connection)
        .await
        .unwrap()
}

async fn reset(connection: &mut PgConnection) {
    connection.execute("TRUNCATE log RESTART IDENTITY").await.unwrap();
}

#[tokio::test]
async fn effects_in_a_transaction() {
    let postgres = Postgres::start();
    let mut connection = postgres.connect().await;
    let connection = &mut connection;
    connection
        .execute("CREATE TABLE log (place bigserial, id text, payload bytea, value bigint)")
        .await
        .unwrap();
    every_task_once_and_in_order(connection).await;
    every_sort_of_statement(connection).await;
    mistakes_are_the_tasks(connection).await;
    rollbacks_take_everything_back(connection).await;
    the_database_is_nobodys_fault(&postgres, connection).await;
    time_limits_are_failures(connection).await;
    native_code_shares_the_transaction(connection).await;
}

/// Each sees what the earlier ones did.
async fn every_task_once_and_in_order(connection: &mut PgConnection) {
    let effect =
        sql("INSERT INTO log (id, payload, value) SELECT $2, $1, $3 * 10 + count(*) FROM log -- !");
    assert!(effect.single_commit() && effect.batch() == 64 && effect.name() == "count");
    for round in 0..2 {
        reset(connection).await;
        apply(connection, &effect, &three()).await.unwrap();
        let expected = [
            ("c".to_owned(), vec![1], 30),
            ("a".to_owned(), vec![2, 0], 11),
            ("b".to_owned(), vec![], 22),
        ];
        assert_eq!(log(connection).await, expected, "round {round}");
    }
    let functions: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_proc WHERE proname ~ '^qw_'")
        .fetch_one(connection)
        .await
        .unwrap();
    assert_eq!(functions, 1, "it is created once per connection");
}

/// None is skipped, be its result unused, be its parameters unused, be it one of several.
async fn every_sort_of_statement(connection: &mut PgConnection) {
    reset(connection).await;
    connection.execute("CREATE SEQUENCE ran").await.unwrap();
    for statement in [
        "SELECT nextval('ran')",
        "SELECT nextval('ran') FROM generate_series(1, 5) OFFSET 4",
        "INSERT INTO log (value) VALUES (nextval('ran')) RETURNING value",
        "UPDATE log SET value = nextval('ran') WHERE place = (SELECT min(place) FROM log)",
        "DELETE FROM log WHERE place = (SELECT max(place) FROM log) AND nextval('ran') > 0;",
        "SELECT 1; INSERT INTO log (id) VALUES ($2); SELECT nextval('ran');",
        "WITH new AS (INSERT INTO log (value) VALUES (nextval('ran')) RETURNING 1) TABLE new",
        "SELECT '$$', '$qw_$', nextval('ran')",
    ] {
        connection.execute("SELECT setval('ran', 1, false)").await.unwrap();
        apply(connection, &sql(statement), &three()).await.unwrap();
        let ran: i64 =
            sqlx::query_scalar("SELECT nextval('ran')").fetch_one(&mut *connection).await.unwrap();
        let times = if statement.contains("generate_series") { 15 } else { 3 };
        assert_eq!(ran - 1, times, "{statement}");
    }
}

async fn mistakes_are_the_tasks(connection: &mut PgConnection) {
    connection.execute("CREATE TABLE one (id int PRIMARY KEY)").await.unwrap();
    for (statement, status) in [
        ("INSERT INTO one VALUES (1)", "sqlstate 23505"),
        ("INSERT INTO no_such_table VALUES (1)", "sqlstate 42P01"),
        ("selekt 1", "sqlstate 42601"),
        ("SELECT 1 / (length($1) - 1)", "sqlstate 22012"),
        ("DO $$ BEGIN RAISE EXCEPTION 'no'; END $$", "sqlstate P0001"),
    ] {
        let failure = failure(connection, statement).await;
        assert_eq!(failure.status.as_deref(), Some(status), "{statement}");
        assert_eq!(failure.class, FailureClass::Retry { after: None });
    }
    let raise = "DO $$ BEGIN RAISE EXCEPTION 'never' USING ERRCODE = 'QW065'; END $$";
    let failure = failure(connection, raise).await;
    assert_eq!(failure.class, FailureClass::ForGood);
    assert_eq!(failure.message, "never");
}

/// The function too, which must be created anew then.
async fn rollbacks_take_everything_back(connection: &mut PgConnection) {
    reset(connection).await;
    let effect = sql("INSERT INTO log (id, value) VALUES ($2, 100 / (length($1) - 1)) -- new");
    let items = [item("good", b"", 1), item("bad", b"x", 1)];
    assert!(matches!(apply(connection, &effect, &items).await, Err(EffectError::Failed(_))));
    assert_eq!(log(connection).await, []);
    apply(connection, &effect, &items[..1]).await.unwrap();
    let value: i64 =
        sqlx::query_scalar("SELECT value FROM log").fetch_one(connection).await.unwrap();
    assert_eq!(value, -100);
}

async fn the_database_is_nobodys_fault(postgres: &Postgres, connection: &mut PgConnection) {
    let mut other = postgres.connect().await;
    let mut blocker = connection.begin().await.unwrap();
    blocker.execute("LOCK TABLE one").await.unwrap();
    other.execute("SET lock_timeout = '50ms'").await.unwrap();
    let result = apply(&mut other, &sql("DELETE FROM one"), &three()).await;
    assert!(matches!(result, Err(EffectError::Database(_))), "{result:?}");
    blocker.rollback().await.unwrap();

    let pid: i32 =
        sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut other).await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    let terminate = format!("SELECT pg_terminate_backend({pid}, 5000)");
    connection.execute(sqlx::AssertSqlSafe(terminate)).await.unwrap();
    let result =
        sql("DELETE FROM one").apply(EffectConnection::Postgres(&mut transaction), &three()).await;
    assert!(matches!(result, Err(EffectError::Database(_))), "{result:?}");
}

async fn time_limits_are_failures(connection: &mut PgConnection) {
    connection.execute("SET statement_timeout = '50ms'").await.unwrap();
    let failure = failure(connection, "SELECT pg_sleep(10)").await;
    assert_eq!(failure.status.as_deref(), Some("timeout"));
    connection.execute("RESET statement_timeout").await.unwrap();
}

async fn native_code_shares_the_transaction(connection: &mut PgConnection) {
    reset(connection).await;
    let handler = native::transactional("count", |connection, item| {
        async move {
            sqlx::query("INSERT INTO log (id, payload, value) VALUES ($1, $2, $3)")
                .bind(item.task.id.as_str())
                .bind(&item.task.payload[..])
                .bind(item.fence.0)
                .execute(&mut *connection)
                .await?;
            match &item.task.payload[..] {
                b"panic" => panic!("on purpose"),
                b"sql" => connection.execute("INSERT INTO nowhere VALUES (1)").await.map(drop)?,
                payload if !payload.is_empty() => {
                    let _: String = native::json(payload)?;
                }
                _ => {}
            }
            Ok(())
        }
        .boxed()
    });
    let Handler::InTransaction(effect) = handler else { panic!("external") };
    assert!(!effect.single_commit() && effect.batch() == 1);
    apply(connection, &*effect, &[item("json", b"\"text\"", 5)]).await.unwrap();
    for (payload, status, class) in [
        (&b"panic"[..], Some("panic"), FailureClass::Retry { after: None }),
        (b"sql", Some("sqlstate 42P01"), FailureClass::Retry { after: None }),
        (b"{", None, FailureClass::ForGood),
    ] {
        let result = apply(connection, &*effect, &[item("bad", payload, 5)]).await;
        let Err(EffectError::Failed(failure)) = result else { panic!("{result:?}") };
        assert_eq!((failure.status.as_deref(), failure.class), (status, class));
    }
    let ids: Vec<_> = log(connection).await.into_iter().map(|(id, _, fence)| (id, fence)).collect();
    assert_eq!(ids, [("json".to_owned(), 5)]);
}

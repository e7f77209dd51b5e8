//! Servers that are away, refuse, or are set up so that tasks could be lost.

use queue_worker::private_servers::{PostgresOptions, RedisOptions};
use sqlx::AssertSqlSafe;

use crate::Unit;
use crate::common::Scene;

const PASSWORD: &str = "sesame-open-7Qz";

async fn redis(scene: &Scene, words: &[&str]) {
    let mut connection = scene.redis_connection().await;
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let _: redis::Value = command.query_async(&mut connection).await.expect("a command");
}

async fn sql(scene: &Scene, text: &str) {
    sqlx::query(AssertSqlSafe(text.to_owned())).execute(&scene.pool).await.expect("a statement");
}

#[tokio::test]
async fn a_redis_that_evicts() {
    let scene = Scene::start().await;
    redis(&scene, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let unit = Unit::start(&scene, "a", &[]);
    unit.waits_for("its maxmemory-policy is allkeys-lru").await;
    redis(&scene, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    unit.works_again(&scene, "t").await;
    unit.ends().await;
}

#[tokio::test]
async fn a_redis_that_comes_late_and_goes_and_comes() {
    let mut scene = Scene::start().await;
    scene.redis.stop().await;
    let unit = Unit::start(&scene, "a", &[]);
    unit.waits_for("Connection refused").await;
    scene.redis.restart().await.expect("start redis");
    unit.works_again(&scene, "first").await;
    scene.redis.kill();
    unit.systemd.until_status(&["not ready: waiting for redis"]).await;
    unit.systemd.until_more(crate::A_WHILE, "WATCHDOG=1").await;
    scene.redis.restart().await.expect("start redis");
    unit.works_again(&scene, "second").await;
    assert_eq!(unit.warnings().len(), 2, "one line for each outage:\n{}", unit.worker.log());
    unit.ends().await;
}

#[tokio::test]
async fn a_postgres_that_comes_late_and_goes_and_comes() {
    let mut scene = Scene::start().await;
    scene.postgres.stop().await;
    let unit = Unit::start(&scene, "a", &[]);
    unit.waits_for("Connection refused").await;
    scene.postgres.restart().await.expect("start postgres");
    unit.works_again(&scene, "first").await;
    scene.postgres.kill();
    unit.systemd.until_status(&["not ready: waiting for postgres"]).await;
    unit.systemd.until_more(crate::A_WHILE, "WATCHDOG=1").await;
    scene.postgres.restart().await.expect("start postgres");
    unit.works_again(&scene, "second").await;
    assert_eq!(unit.warnings().len(), 2, "one line for each outage:\n{}", unit.worker.log());
    unit.ends().await;
}

#[tokio::test]
async fn both_away_are_both_named() {
    let mut scene = Scene::start().await;
    scene.redis.stop().await;
    scene.postgres.stop().await;
    let unit = Unit::start(&scene, "a", &[]);
    unit.systemd.until("READY=1").await;
    unit.systemd.until_status(&["not ready", "postgres 127.0.0.1", "redis 127.0.0.1"]).await;
    scene.redis.restart().await.expect("start redis");
    scene.postgres.restart().await.expect("start postgres");
    unit.works_again(&scene, "t").await;
    unit.ends().await;
}

/// From a wrong password to the right one, and through a change of password in mid-run.
#[tokio::test]
async fn a_redis_that_refuses_the_password() {
    let options = RedisOptions { password: Some(PASSWORD.to_owned()), ..RedisOptions::volatile() };
    let scene = Scene::with(options, PostgresOptions::volatile()).await;
    let file = scene.path().join("redis-password");
    let file_name = file.to_str().expect("UTF-8");
    let url = format!("redis://127.0.0.1:{}/", scene.redis.port());
    scene.write_config_for(&url, &scene.database, "");
    std::fs::write(&file, "wrong").expect("write the password");
    let unit = Unit::start(&scene, "a", &[("QUEUE_WORKER_REDIS__PASSWORD_FILE", file_name)]);
    unit.waits_for("refused the username or password").await;
    std::fs::write(&file, format!("{PASSWORD}\n")).expect("write the password");
    unit.works_again(&scene, "first").await;

    redis(&scene, &["ACL", "SETUSER", "tester", "on", "nopass", "allcommands", "allkeys"]).await;
    let mut tester = redis_as(&scene, "tester").await;
    let replaced = ["SETUSER", "default", "resetpass", ">another"];
    let _: () = redis::cmd("ACL").arg(&replaced).query_async(&mut tester).await.expect("ACL");
    let theirs = ["KILL", "USER", "default"];
    let _: i64 = redis::cmd("CLIENT").arg(&theirs).query_async(&mut tester).await.expect("CLIENT");
    unit.systemd.until_status(&["not ready: ", "refused the username or password"]).await;
    unit.systemd.until_more(crate::A_WHILE, "WATCHDOG=1").await;
    let told = unit.warnings();
    let refusals = told.iter().filter(|line| line.contains("refused the username")).count();
    assert_eq!(refusals, 2, "one line for each outage:\n{}", unit.worker.log());
    std::fs::write(&file, "another").expect("write the password");
    unit.systemd.until_status(&["ready, idle"]).await;
    // The scene knows the first one only.
    let both = ["SETUSER", "default", &format!(">{PASSWORD}")];
    let _: () = redis::cmd("ACL").arg(&both).query_async(&mut tester).await.expect("ACL");
    unit.works_again(&scene, "second").await;
    unit.ends().await;
}

async fn redis_as(scene: &Scene, user: &str) -> redis::aio::MultiplexedConnection {
    let url = format!("redis://{user}:x@127.0.0.1:{}/", scene.redis.port());
    let client = redis::Client::open(url).expect("a redis url");
    client.get_multiplexed_async_connection().await.expect("connect to redis")
}

#[tokio::test]
async fn a_postgres_that_refuses_the_password() {
    let options =
        PostgresOptions { password: Some(PASSWORD.to_owned()), ..PostgresOptions::volatile() };
    let scene = Scene::with(RedisOptions::volatile(), options).await;
    let file = scene.path().join("postgres-password");
    let file_name = file.to_str().expect("UTF-8");
    let (scheme_and_user, rest) = scene.database.split_once(&format!(":{PASSWORD}@")).unwrap();
    scene.write_config_for(&scene.redis.url(), &format!("{scheme_and_user}@{rest}"), "");
    std::fs::write(&file, "wrong").expect("write the password");
    let unit = Unit::start(&scene, "a", &[("QUEUE_WORKER_POSTGRES__PASSWORD_FILE", file_name)]);
    unit.waits_for("password authentication failed").await;
    std::fs::write(&file, format!("{PASSWORD}\n")).expect("write the password");
    unit.works_again(&scene, "first").await;

    sql(&scene, "ALTER ROLE CURRENT_USER PASSWORD 'another'").await;
    let mine = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE application_name = 'queue-worker'";
    sql(&scene, mine).await;
    unit.systemd.until_status(&["not ready: ", "password authentication failed"]).await;
    unit.systemd.until_more(crate::A_WHILE, "WATCHDOG=1").await;
    let told = unit.warnings();
    assert_eq!(told.iter().filter(|line| line.contains("authentication failed")).count(), 2);
    std::fs::write(&file, "another").expect("write the password");
    unit.works_again(&scene, "second").await;
    unit.ends().await;
}

#[tokio::test]
async fn a_schema_that_is_missing_old_or_too_new() {
    let scene = Scene::start().await;
    sql(&scene, "DROP SCHEMA queue_worker CASCADE").await;
    let unit = Unit::start(&scene, "missing", &[]);
    unit.waits_for("the schema is missing; run `queue-worker migrate`").await;
    let migrated = scene.command(["migrate"]).status().await.expect("run migrate");
    assert!(migrated.success());
    unit.works_again(&scene, "a").await;
    unit.ends().await;

    let newest = "(SELECT max(version) FROM queue_worker.migrations)";
    let shift = |by: i64| {
        format!(
            "UPDATE queue_worker.migrations SET version = version + {by} WHERE version = {newest}"
        )
    };
    sql(&scene, &shift(-1)).await;
    let unit = Unit::start(&scene, "old", &[]);
    unit.waits_for("older than").await;
    sql(&scene, &shift(1)).await;
    unit.works_again(&scene, "b").await;
    unit.ends().await;

    let fake = format!(
        "INSERT INTO queue_worker.migrations \
         (version, description, success, checksum, execution_time) \
         SELECT {newest} + 1, 'from the future', true, '', 0"
    );
    sql(&scene, &fake).await;
    let unit = Unit::start(&scene, "next", &[]);
    unit.systemd.until_status(&["ready, idle"]).await;
    unit.ends().await;
    sql(&scene, &fake).await;
    let unit = Unit::start(&scene, "new", &[]);
    unit.waits_for("too new for this program").await;
    sql(&scene, &format!("DELETE FROM queue_worker.migrations WHERE version = {newest}")).await;
    unit.works_again(&scene, "c").await;
    unit.ends().await;
}

/// Servers that answer and refuse the work: nothing is down, and yet nothing moves.
#[tokio::test]
async fn a_store_that_refuses_the_work_is_told_of() {
    let scene = Scene::start().await;
    redis(&scene, &["SET", crate::common::STREAM, "not a stream"]).await;
    let unit = Unit::start(&scene, "a", &[]);
    unit.worker.until_logged("WRONGTYPE").await;
    unit.systemd.until_status(&["WRONGTYPE"]).await;
    unit.systemd.until_more(crate::A_WHILE, "WATCHDOG=1").await;
    assert_eq!(unit.warnings().len(), 1, "{}", unit.worker.log());
    redis(&scene, &["DEL", crate::common::STREAM]).await;
    scene.task("first", "effect", "").await;
    scene.until_status("first", "succeeded").await;
    unit.systemd.until_status(&["ready, idle"]).await;

    sql(&scene, "ALTER TABLE queue_worker.processed_tasks RENAME TO elsewhere").await;
    scene.task("second", "effect", "").await;
    unit.worker.until_logged("processed_tasks").await;
    unit.systemd.until_more(crate::A_WHILE, "WATCHDOG=1").await;
    sql(&scene, "ALTER TABLE queue_worker.elsewhere RENAME TO processed_tasks").await;
    scene.until_status("second", "succeeded").await;
    assert!(unit.warnings().len() <= 3, "{}", unit.worker.log());
    unit.ends().await;
}

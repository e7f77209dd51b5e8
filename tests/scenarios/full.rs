//! A Redis that is full and may evict nothing: every write that needs memory is refused.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use crate::client::get;
use crate::common::{Scene, wait_for};

/// The most lines that a worker writes while Redis is full for some seconds.
const MOST_LINES: usize = 12;

async fn max_memory(scene: &Scene, bytes: u32) {
    let mut connection = scene.redis_connection().await;
    let () = redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory")
        .arg(bytes)
        .query_async(&mut connection)
        .await
        .expect("CONFIG SET");
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("bound").port()
}

async fn until_ready(port: u16, status: u16, text: &str) {
    wait_for(&format!("/readyz to be {status}, {text:?}"), async || {
        let (found, body) = get(port, "/readyz").await;
        found == status && body.contains(text)
    })
    .await;
}

/// Fails as soon as it may.
const FAILS: &str = r#"
[handler.fails]
type = "exec"
command = ["/bin/sh", "-c", "until [ -e MAY_FAIL ]; do sleep 0.05; done; exit 1"]
backoff_base = "200ms"
max_attempts = 2
"#;

#[tokio::test]
async fn a_full_redis_costs_locks_and_nothing_else() {
    let scene = Scene::start().await;
    let port = free_port();
    let may_fail = scene.path().join("may-fail");
    let fails = FAILS.replace("MAY_FAIL", &may_fail.display().to_string());
    scene.write_config(&format!("[web]\nlisten = \"127.0.0.1:{port}\"\n{fails}"));
    let mut worker = scene.worker("a").await;
    until_ready(port, 200, "ready").await;
    scene.task("held", "gate", "").await;
    scene.task("fails", "fails", "").await;
    scene.until_journal("held", "start").await;
    scene.until_status("fails", "running").await;
    for n in 0..20 {
        scene.task(&format!("t{n}"), "sleep", "0.5").await;
    }
    let lines_before = worker.log().lines().count();

    max_memory(&scene, 1).await;
    until_ready(port, 503, "work fails: redis").await;
    assert_eq!(get(port, "/livez").await.0, 200, "a full store is no illness of the worker");
    // Fails once, and waits in Postgres for its second attempt.
    std::fs::write(may_fail, "").expect("let it fail");
    scene.until_status("fails", "delayed").await;
    for n in 0..20 {
        let row = scene.until_status(&format!("t{n}"), "succeeded").await;
        assert_eq!((row.attempts, row.crashes), (0, 0), "t{n}");
    }
    scene.open_gate();
    scene.until_status("held", "succeeded").await;
    // Acknowledged and deleted: that needs no memory.
    scene.until_empty().await;
    wait_for("the delayed task to be due for a while", async || {
        scene.count(DUE_FOR_SECONDS).await == 1
    })
    .await;
    assert_eq!(scene.row("fails").await.expect("a row").status, "delayed", "kept in Postgres");
    let lines: Vec<String> = worker.log().lines().skip(lines_before).map(str::to_owned).collect();
    let told = lines.iter().filter(|line| !line.contains("succeeded")).count();
    assert!(told <= MOST_LINES, "{told} lines:\n{}", lines.join("\n"));
    assert_eq!(worker.logged("takes no writes"), 1, "{}", worker.log());
    let log = worker.log();
    let told = log.lines().find(|line| line.contains("takes no writes")).unwrap_or_default();
    assert!(told.contains("; raise `maxmemory`, or let"), "{told}");
    assert_eq!(worker.logged("redis is away"), 0, "{}", worker.log());

    max_memory(&scene, 0).await;
    until_ready(port, 200, "ready").await;
    assert_eq!(worker.logged("redis takes writes again"), 1, "{}", worker.log());
    let row = scene.until_status("fails", "failed").await;
    assert_eq!((row.attempts, row.crashes), (2, 0));
    scene.until_empty().await;
    worker.terminate().await;
    assert!(scene.locks().await.is_empty());
}

#[tokio::test]
async fn a_full_redis_leaves_a_foreign_programs_lock_alone() {
    let scene = Scene::start().await;
    // Leaves the group behind, which a full Redis would not make.
    scene.worker("a").await.terminate().await;
    let mut connection = scene.redis_connection().await;
    let () = redis::cmd("SET")
        .arg("repo:x")
        .arg("a token of another program's")
        .query_async(&mut connection)
        .await
        .expect("SET");
    scene.task_with("shared", "effect", b"", &[("lock_key", "repo:x")]).await;
    scene.task("alone", "effect", "").await;
    max_memory(&scene, 1).await;
    let mut worker = scene.worker("b").await;
    scene.until_status("alone", "succeeded").await;
    scene.until_status("shared", "delayed").await;
    max_memory(&scene, 0).await;
    let () = redis::cmd("DEL").arg("repo:x").query_async(&mut connection).await.expect("DEL");
    let row = scene.until_status("shared", "succeeded").await;
    assert_eq!((row.attempts, row.crashes), (0, 0));
    worker.terminate().await;
}

/// Due for longer than several looks of the sweep.
const DUE_FOR_SECONDS: &str = "SELECT count(*) FROM queue_worker.processed_tasks \
     WHERE task_id = 'fails' AND run_at < now() - interval '3 seconds'";

#[tokio::test]
async fn what_is_given_back_to_a_full_redis_waits_in_postgres() {
    let scene = Scene::start().await;
    let mut first = scene.worker_with("a", &[("QUEUE_WORKER_DRAIN__TIMEOUT", "1s")]).await;
    scene.task("kept", "gate", "").await;
    let lost = scene.task("lost", "gate", "").await;
    for id in ["kept", "lost"] {
        scene.until_journal(id, "start").await;
    }
    let mut connection = scene.redis_connection().await;
    let deleted: u64 = redis::cmd("XDEL")
        .arg(crate::common::STREAM)
        .arg(lost)
        .query_async(&mut connection)
        .await
        .expect("XDEL");
    assert_eq!(deleted, 1);
    max_memory(&scene, 1).await;
    first.terminate().await;
    for id in ["kept", "lost"] {
        assert_eq!(scene.row(id).await.expect("claimed").status, "released", "{id}");
    }
    let mut second = scene.worker("b").await;
    scene.open_gate();
    // Its entry is there, and is taken without a lock.
    scene.until_status("kept", "succeeded").await;
    max_memory(&scene, 0).await;
    let row = scene.until_status("lost", "succeeded").await;
    assert_eq!((row.attempts, row.crashes), (0, 0));
    scene.until_empty().await;
    tokio::time::timeout(Duration::from_secs(60), second.terminate()).await.expect("ends");
}

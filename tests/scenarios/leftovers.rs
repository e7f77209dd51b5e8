//! What a program leaves behind, what a deleted stream leaves behind, and a connection that rested.

use std::time::Duration;

use queue_worker::private_servers::{PostgresOptions, RedisOptions};
use rustix::process::{Pid, test_kill_process};
use tokio::time::Instant;

use crate::common::{GROUP, STREAM, Scene, wait_for};

/// Starts a child, a grandchild in a session of its own, and an orphan; writes their ids down.
const FORKS: &str = r#"
[handler.forks]
type = "exec"
timeout = "2s"
kill_after = "1s"
max_attempts = 1
command = ["/bin/sh", "-c", '''
sleep 300 & echo $! >> PIDS
setsid sh -c 'echo $$ >> PIDS; trap "" TERM; sleep 300 & echo $! >> PIDS; wait' &
(setsid sleep 300 & echo $! >> PIDS) &
wait
''']
"#;

fn is_alive(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok())
}

#[tokio::test]
async fn scenario_05_a_task_that_timed_out_leaves_no_process() {
    let scene = Scene::start().await;
    let file = scene.path().join("pids");
    scene.write_config(&FORKS.replace("PIDS", &file.display().to_string()));
    let mut worker = scene.worker("a").await;
    scene.task("t", "forks", "").await;
    let pids = || -> Vec<i32> {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    wait_for("all processes to start", async || pids().len() == 4).await;
    assert!(pids().into_iter().all(is_alive), "they run");
    let row = scene.until_status("t", "failed").await;
    assert!(row.error.expect("an error").contains("timed out"));
    wait_for("all processes to be gone", async || !pids().into_iter().any(is_alive)).await;
    worker.terminate().await;
}

/// Name and number of pending entries of each consumer.
async fn consumers(scene: &Scene) -> Vec<(String, u64)> {
    let mut connection = scene.redis_connection().await;
    let found: Vec<std::collections::HashMap<String, redis::Value>> = redis::cmd("XINFO")
        .arg("CONSUMERS")
        .arg(STREAM)
        .arg(GROUP)
        .query_async(&mut connection)
        .await
        .expect("XINFO CONSUMERS");
    let text = |value: &redis::Value| redis::from_redis_value_ref(value).expect("a text");
    let number = |value: &redis::Value| redis::from_redis_value_ref(value).expect("a number");
    found.iter().map(|one| (text(&one["name"]), number(&one["pending"]))).collect()
}

/// A deploy an hour must not fill the group with names: whoever has nothing pending goes at once.
#[tokio::test]
async fn drained_workers_leave_no_consumer() {
    let scene = Scene::start().await;
    for round in 0..4 {
        let mut workers = [scene.worker("a").await, scene.worker("b").await];
        for n in 0..40 {
            scene.task(&format!("e-{round}-{n}"), "effect", "").await;
            scene.task(&format!("s-{round}-{n}"), "sleep", "0.05").await;
        }
        // In the middle of work, and at rest.
        scene.until_status(&format!("s-{round}-9"), "succeeded").await;
        workers[0].terminate().await;
        if round % 2 == 0 {
            scene.until_empty().await;
        }
        workers[1].terminate().await;
        let empty: Vec<_> =
            consumers(&scene).await.into_iter().filter(|(_, pending)| *pending == 0).collect();
        assert!(empty.is_empty(), "round {round}: {empty:?}");
    }
}

#[tokio::test]
async fn scenario_07_a_deleted_stream_is_made_again_and_all_tasks_run_once() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("before", "effect", "").await;
    scene.until_status("before", "succeeded").await;
    let mut connection = scene.redis_connection().await;
    let mut pipeline = redis::pipe();
    pipeline.cmd("DEL").arg(STREAM).ignore();
    for n in 0..100 {
        let id = format!("t-{n}");
        pipeline
            .cmd("XADD")
            .arg(STREAM)
            .arg("*")
            .arg(&["task_id", &id, "kind", "effect", "payload", ""])
            .ignore();
    }
    pipeline.query_async::<()>(&mut connection).await.expect("DEL and XADD");
    wait_for("all effects", async || scene.count("SELECT count(*) FROM effects").await == 101)
        .await;
    scene.until_empty().await;
    assert_eq!(scene.count("SELECT count(DISTINCT task_id) FROM effects").await, 101);
    let groups: redis::Value = redis::cmd("XINFO")
        .arg("GROUPS")
        .arg(STREAM)
        .query_async(&mut connection)
        .await
        .expect("XINFO GROUPS");
    assert!(format!("{groups:?}").contains(GROUP), "{groups:?}");
    assert!(worker.log().lines().count() < 250, "no hot loop:\n{}", worker.log());
    worker.terminate().await;
}

#[tokio::test]
async fn scenario_08_a_connection_that_rested_is_no_obstacle() {
    let extra = vec![("timeout".to_owned(), "1".to_owned())];
    let redis = RedisOptions { extra, ..RedisOptions::default() };
    let scene = Scene::with(redis, PostgresOptions::volatile()).await;
    let mut worker = scene.worker("a").await;
    scene.task("before", "effect", "").await;
    wait_for("the acknowledgement", async || !scene.clients("xack").await.is_empty()).await;
    let resting = scene.clients("xack").await;
    wait_for("redis to hang up on whoever rests", async || {
        scene.clients("xack").await.iter().all(|connection| !resting.contains(connection))
    })
    .await;
    let start = Instant::now();
    scene.task("after", "sleep", "2").await;
    scene.until_journal("after", "start").await;
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let row = scene.until_status("after", "succeeded").await;
    assert_eq!((row.fence, row.crashes), (1, 0), "no lost lease");
    assert_eq!(worker.logged("is away"), 0, "{}", worker.log());
    worker.terminate().await;
}

//! `status`: what both stores know of live work, and what one knows without the other.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::common::{QUEUE, Scene, wait_for};
use crate::said::say;

const FAR_AHEAD: &[u8] = b"4102444800000";

/// One task that runs, one that waits, one that failed for good.
async fn busy(scene: &Scene) {
    scene.task("runs", "sleep", "600").await;
    scene.task("fails", "exit", "65").await;
    scene
        .xadd(&[
            ("task_id", b"waits"),
            ("kind", b"sleep"),
            ("payload", b"0"),
            ("not_before_ms", FAR_AHEAD),
        ])
        .await;
    scene.until_journal("runs", "start").await;
    scene.until_status("fails", "failed").await;
    scene.until_status("waits", "delayed").await;
    wait_for("the settled entries to go", async || scene.length().await == 1).await;
}

/// A loopback port on which nobody listens.
fn closed_port() -> u16 {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    listener.local_addr().expect("an address").port()
}

#[tokio::test]
async fn queues_workers_and_running_tasks_of_a_live_worker() {
    let scene = Scene::start().await;
    let _worker = scene.worker("a").await;
    busy(&scene).await;

    let said = say(&scene, &["status", "--json"]).await.good();
    let report = said.json();
    assert_eq!(report["redis"]["error"], Value::Null);
    assert_eq!(report["postgres"]["error"], Value::Null);
    let expected = json!({
        "name": QUEUE, "configured": true, "length": 1, "pending": 1, "lag": report["queues"][0]["lag"],
        "running": 1, "released": 0, "delayed": 1, "succeeded": 0, "failed": 1, "dead": 0,
        "dead_letters": 1,
    });
    assert_eq!(report["queues"], json!([expected]));
    let workers = report["workers"].as_array().expect("a list");
    assert_eq!(workers.len(), 1);
    assert_eq!((&workers[0]["queue"], &workers[0]["pending"]), (&json!(QUEUE), &json!(1)));
    assert!(workers[0]["idle_ms"].is_u64());
    let running = report["running"].as_array().expect("a list");
    assert_eq!(running.len(), 1);
    let task = &running[0];
    assert_eq!((&task["task_id"], &task["kind"]), (&json!("runs"), &json!("sleep")));
    assert_eq!((&task["fence"], &task["attempt"]), (&json!(1), &json!(1)));
    assert_eq!(task["worker"], workers[0]["worker"]);
    assert!(task["lease_left_ms"].as_u64().expect("a number") <= 5_000);
    assert!(task["age_ms"].is_u64());

    let page = say(&scene, &["status"]).await.good().text();
    assert!(page.starts_with("QUEUE  STREAM  PENDING  LAG  RUNNING"), "{page}");
    assert!(page.contains("\nRUNNING TASK") && page.contains("\nruns "), "{page}");
    let none = say(&scene, &["status", "--limit", "0"]).await.good().text();
    assert!(none.contains("and 1 more"), "{none}");
}

#[tokio::test]
async fn one_store_away_is_named_and_the_other_is_told() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    busy(&scene).await;
    worker.kill().await;

    let nowhere = closed_port();
    scene.write_config_for(&format!("redis://127.0.0.1:{nowhere}"), &scene.database, "");
    let said = say(&scene, &["status", "--json"]).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    let report = said.json();
    let error = report["redis"]["error"].as_str().expect("a sentence");
    assert!(error.contains("redis.url"), "{error}");
    assert!(said.err.contains(error), "{said:?}");
    assert_eq!((&report["workers"], &report["queues"][0]["length"]), (&Value::Null, &Value::Null));
    assert_eq!(report["queues"][0]["failed"], json!(1));
    let human = say(&scene, &["status"]).await;
    assert_eq!(human.code, Some(1));
    assert!(human.text().contains("RUNNING TASK"), "{human:?}");

    let database = format!("postgres://x@127.0.0.1:{nowhere}/x");
    scene.write_config_for(&scene.redis.url(), &database, "");
    let said = say(&scene, &["status", "--json"]).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    let report = said.json();
    let error = report["postgres"]["error"].as_str().expect("a sentence");
    assert!(error.contains("postgres.url"), "{error}");
    assert_eq!((&report["running"], &report["queues"][0]["failed"]), (&Value::Null, &Value::Null));
    assert_eq!(report["queues"][0]["pending"], json!(1));
}

#[tokio::test]
async fn a_missing_schema_names_the_remedy() {
    let scene = Scene::start().await;
    let empty = scene.postgres.create_database("empty").await.expect("create a database");
    scene.write_config_for(&scene.redis.url(), &empty, "");
    for arguments in [&["status"][..], &["tasks", "list"], &["dead", "list"]] {
        let said = say(&scene, arguments).await;
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains("queue-worker migrate"), "{said:?}");
    }
}

#[tokio::test]
async fn watching_goes_on() {
    let scene = Scene::start().await;
    let mut command = scene.command(["status", "--watch", "--every", "100ms", "--json"]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("start");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    for _ in 0..3 {
        let line = lines.next_line().await.expect("read").expect("a line");
        let report: Value = serde_json::from_str(&line).expect("a JSON line");
        assert_eq!(report["queues"][0]["name"], json!(QUEUE));
    }
    child.kill().await.expect("stop watching");
}

#[tokio::test]
async fn a_stream_that_nobody_reads_is_found() {
    let scene = Scene::start().await;
    let mistyped = ["enqueue", "mial", "--kind", "exit", "--payload", "0"];
    say(&scene, &mistyped).await.good();
    let report = say(&scene, &["status", "--json"]).await.good().json();
    let queues = report["queues"].as_array().expect("a list");
    let found = queues.iter().find(|queue| queue["name"] == json!("mial")).expect("the queue");
    assert_eq!((&found["configured"], &found["length"]), (&json!(false), &json!(1)));
    let page = say(&scene, &["status"]).await.good().text();
    assert!(page.contains("mial (not configured)"), "{page}");

    let doctor = say(&scene, &["doctor", "--json"]).await.json();
    let findings = doctor["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["check"] == json!("redis.streams"));
    let found = found.expect("the finding");
    assert_eq!(found["level"], json!("warning"));
    assert!(found["found"].as_str().expect("text").contains("queue mial has 1 entries"), "{found}");
}

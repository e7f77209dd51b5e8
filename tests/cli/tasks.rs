//! `tasks`: one task in full, and lists.

use serde_json::{Value, json};

use crate::common::Scene;
use crate::said::say;

/// Gives its payload back.
const ECHO: &str = "[handler.echo]\ntype = \"exec\"\ncommand = [\"cat\"]\n";

fn is_time(value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    text.len() == "2025-01-31T23:59:59.123Z".len() && text.starts_with("20") && text.ends_with('Z')
}

#[tokio::test]
async fn tasks_are_shown_in_every_state() {
    let scene = Scene::start().await;
    scene.write_config(ECHO);
    let mut worker = scene.worker("a").await;
    scene.task("text", "echo", "hello\n\x1b[1m").await;
    scene.xadd(&[("task_id", b"bytes"), ("kind", b"echo"), ("payload", b"\x00\xff\n")]).await;
    scene.task("fails", "exit", "65").await;
    scene
        .xadd(&[
            ("task_id", b"waits"),
            ("kind", b"echo"),
            ("payload", b"later"),
            ("not_before_ms", b"4102444800000"),
            ("max_attempts", b"7"),
            ("timeout_ms", b"45000"),
        ])
        .await;
    for (id, status) in
        [("text", "succeeded"), ("bytes", "succeeded"), ("fails", "failed"), ("waits", "delayed")]
    {
        scene.until_status(id, status).await;
    }
    worker.terminate().await;

    succeeded(&scene).await;
    failed(&scene).await;
    delayed(&scene).await;
    lists(&scene).await;
    unknown(&scene).await;
}

async fn succeeded(scene: &Scene) {
    let task = say(scene, &["tasks", "show", "text", "--json"]).await.good().json();
    assert_eq!((&task["task_id"], &task["kind"]), (&json!("text"), &json!("echo")));
    assert_eq!((&task["status"], &task["fence"]), (&json!("succeeded"), &json!(1)));
    assert_eq!((&task["attempts"], &task["crashes"]), (&json!(0), &json!(0)));
    assert_eq!(task["result"], json!("hello\n\x1b[1m"));
    assert!(is_time(&task["created_at"]) && is_time(&task["started_at"]), "{task}");
    assert!(is_time(&task["processed_at"]), "{task}");
    assert_eq!((&task["payload"], &task["error"]), (&Value::Null, &Value::Null));
    let page = say(scene, &["tasks", "show", "text"]).await.good().text();
    assert!(page.contains("status            succeeded\n"), "{page}");
    assert!(page.contains("    hello\n    \\u{1b}[1m\n"), "{page}");

    let raw = say(scene, &["tasks", "show", "bytes", "--raw-result"]).await.good();
    assert_eq!(raw.out, b"\x00\xff\n");
    let task = say(scene, &["tasks", "show", "bytes", "--json"]).await.good().json();
    assert_eq!(task["result_hex"], json!("00ff0a"));
    let page = say(scene, &["tasks", "show", "bytes"]).await.good().text();
    assert!(page.contains("result (3 bytes):\n    00ff0a\n"), "{page}");
}

async fn failed(scene: &Scene) {
    let task = say(scene, &["tasks", "show", "fails", "--json"]).await.good().json();
    assert_eq!((&task["status"], &task["attempts"]), (&json!("failed"), &json!(1)));
    assert_eq!(task["error_status"], json!("exit 65"));
    assert!(task["error"].as_str().is_some_and(|error| !error.is_empty()), "{task}");
    let event = &task["history"][0];
    assert_eq!((&event["event"], &event["fence"]), (&json!("failed"), &json!(1)));
    assert!(is_time(&event["at"]), "{event}");
    let page = say(scene, &["tasks", "show", "fails"]).await.good().text();
    assert!(page.contains("HISTORY, NEWEST FIRST") && page.contains("exit 65"), "{page}");
    let raw = say(scene, &["tasks", "show", "fails", "--raw-result"]).await;
    assert_eq!(raw.code, Some(1));
    assert!(raw.err.contains("no result") && raw.err.contains("failed"), "{raw:?}");
}

async fn delayed(scene: &Scene) {
    let task = say(scene, &["tasks", "show", "waits", "--json"]).await.good().json();
    assert_eq!((&task["status"], &task["payload"]), (&json!("delayed"), &json!("later")));
    // The delay is counted from when the database learns of it.
    let run_at = task["run_at"].as_str().expect("a time");
    assert!(run_at.starts_with("2100-01-01T00:00:"), "{run_at}");
    assert_eq!((&task["max_attempts"], &task["timeout_ms"]), (&json!(7), &json!(45_000)));
    assert_eq!((&task["started_at"], &task["worker"]), (&Value::Null, &Value::Null));
    let page = say(scene, &["tasks", "show", "waits"]).await.good().text();
    assert!(page.contains("due") && page.contains("payload (5 bytes):\n    later\n"), "{page}");
}

async fn lists(scene: &Scene) {
    let all = say(scene, &["tasks", "list", "--json"]).await.good().json_lines();
    assert_eq!(all.len(), 4);
    let failed =
        say(scene, &["tasks", "list", "--status", "failed", "--queue", "q", "--json"]).await;
    let failed = failed.good().json_lines();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["task_id"], json!("fails"));
    let limited = say(scene, &["tasks", "list", "--kind", "echo", "--limit", "2"]).await.good();
    assert_eq!(limited.text().lines().count(), 3, "a head and two tasks");
    let none = say(scene, &["tasks", "list", "--queue", "other"]).await.good();
    assert_eq!(none.text(), "no such tasks\n");
    assert_eq!(say(scene, &["tasks", "list", "--status", "gone"]).await.code, Some(2));
}

async fn unknown(scene: &Scene) {
    let said = say(scene, &["tasks", "show", "nobody"]).await;
    assert_eq!(said.code, Some(1));
    assert!(said.out.is_empty() && said.err.contains("knows no task nobody"), "{said:?}");
}

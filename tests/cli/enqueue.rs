//! `enqueue`: from arguments, standard input and files; a bad line sends nothing.

use serde_json::json;

use crate::common::{STREAM, Scene};
use crate::said::{say, say_to};

/// The fields of an entry.
type Fields = Vec<(String, Vec<u8>)>;

/// All entries, oldest first.
async fn entries(scene: &Scene) -> Vec<Fields> {
    let mut connection = scene.redis_connection().await;
    let found: Vec<(String, Fields)> = redis::cmd("XRANGE")
        .arg(STREAM)
        .arg("-")
        .arg("+")
        .query_async(&mut connection)
        .await
        .expect("XRANGE");
    found.into_iter().map(|(_, fields)| fields).collect()
}

fn value<'a>(fields: &'a Fields, name: &str) -> &'a [u8] {
    let found = fields.iter().find(|(field, _)| field == name);
    &found.unwrap_or_else(|| panic!("no {name} in {fields:?}")).1
}

#[tokio::test]
async fn one_task_from_arguments_input_or_a_file() {
    let scene = Scene::start().await;
    let said = say(
        &scene,
        &[
            "enqueue",
            "q",
            "--kind",
            "k",
            "--id",
            "first",
            "--payload",
            "text",
            "--lock-key",
            "repo",
            "--max-attempts",
            "3",
            "--timeout",
            "45s",
        ],
    )
    .await;
    assert_eq!(said.good().text(), "first\n");
    let piped = say_to(&scene, &["enqueue", "q", "--kind", "k"], b"\x00\xff").await.good();
    let made = piped.text().trim().to_owned();
    assert_eq!(made.len(), 36, "a UUID: {made}");
    let file = scene.path().join("payload");
    std::fs::write(&file, b"from a file").expect("write the payload");
    let file = file.to_str().expect("text");
    let arguments = ["enqueue", "q", "--kind", "k", "--id", "f", "--payload-file", file, "--json"];
    let said = say(&scene, &arguments).await.good();
    assert_eq!(said.json()["task_id"], json!("f"));

    let entries = entries(&scene).await;
    assert_eq!(entries.len(), 3);
    let first = &entries[0];
    for (name, expected) in [
        ("task_id", "first"),
        ("kind", "k"),
        ("payload", "text"),
        ("lock_key", "repo"),
        ("max_attempts", "3"),
        ("timeout_ms", "45000"),
    ] {
        assert_eq!(value(first, name), expected.as_bytes(), "{name}");
    }
    assert_eq!(value(&entries[1], "payload"), b"\x00\xff");
    assert_eq!(value(&entries[1], "task_id"), made.as_bytes());
    assert_eq!(value(&entries[2], "payload"), b"from a file");
}

#[tokio::test]
async fn many_tasks_from_lines() {
    let scene = Scene::start().await;
    let lines = "{\"task_id\":\"a\",\"kind\":\"k\",\"payload\":\"text\"}\n\n\
        {\"task_id\":\"b\",\"kind\":\"other\",\"payload\":{\"n\":1}}\n\
        {\"task_id\":\"c\",\"payload_hex\":\"00ff\"}\n";
    let file = scene.path().join("tasks.jsonl");
    std::fs::write(&file, lines).expect("write the tasks");
    let file = file.to_str().expect("text");
    let said = say(&scene, &["enqueue", "q", "--kind", "k", "--file", file, "--json"]).await.good();
    assert!(said.err.contains("3 tasks added to q"), "{said:?}");
    let ids: Vec<_> = said.json_lines().iter().map(|line| line["task_id"].clone()).collect();
    assert_eq!(ids, [json!("a"), json!("b"), json!("c")]);
    let added = entries(&scene).await;
    assert_eq!(value(&added[1], "payload"), br#"{"n":1}"#);
    assert_eq!(value(&added[1], "kind"), b"other");
    assert_eq!(value(&added[2], "payload"), b"\x00\xff");

    let piped = say_to(&scene, &["enqueue", "q", "--file", "-"], lines.as_bytes()).await;
    assert_eq!(piped.code, Some(1), "the third line has no kind: {piped:?}");
    let piped =
        say_to(&scene, &["enqueue", "q", "--kind", "k", "--file", "-"], lines.as_bytes()).await;
    piped.good();
    assert_eq!(scene.length().await, 6);
}

#[tokio::test]
async fn a_bad_line_is_named_and_nothing_is_sent() {
    let scene = Scene::start().await;
    for (bad, named) in [
        ("{\"kind\":\"k\"", "EOF"),
        ("{\"kind\":\"k\"}", "payload"),
        ("{\"kind\":\"k\",\"payload\":\"\",\"task_id\":\"a\\u0000b\"}", "task_id"),
        ("{\"kind\":\"k\",\"payload\":\"\",\"lock_key\":\"\"}", "lock_key"),
    ] {
        let lines = format!("{{\"kind\":\"k\",\"payload\":\"good\"}}\n\n{bad}\n");
        let said = say_to(&scene, &["enqueue", "q", "--file", "-"], lines.as_bytes()).await;
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains("line 3") && said.err.contains(named), "{said:?}");
    }
    assert_eq!(scene.length().await, 0);
}

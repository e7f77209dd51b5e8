//! `enqueue`: from arguments, standard input and files; a bad line sends nothing.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::{STREAM, Scene, wait_for};
use crate::said::{Said, say, say_to};

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

/// Runs the command, and breaks its connection while Redis has its `XADD` and does not answer.
async fn say_without_answer(scene: &Scene, arguments: &[&str]) -> Said {
    let mut connection = scene.redis_connection().await;
    let mut pause = redis::cmd("CLIENT");
    pause.arg(&["PAUSE", "60000", "WRITE"]);
    let () = pause.query_async(&mut connection).await.expect("CLIENT PAUSE");
    let mut command = scene.command(arguments.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("start the command");
    wait_for("the XADD", async || !scene.clients("xadd").await.is_empty()).await;
    for id in scene.clients("xadd").await {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("ID").arg(id);
        let () = kill.query_async(&mut connection).await.expect("CLIENT KILL");
    }
    let () = redis::cmd("CLIENT")
        .arg("UNPAUSE")
        .query_async(&mut connection)
        .await
        .expect("CLIENT UNPAUSE");
    child.wait_with_output().await.expect("wait for the command").into()
}

/// What follows an option in a text.
fn after<'a>(text: &'a str, option: &str) -> &'a str {
    let rest = text.split_once(option).unwrap_or_else(|| panic!("no {option}: {text}")).1;
    rest.split_whitespace().next().expect("a value")
}

#[tokio::test]
async fn a_lost_answer_names_the_id_and_again_is_the_same_task() {
    let scene = Scene::start().await;
    let task = ["enqueue", "q", "--kind", "k", "--payload", "x"];
    let said = say_without_answer(&scene, &task).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("may have been added"), "{said:?}");
    let id = after(&said.err, "--id ");
    let again = say(&scene, &[&task[..], &["--id", id]].concat()).await.good();
    assert_eq!(again.text(), format!("{id}\n"));
    assert_eq!(value(&entries(&scene).await[0], "task_id"), id.as_bytes());
}

#[tokio::test]
async fn the_same_batch_of_lines_again_is_the_same_tasks() {
    let scene = Scene::start().await;
    let lines = "{\"kind\":\"k\",\"payload\":\"x\"}\n{\"kind\":\"k\",\"payload\":\"x\"}\n\
        {\"kind\":\"k\",\"payload\":\"y\",\"task_id\":\"mine\"}\n";
    let file = scene.path().join("tasks.jsonl");
    std::fs::write(&file, lines).expect("write the tasks");
    let all = ["enqueue", "q", "--json", "--file", file.to_str().expect("text")];
    let said = say_without_answer(&scene, &all).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("at least 0 of 3 tasks were added"), "{said:?}");
    let batch = after(&said.err, "--batch ");

    let ids = async |batch: &[&str]| -> Vec<Value> {
        let said = say(&scene, &[&all[..], batch].concat()).await.good();
        said.json_lines().iter().map(|line| line["task_id"].clone()).collect()
    };
    let first = ids(&["--batch", batch]).await;
    assert_eq!(first, ids(&["--batch", batch]).await);
    assert_ne!(first[0], first[1], "two lines are two tasks");
    assert_eq!(first[2], json!("mine"));
    let other = ids(&[]).await;
    assert!(!first[..2].contains(&other[0]), "another batch is other tasks");
}

#[tokio::test]
async fn a_reader_that_goes_away_stops_no_task() {
    let scene = Scene::start().await;
    let lines = "{\"kind\":\"k\",\"payload\":\"x\"}\n".repeat(200);
    let file = scene.path().join("tasks.jsonl");
    std::fs::write(&file, lines).expect("write the tasks");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = scene.command(["enqueue", "q", "--json", "--file", file.to_str().unwrap()]);
    command.stdout(writer).stderr(Stdio::piped());
    let said: Said = command.output().await.expect("run the command").into();
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(scene.length().await, 200);
}

#[tokio::test]
async fn names_that_the_configuration_does_not_know_are_told() {
    let scene = Scene::start().await;
    let good = ["enqueue", "q", "--kind", "exit", "--payload", "0"];
    assert_eq!(say(&scene, &good).await.good().err, "");
    let said = say(&scene, &["enqueue", "mial", "--kind", "exti", "--payload", "0"]).await.good();
    for named in ["warning: the configuration has no queue mial", "for the kind exti"] {
        assert!(said.err.contains(named), "{said:?}");
    }
}

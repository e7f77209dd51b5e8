//! `dead`: evidence with its bytes exact, and the way back to work.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::common::{Scene, wait_for};
use crate::said::{Said, say};

async fn letters(scene: &Scene, arguments: &[&str]) -> Vec<Value> {
    let mut all = vec!["dead", "list", "--json"];
    all.extend(arguments);
    say(scene, &all).await.good().json_lines()
}

fn id(letter: &Value) -> &str {
    letter["id"].as_str().expect("an id")
}

#[tokio::test]
async fn a_refused_entry_keeps_its_bytes() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    let entry = scene
        .xadd(&[("task_id", b"no-kind"), ("payload", b"\x00\xffraw\n"), ("\u{e9}", b"more")])
        .await;
    wait_for("the letter", async || !letters(&scene, &[]).await.is_empty()).await;

    let listed = letters(&scene, &["--queue", "q", "--reason", "malformed"]).await;
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["entry"], &listed[0]["task_id"]), (&json!(entry), &json!("no-kind")));
    assert!(letters(&scene, &["--reason", "failed"]).await.is_empty());
    let table = say(&scene, &["dead", "list"]).await.good().text();
    assert!(table.starts_with("DEAD LETTER") && table.contains("malformed"), "{table}");

    let shown = say(&scene, &["dead", "show", id(&listed[0]), "--json"]).await.good().json();
    assert!(shown["message"].as_str().expect("a sentence").contains("kind"), "{shown}");
    let fields = json!([
        {"name": "task_id", "value": "no-kind"},
        {"name": "payload", "value_hex": "00ff7261770a"},
        {"name": "\u{e9}", "value": "more"},
    ]);
    assert_eq!(shown["fields"], fields);
    let payload = say(&scene, &["dead", "show", id(&listed[0]), "--payload"]).await.good();
    assert_eq!(payload.out, b"\x00\xffraw\n");
    let page = say(&scene, &["dead", "show", id(&listed[0])]).await.good().text();
    assert!(page.contains("field payload (6 bytes):\n    00ff7261770a\n"), "{page}");

    // It goes back as it was, so it is refused again: a second letter with the same bytes.
    let requeued = say(&scene, &["dead", "requeue", id(&listed[0])]).await.good();
    assert_eq!(requeued.text(), format!("requeued {}\n", id(&listed[0])));
    wait_for("the second letter", async || !letters(&scene, &[]).await.is_empty()).await;
    let second = &letters(&scene, &[]).await[0];
    assert_ne!(second["id"], listed[0]["id"]);
    let shown = say(&scene, &["dead", "show", id(second), "--json"]).await.good().json();
    assert_eq!(shown["fields"], fields);
    assert_eq!(letters(&scene, &["--requeued"]).await.len(), 2);
    worker.terminate().await;
}

#[tokio::test]
async fn a_failed_task_succeeds_after_its_cause_is_mended() {
    let scene = Scene::start().await;
    let mended = scene.path().join("mended");
    scene.write_config(&format!(
        "[handler.fragile]\ntype = \"exec\"\n\
         command = [\"/bin/sh\", \"-c\", \"test -e {} || {{ echo not yet >&2; exit 65; }}; cat\"]\n",
        mended.display()
    ));
    let mut worker = scene.worker("a").await;
    for task in ["one", "two", "three"] {
        scene.task(task, "fragile", "given").await;
        scene.until_status(task, "failed").await;
    }
    let failed = letters(&scene, &["--reason", "failed"]).await;
    assert_eq!(failed.len(), 3);
    let of = |task: &str| {
        let found = failed.iter().find(|letter| letter["task_id"] == json!(task));
        id(found.expect("a letter for each task")).to_owned()
    };
    let one = of("one");
    let shown = say(&scene, &["dead", "show", &one, "--json"]).await.good().json();
    assert_eq!((&shown["status"], &shown["attempts"]), (&json!("exit 65"), &json!(1)));
    assert_eq!((&shown["tail"], &shown["payload"]), (&json!("not yet\n"), &json!("given")));
    assert_eq!((&shown["kind"], &shown["fields"]), (&json!("fragile"), &Value::Null));
    assert!(shown["worker"].is_string());

    let dry = say(&scene, &["dead", "requeue", &one, "--dry-run"]).await.good().text();
    assert!(
        dry.starts_with(&format!("would requeue {one}: its task one is failed after 1 failures"))
    );
    assert_eq!(scene.row("one").await.expect("a row").status, "failed", "nothing was done");

    std::fs::write(&mended, "").expect("mend the cause");
    let nobody = "00000000-0000-0000-0000-000000000001";
    let said = say(&scene, &["dead", "requeue", &one, &one, nobody, "--json"]).await;
    assert_eq!(said.code, Some(1), "one of them does not exist: {said:?}");
    let expected = json!({
        "requeued": [one], "passed_over": [{"id": nobody, "why": "there is no such dead letter"}],
        "dry_run": false,
    });
    assert_eq!(said.json(), expected);
    let row = scene.until_status("one", "succeeded").await;
    assert_eq!((row.attempts, row.result.as_deref()), (0, Some(b"given".as_slice())));

    let again = say(&scene, &["dead", "requeue", &one]).await;
    assert_eq!(again.code, Some(1));
    let text = again.text();
    assert!(text.starts_with(&format!("passed over {one}: it was requeued at 20")), "{text}");

    let rest = ["dead", "requeue", "--all", "--queue", "q", "--reason", "failed"];
    let unasked = say(&scene, &rest).await;
    assert_eq!((unasked.code, unasked.text().as_str()), (Some(1), ""), "{unasked:?}");
    assert!(unasked.err.contains("requeue 2 dead letters: say --yes"), "{unasked:?}");
    assert_eq!(scene.row("two").await.expect("a row").status, "failed", "nothing was done");
    let rest = say(&scene, &[&rest[..], &["--yes"]].concat()).await;
    assert_eq!(rest.good().text().lines().count(), 2);
    scene.until_status("two", "succeeded").await;
    scene.until_status("three", "succeeded").await;
    let none = say(&scene, &["dead", "requeue", "--all"]).await.good();
    assert_eq!(none.text(), "no dead letters to requeue\n");
    assert_eq!(say(&scene, &["dead", "list"]).await.good().text(), "no dead letters\n");
    worker.terminate().await;
}

#[tokio::test]
async fn a_task_that_has_moved_on_is_passed_over() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("t", "exit", "65").await;
    scene.until_status("t", "failed").await;
    worker.terminate().await;
    let letter = letters(&scene, &[]).await.remove(0);
    sqlx::query("UPDATE queue_worker.processed_tasks SET status = 'succeeded'")
        .execute(&scene.pool)
        .await
        .expect("settle by hand");
    let said = say(&scene, &["dead", "requeue", "--all", "--yes", "--json"]).await.good();
    let why = "its task t is succeeded by now";
    let passed_over = [json!({"id": letter["id"], "why": why})];
    let expected = json!({"requeued": [], "passed_over": passed_over, "dry_run": false});
    assert_eq!(said.json(), expected);
}

#[tokio::test]
async fn a_letter_of_another_payload_does_not_take_the_tasks_place() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("t", "exit", "65").await;
    scene.until_status("t", "failed").await;
    // The row was pruned, the letter is kept longer, and the id is used again.
    sqlx::query("DELETE FROM queue_worker.processed_tasks")
        .execute(&scene.pool)
        .await
        .expect("prune by hand");
    scene.task("t", "exit", "66").await;
    scene.until_status("t", "failed").await;
    worker.terminate().await;
    let all = letters(&scene, &[]).await;
    let (new, old) = (id(&all[0]), id(&all[1]));
    let why = "its task t has another payload or kind by now: the id was used again";
    let expected = |dry_run| json!({"requeued": [new], "passed_over": [{"id": old, "why": why}], "dry_run": dry_run});
    let dry = say(&scene, &["dead", "requeue", "--all", "--dry-run", "--json"]).await.good();
    assert_eq!(dry.json(), expected(true));
    let alone = say(&scene, &["dead", "requeue", old]).await;
    assert_eq!((alone.code, alone.text()), (Some(1), format!("passed over {old}: {why}\n")));
    let requeued = ["dead", "requeue", "--all", "--yes", "--json"];
    let said = say(&scene, &requeued).await.good().json();
    assert_eq!(said["requeued"], json!([new]));
    let payload: Option<Vec<u8>> =
        sqlx::query_scalar("SELECT payload FROM queue_worker.processed_tasks")
            .fetch_one(&scene.pool)
            .await
            .expect("the row");
    assert_eq!(payload.as_deref(), Some(b"66".as_slice()));
}

#[tokio::test]
async fn letters_are_purged_by_id_and_by_age() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    for task in ["one", "two", "three"] {
        scene.task(task, "exit", "65").await;
        scene.until_status(task, "failed").await;
    }
    worker.terminate().await;
    sqlx::query(
        "UPDATE queue_worker.dead_letters SET created_at = now() - interval '40 days' \
         WHERE task_id = 'two'",
    )
    .execute(&scene.pool)
    .await
    .expect("age a letter");
    let all = letters(&scene, &[]).await;
    let of = |task: &str| {
        let found = all.iter().find(|letter| letter["task_id"] == json!(task));
        id(found.expect("a letter for each task")).to_owned()
    };
    let dry = say(&scene, &["dead", "purge", "--all", "--dry-run", "--json"]).await.good().json();
    assert_eq!(dry["purged"].as_array().map(Vec::len), Some(3));
    assert_eq!(letters(&scene, &[]).await.len(), 3, "nothing was done");
    let old = ["dead", "purge", "--all", "--older-than", "30d", "--json"];
    let unasked = say(&scene, &old).await;
    assert_eq!(unasked.code, Some(1), "{unasked:?}");
    assert!(unasked.err.contains("purge 1 dead letter: say --yes"), "{unasked:?}");
    assert_eq!(letters(&scene, &[]).await.len(), 3, "nothing was done");
    let old = say(&scene, &[&old[..], &["--yes"]].concat()).await;
    assert_eq!(old.good().json()["purged"], json!([of("two")]));
    let one = of("one");
    let text = say(&scene, &["dead", "purge", &one]).await.good().text();
    assert_eq!(text, format!("purged {one}\n"));
    let again = say(&scene, &["dead", "purge", &one]).await;
    assert_eq!(again.code, Some(1), "{again:?}");
    assert_eq!(letters(&scene, &[]).await.len(), 1);
    assert_eq!(scene.row("one").await.expect("the row stays").status, "failed");
}

#[tokio::test]
async fn wrong_usage_is_told() {
    let scene = Scene::start().await;
    for arguments in [
        &["dead", "requeue"][..],
        &["dead", "requeue", "--queue", "q"],
        &["dead", "requeue", "--all", "00000000-0000-0000-0000-000000000001"],
        &["dead", "show", "not-an-id"],
        &["dead", "list", "--reason", "bad-luck"],
    ] {
        assert_eq!(say(&scene, arguments).await.code, Some(2), "{arguments:?}");
    }
    let nobody = "00000000-0000-0000-0000-000000000001";
    let said = say(&scene, &["dead", "show", nobody]).await;
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("no dead letter") && said.err.contains("dead list"), "{said:?}");
}

#[tokio::test]
async fn a_terminal_is_asked() {
    let scene = Scene::start().await;
    let letter = "INSERT INTO queue_worker.dead_letters (id, queue, reason, message) \
                  VALUES (gen_random_uuid(), 'q', 'malformed', 'of a test')";
    sqlx::query(letter).execute(&scene.pool).await.expect("write a letter");
    let line = format!(
        "{} --config {} dead purge --all",
        env!("CARGO_BIN_EXE_queue-worker"),
        scene.config_path().display()
    );
    // script(1) gives it a terminal, and types what it is given.
    let answer = async |typed: &[u8]| -> Option<Said> {
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Not every machine has it.
        let mut child = command.kill_on_drop(true).spawn().ok()?;
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(typed).await.expect("type");
        let said = child.wait_with_output().await.expect("wait for the command").into();
        drop(stdin);
        Some(said)
    };
    let Some(no) = answer(b"n\n").await else { return };
    assert_eq!(no.code, Some(1), "{no:?}");
    assert!(no.text().contains("purge 1 dead letter? [y/N]"), "{no:?}");
    assert_eq!(letters(&scene, &[]).await.len(), 1, "nothing was done");
    let yes = answer(b"y\n").await.expect("as before");
    assert_eq!(yes.code, Some(0), "{yes:?}");
    assert!(letters(&scene, &[]).await.is_empty());
}

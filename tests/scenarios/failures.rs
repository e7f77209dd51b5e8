//! Tasks that fail, and entries that can never run.

use crate::common::{Scene, wait_for};

#[tokio::test]
async fn the_last_attempt_leaves_a_dead_letter_with_evidence() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("t", "exit", "7").await;
    let row = scene.until_status("t", "failed").await;
    assert_eq!((row.attempts, row.crashes), (3, 0));
    assert_eq!(scene.journal_count("t", "start"), 3);
    let letters = scene.letters().await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!((letter.reason.as_str(), letter.attempts), ("failed", 3));
    assert_eq!(letter.task_id.as_deref(), Some("t"));
    assert_eq!(letter.payload.as_deref(), Some(&b"7"[..]));
    assert_eq!(letter.tail.as_deref(), Some(&b"ends with 7\n"[..]));
    assert!(letter.message.contains('7'), "{}", letter.message);
    scene.until_empty().await;
    worker.terminate().await;
}

#[tokio::test]
async fn a_failure_for_good_is_not_tried_again() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("t", "exit", "65").await;
    let row = scene.until_status("t", "failed").await;
    assert_eq!((row.attempts, scene.journal_count("t", "start")), (1, 1));
    worker.terminate().await;
}

#[tokio::test]
async fn a_time_limit_burns_an_attempt_and_nothing_else() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    let options = [("timeout_ms", "300"), ("max_attempts", "1")];
    scene.task_with("t", "sleep", b"60", &options).await;
    let row = scene.until_status("t", "failed").await;
    assert_eq!((row.attempts, row.crashes), (1, 0));
    let letters = scene.letters().await;
    assert_eq!(letters[0].status.as_deref(), Some("timeout"));
    assert_eq!(scene.journal_count("t", "end"), 0);
    worker.terminate().await;
}

#[tokio::test]
async fn standard_output_is_kept_as_the_result() {
    let scene = Scene::start().await;
    scene.write_config(
        "\n[handler.bytes]\ntype = \"exec\"\nresult_cap = \"16B\"\n\
         command = [\"/bin/sh\", \"-c\", 'cat; printf \"\\000\\377 and much more of it\"']\n",
    );
    let mut worker = scene.worker("a").await;
    scene.task_with("t", "bytes", b"\xff\xfe\0", &[]).await;
    let row = scene.until_status("t", "succeeded").await;
    assert_eq!(row.result.as_deref(), Some(&b"\xff\xfe\0\0\xff and much m"[..]), "16 bytes");
    scene.task("s", "sleep", "0").await;
    assert_eq!(scene.until_status("s", "succeeded").await.result, Some(b"fence 1\n".to_vec()));
    worker.terminate().await;
}

/// A server that lives and refuses a statement over and over is not waited for without end, whatever it
/// says the reason is.
#[tokio::test]
async fn a_statement_that_is_hindered_for_all_its_time_has_failed() {
    let scene = Scene::start().await;
    let handler = |name: &str, code: &str| {
        sqlx::AssertSqlSafe(format!(
            "CREATE FUNCTION {name}() RETURNS void LANGUAGE plpgsql AS \
             $$ BEGIN RAISE 'as asked' USING ERRCODE = '{code}'; END $$"
        ))
    };
    // No room on the disk; another server that could not be reached; an error of the server's own.
    let codes = [("full", "53100"), ("away", "08001"), ("odd", "XX000")];
    let mut config = String::new();
    for (name, code) in codes {
        sqlx::query(handler(name, code)).execute(&scene.pool).await.expect("create a function");
        let statement = format!("statement = \"SELECT {name}(), $1, $2\"\n");
        config.extend(["\n[handler.", name, "]\ntype = \"sql\"\n", &statement]);
    }
    scene.write_config(&config);
    let mut worker = scene.worker("a").await;
    let options = [("timeout_ms", "300"), ("max_attempts", "2")];
    for (name, _) in codes {
        scene.task_with(name, name, b"", &options).await;
    }
    for (name, code) in codes {
        let row = scene.until_status(name, "failed").await;
        assert_eq!((row.attempts, row.crashes), (2, 0), "{name}");
        let letters = scene.letters().await;
        let letter = letters.iter().find(|letter| letter.task_id.as_deref() == Some(name));
        assert_eq!(letter.expect(name).status.as_deref(), Some(&*format!("sqlstate {code}")));
    }
    scene.task("good", "exit", "0").await;
    scene.until_status("good", "succeeded").await;
    scene.until_empty().await;
    worker.terminate().await;
}

/// A payload is the handler's business, an entry is ours; neither kind of bad one jams the queue.
#[tokio::test]
async fn scenario_12_bad_payloads_neither_vanish_nor_jam() {
    let scene = Scene::start().await;
    sqlx::query("CREATE TABLE documents (task_id text, body bytea)")
        .execute(&scene.pool)
        .await
        .expect("create the table");
    let handler = |value: &str| {
        format!(
            "\n[handler.document]\ntype = \"sql\"\nmax_attempts = 1\n\
             statement = \"INSERT INTO documents (task_id, body) VALUES ($2, {value})\"\n"
        )
    };
    scene.write_config(&handler("convert_to(convert_from($1, 'UTF8')::jsonb::text, 'UTF8')"));
    let mut worker = scene.worker("a").await;
    let bad: [(&str, &[u8]); 4] = [
        ("nan", b"{\"a\":NaN}"),
        ("cut", b"{\"a\": [1, 2"),
        ("bytes", b"\xff\xfe\0"),
        ("empty", b""),
    ];
    for (id, payload) in bad {
        scene.task_with(id, "document", payload, &[]).await;
        scene.task(&format!("good-{id}"), "document", "{\"a\":1}").await;
    }
    for (id, payload) in bad {
        scene.until_status(id, "failed").await;
        scene.until_status(&format!("good-{id}"), "succeeded").await;
        let letters = scene.letters().await;
        let letter = letters.iter().find(|letter| letter.task_id.as_deref() == Some(id));
        assert_eq!(letter.expect(id).payload.as_deref(), Some(payload), "{id}: byte for byte");
    }
    // The handler is mended, and what had failed is requeued.
    scene.write_config(&handler("$1"));
    worker.signal(rustix::process::Signal::HUP);
    worker.until_logged("reloaded").await;
    let letters: Vec<_> = scene.letters().await.iter().map(|letter| letter.id).collect();
    let requeued = scene.ledger().requeue(&letters).await.expect("requeue");
    assert_eq!(requeued.len(), 4);
    for (id, payload) in bad {
        scene.until_status(id, "succeeded").await;
        let body: Vec<u8> = sqlx::query_scalar("SELECT body FROM documents WHERE task_id = $1")
            .bind(id)
            .fetch_one(&scene.pool)
            .await
            .expect("one effect");
        assert_eq!(body, payload, "{id}");
    }
    scene.until_empty().await;
    worker.terminate().await;
}

#[tokio::test]
async fn scenario_12_entries_that_are_no_tasks_become_dead_letters_at_once() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    let bad: [&[(&str, &[u8])]; 5] = [
        &[("something", b"else")],
        &[("task_id", b"x"), ("payload", b"p")],
        &[("task_id", b"\xff\xfe"), ("kind", b"effect"), ("payload", b"p")],
        &[("task_id", b""), ("kind", b""), ("payload", b"")],
        &[("task_id", b"x"), ("kind", b"effect"), ("payload", b"p"), ("max_attempts", b"NaN")],
    ];
    for (n, fields) in bad.iter().enumerate() {
        scene.xadd(fields).await;
        scene.task(&format!("good-{n}"), "effect", "").await;
    }
    wait_for("the dead letters", async || scene.letters().await.len() == bad.len()).await;
    scene.until_empty().await;
    assert_eq!(scene.count("SELECT count(*) FROM effects").await, 5, "the good ones are done");
    let letters = scene.letters().await;
    assert!(letters.iter().all(|letter| letter.reason == "malformed"), "{letters:?}");
    for fields in bad {
        let expected: Vec<Vec<u8>> = fields
            .iter()
            .flat_map(|(name, value)| [name.as_bytes().to_vec(), value.to_vec()])
            .collect();
        let found = letters.iter().any(|letter| letter.fields.as_ref() == Some(&expected));
        assert!(found, "byte for byte: {expected:?} in {letters:?}");
    }
    // Requeued, they are looked at again, and found as bad as before.
    let letters: Vec<_> = letters.iter().map(|letter| letter.id).collect();
    let requeued = scene.ledger().requeue(&letters).await.expect("requeue");
    assert_eq!(requeued.len(), 5);
    wait_for("new dead letters", async || scene.letters().await.len() == 10).await;
    scene.until_empty().await;
    worker.terminate().await;
}

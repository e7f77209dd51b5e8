//! Entries that no producer should write, and results that no text column takes: each is stored
//! exactly or dead-lettered exactly, and the tasks around it run.

use queue_worker::clock::Clock;
use sqlx::Row;

use crate::Unit;
use crate::common::{STREAM, Scene, wait_for};

/// Bytes that are no text: NUL, no UTF-8, line breaks, an escape sequence.
const NO_TEXT: &[u8] = b"a\0b\xff\xfe\r\n\x1b[31m";

type Fields = Vec<(&'static [u8], Vec<u8>)>;

fn entry(replaced: &'static str, value: &[u8]) -> Fields {
    let mut fields: Fields = vec![
        (b"task_id", format!("bad-{replaced}").into_bytes()),
        (b"kind", b"effect".to_vec()),
        (b"payload", b"p".to_vec()),
    ];
    fields.retain(|(name, _)| *name != replaced.as_bytes());
    fields.push((replaced.as_bytes(), value.to_vec()));
    fields
}

async fn add(scene: &Scene, fields: &Fields) -> String {
    let mut connection = scene.redis_connection().await;
    let mut command = redis::cmd("XADD");
    command.arg(STREAM).arg("*");
    for (name, value) in fields {
        command.arg(*name).arg(value);
    }
    command.query_async(&mut connection).await.expect("XADD")
}

/// The names and values that the letter of an entry has kept, and its message.
async fn letter(scene: &Scene, id: &str) -> Option<(Vec<Vec<u8>>, String, String)> {
    let row = sqlx::query(
        "SELECT fields, message, reason FROM queue_worker.dead_letters WHERE entry = $1",
    )
    .bind(id)
    .fetch_optional(&scene.pool)
    .await
    .expect("read the letter")?;
    Some((row.get(0), row.get(1), row.get(2)))
}

#[tokio::test]
async fn fields_that_are_no_text_are_dead_letters_byte_for_byte() {
    let scene = Scene::start().await;
    let unit = Unit::start(&scene, "a", &[]);
    let mut refused = Vec::new();
    let names = [
        "task_id",
        "kind",
        "lock_key",
        "traceparent",
        "max_attempts",
        "timeout_ms",
        "not_before_ms",
        "version",
    ];
    for name in names {
        for value in [NO_TEXT, b"\0", b"\xff", &[b'9'; 300]] {
            let fields = entry(name, value);
            refused.push((add(&scene, &fields).await, name, fields));
        }
    }
    for (name, fields) in [
        ("task_id", vec![(&b"\0\xff"[..], NO_TEXT.to_vec())]),
        ("payload", vec![(&b"task_id"[..], b"x".to_vec()), (b"kind", b"effect".to_vec())]),
        ("kind", [entry("kind", b"effect"), vec![(b"kind", NO_TEXT.to_vec())]].concat()),
        ("payload", entry("payload", &vec![0; 300 * 1024])),
    ] {
        refused.push((add(&scene, &fields).await, name, fields));
    }
    let mut kept = entry("payload", NO_TEXT);
    kept.push((b"x-extra", NO_TEXT.to_vec()));
    kept.push((NO_TEXT, NO_TEXT.to_vec()));
    add(&scene, &kept).await;
    scene.task("after", "effect", "").await;

    scene.until_status("after", "succeeded").await;
    scene.until_status("bad-payload", "succeeded").await;
    for (id, name, fields) in refused {
        wait_for(&format!("the letter of a bad {name}"), async || {
            letter(&scene, &id).await.is_some()
        })
        .await;
        let (bytes, message, reason) = letter(&scene, &id).await.expect("just seen");
        let sent: Vec<Vec<u8>> =
            fields.iter().flat_map(|(name, value)| [name.to_vec(), value.clone()]).collect();
        assert_eq!(bytes, sent, "{name}");
        assert!(message.contains(name), "{name}: {message}");
        assert!(!message.chars().any(char::is_control), "{name}: {message:?}");
        let expected = if fields.iter().any(|(_, value)| value.len() > 256 * 1024) {
            "oversized"
        } else {
            "malformed"
        };
        assert_eq!(reason, expected, "{name}: {message}");
    }
    scene.until_empty().await;
    unit.systemd.until_status(&["ready, idle"]).await;
    assert!(!unit.worker.log().contains('\u{1b}'), "an escape sequence reached the log");
    unit.ends().await;
}

const CAT: (&str, &str) = ("QUEUE_WORKER_HANDLER__cat__COMMAND", r#"["/bin/cat"]"#);
const CAT_TYPE: (&str, &str) = ("QUEUE_WORKER_HANDLER__cat__TYPE", "exec");

#[tokio::test]
async fn what_a_program_says_is_kept_byte_for_byte() {
    let scene = Scene::start().await;
    let fails = r#"["/bin/sh", "-c", "cat >&2; exit 65"]"#;
    let environment = [
        CAT,
        CAT_TYPE,
        ("QUEUE_WORKER_HANDLER__fails__TYPE", "exec"),
        ("QUEUE_WORKER_HANDLER__fails__COMMAND", fails),
    ];
    let unit = Unit::start(&scene, "a", &environment);
    let bytes: Vec<u8> = (0..=255).cycle().take(1024).collect();
    for (id, kind) in [("said", "cat"), ("complained", "fails")] {
        scene
            .xadd(&[("task_id", id.as_bytes()), ("kind", kind.as_bytes()), ("payload", &bytes)])
            .await;
    }
    scene.task("after", "effect", "").await;
    assert_eq!(scene.until_status("said", "succeeded").await.result, Some(bytes.clone()));
    let row = scene.until_status("complained", "failed").await;
    assert!(row.error.is_some_and(|error| error.contains("exit 65")));
    let (tail, payload): (Vec<u8>, Vec<u8>) = sqlx::query_as(
        "SELECT tail, payload FROM queue_worker.dead_letters WHERE task_id = 'complained'",
    )
    .fetch_one(&scene.pool)
    .await
    .expect("a letter");
    assert_eq!((tail, payload), (bytes.clone(), bytes));
    scene.until_status("after", "succeeded").await;
    scene.until_empty().await;
    assert!(!unit.worker.log().contains('\u{1b}'), "an escape sequence reached the log");
    assert!(!unit.worker.log().contains('\0'), "NUL reached the log");
    unit.ends().await;
}

/// A task's payload may reach SQL as bytes only; what SQL then makes of it is the task's failure.
#[tokio::test]
async fn a_statement_that_cannot_read_its_payload_fails_its_task_only() {
    let scene = Scene::start().await;
    let text = "INSERT INTO effects (task_id) VALUES (convert_from($1, 'UTF8') || $2)";
    let environment = [
        ("QUEUE_WORKER_HANDLER__text__TYPE", "sql"),
        ("QUEUE_WORKER_HANDLER__text__STATEMENT", text),
        ("QUEUE_WORKER_HANDLER__text__MAX_ATTEMPTS", "2"),
        ("QUEUE_WORKER_HANDLER__text__BACKOFF_BASE", "50ms"),
    ];
    let unit = Unit::start(&scene, "a", &environment);
    scene.xadd(&[("task_id", b"bad"), ("kind", b"text"), ("payload", NO_TEXT)]).await;
    for id in ["one", "two", "three"] {
        scene.task(id, "text", "fine").await;
    }
    let row = scene.until_status("bad", "failed").await;
    let error = row.error.expect("an error");
    assert!(error.contains("invalid byte sequence"), "{error}");
    for id in ["one", "two", "three"] {
        scene.until_status(id, "succeeded").await;
    }
    scene.until_empty().await;
    unit.ends().await;
}

#[tokio::test]
async fn a_missing_program_is_named_by_its_tasks_failure() {
    let scene = Scene::start().await;
    let environment = [
        ("QUEUE_WORKER_HANDLER__gone__TYPE", "exec"),
        ("QUEUE_WORKER_HANDLER__gone__COMMAND", r#"["/opt/no/such-program", "x"]"#),
        ("QUEUE_WORKER_HANDLER__gone__MAX_ATTEMPTS", "2"),
        ("QUEUE_WORKER_HANDLER__gone__BACKOFF_BASE", "50ms"),
    ];
    let unit = Unit::start(&scene, "a", &environment);
    scene.task("t", "gone", "").await;
    scene.task("after", "effect", "").await;
    let row = scene.until_status("t", "failed").await;
    let error = row.error.expect("an error");
    assert!(error.contains("/opt/no/such-program") && error.contains("install it"), "{error}");
    assert_eq!((row.attempts, row.crashes), (2, 0));
    scene.until_status("after", "succeeded").await;
    unit.ends().await;
}

/// Entries that would wait for something else first: an id that is done or means another task must
/// not keep them in the stream until then.
#[tokio::test]
async fn an_id_that_is_used_up_does_not_wait() {
    let scene = Scene::start().await;
    let unit = Unit::start(&scene, "a", &[]);
    scene.task("t", "effect", "").await;
    scene.until_status("t", "succeeded").await;
    let in_a_year = (Clock::System.wall_ms() + 365 * 24 * 3600 * 1000).to_string();
    let later = ("not_before_ms", in_a_year.as_bytes());
    scene.xadd(&[("task_id", b"t"), ("kind", b"effect"), ("payload", b""), later]).await;
    let other =
        scene.xadd(&[("task_id", b"t"), ("kind", b"effect"), ("payload", b"2"), later]).await;
    let unknown = scene.task("t", "nobody", "").await;
    scene.until_empty().await;
    for id in [other, unknown] {
        let (_, message, reason) = letter(&scene, &id).await.expect("a letter");
        assert_eq!(reason, "refused");
        assert!(message.contains("was used before"), "{message}");
    }
    assert_eq!(scene.until_status("t", "succeeded").await.fence, 1);
    unit.ends().await;
}

/// A lock key names a key in Redis, and these are the queue's own: another stream, which would become
/// a string, and the lock of another task.
#[tokio::test]
async fn a_lock_key_that_is_a_key_of_the_queue_is_refused() {
    let scene = Scene::start().await;
    let unit = Unit::start(&scene, "a", &[]);
    let mut redis = scene.redis_connection().await;
    for (id, key) in [("stream", "qw:{other}:tasks"), ("task", "lock:task:foreign")] {
        let fields = [("task_id", id), ("kind", "effect"), ("payload", ""), ("lock_key", key)];
        let entry = scene.xadd(&fields.map(|(name, value)| (name, value.as_bytes()))).await;
        wait_for("the letter", async || letter(&scene, &entry).await.is_some()).await;
        let (_, message, reason) = letter(&scene, &entry).await.expect("just seen");
        assert_eq!(reason, "malformed");
        assert!(message.starts_with("lock_key begins with"), "{message}");
        let made: bool = redis::cmd("EXISTS").arg(key).query_async(&mut redis).await.unwrap();
        assert!(!made, "{key} was made");
    }
    unit.ends().await;
}

/// A lock key names a key in Redis, and this one is no string.
#[tokio::test]
async fn a_lock_key_that_is_no_lock_holds_up_its_own_task_only() {
    const LIST: &str = "somebody's list";
    let scene = Scene::start().await;
    let mut redis = scene.redis_connection().await;
    let _: i64 = redis::cmd("RPUSH").arg(LIST).arg("x").query_async(&mut redis).await.unwrap();
    let unit = Unit::start(&scene, "a", &[]);
    let key = ("lock_key", LIST.as_bytes());
    scene.xadd(&[("task_id", b"odd"), ("kind", b"effect"), ("payload", b""), key]).await;
    for number in 0..20 {
        scene.task(&format!("t-{number}"), "effect", "").await;
    }
    for number in 0..20 {
        scene.until_status(&format!("t-{number}"), "succeeded").await;
    }
    wait_for("the odd one to wait", async || scene.row("odd").await.is_some()).await;
    let row = scene.row("odd").await.expect("just seen");
    assert!(["delayed", "released"].contains(&row.status.as_str()), "{row:?}");
    assert_eq!((row.attempts, row.crashes), (0, 0));
    unit.systemd.until_status(&["ready, idle"]).await;
    unit.ends().await;
}

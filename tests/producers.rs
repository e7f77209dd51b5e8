//! The examples of docs/producers.md, run as they are by the clients that they are for, up to the
//! success of their tasks.

mod common;

use std::path::Path;
use std::process::{Output, Stdio};

use common::{Scene, Worker, node_redis, redis_py, wait_for};
use tokio::process::Command;

const EXAMPLES: &str = "docs/producers";
/// A user whose name every layer could spoil.
const USER: &str = "ada-löve%20lace";

/// A worker of the examples' queue; their tasks' results are their payloads.
fn worker(scene: &Scene) -> Worker {
    scene.spawn_worker(
        "mail",
        &[
            ("QUEUE_WORKER_QUEUE__1__NAME", "mail"),
            ("QUEUE_WORKER_HANDLER__welcome__TYPE", "exec"),
            ("QUEUE_WORKER_HANDLER__welcome__COMMAND", r#"["/bin/cat"]"#),
        ],
    )
}

/// Runs the example against the scene's Redis, twice: the same task twice is the same task. Then
/// once more without a Redis, which it must not pass over.
async fn enqueues(mut command: Command) {
    let mut scene = Scene::start().await;
    command.arg(USER).env("REDIS_URL", scene.redis.url()).stdin(Stdio::null());
    for _ in 0..2 {
        let output = run(&mut command).await;
        assert!(output.status.success(), "{command:?}: {output:?}");
        let entry = String::from_utf8(output.stdout).expect("text");
        assert!(entry.trim().parse::<queue_worker::domain::EntryId>().is_ok(), "{entry}");
    }
    let mut worker = worker(&scene);
    let row = scene.until_status(&format!("welcome-{USER}"), "succeeded").await;
    let payload: serde_json::Value =
        serde_json::from_slice(&row.result.expect("the payload")).expect("JSON");
    assert_eq!(payload, serde_json::json!({ "user": USER }));
    assert_eq!((row.fence, row.attempts, row.crashes), (1, 0, 0));
    wait_for("the stream to be empty", async || {
        let mut connection = scene.redis_connection().await;
        let length: u64 = redis::cmd("XLEN")
            .arg("qw:{mail}:tasks")
            .query_async(&mut connection)
            .await
            .expect("XLEN");
        length == 0
    })
    .await;
    assert_eq!(scene.count("SELECT count(*) FROM queue_worker.dead_letters").await, 0);
    worker.terminate().await;
    scene.redis.stop().await;
    let output = run(&mut command).await;
    assert!(!output.status.success(), "{command:?}: {output:?}");
    assert!(!output.stderr.is_empty(), "{command:?}: {output:?}");
}

async fn run(command: &mut Command) -> Output {
    command.kill_on_drop(true).output().await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

#[tokio::test]
async fn from_a_shell() {
    enqueues(Command::new(Path::new(EXAMPLES).join("enqueue.sh"))).await;
}

#[tokio::test]
async fn from_python() {
    let mut python = Command::new("python3");
    python.arg(Path::new(EXAMPLES).join("enqueue.py")).env("PYTHONPATH", redis_py());
    enqueues(python).await;
}

#[tokio::test]
async fn from_javascript() {
    let Some(home) = node_redis() else {
        eprintln!(
            "NOT TESTED: docs/producers/enqueue.mjs needs node and npm, and they are missing"
        );
        return;
    };
    // Node looks for modules beside the script.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = folder.path().join("enqueue.mjs");
    std::fs::copy(Path::new(EXAMPLES).join("enqueue.mjs"), &script).expect("copy the example");
    std::os::unix::fs::symlink(home.join("node_modules"), folder.path().join("node_modules"))
        .expect("link the modules");
    let mut node = Command::new("node");
    node.arg(script);
    enqueues(node).await;
}

/// The refusal that the page promises for an id that is used for something else.
#[tokio::test]
async fn the_same_id_with_another_payload_is_refused() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("t", "effect", "one").await;
    scene.until_status("t", "succeeded").await;
    let newcomer = scene.task("t", "effect", "two").await;
    let repeated = scene.task("t", "effect", "one").await;
    scene.until_empty().await;
    let letters: Vec<(String, String, String)> =
        sqlx::query_as("SELECT entry, reason, message FROM queue_worker.dead_letters")
            .fetch_all(&scene.pool)
            .await
            .expect("read the letters");
    assert_eq!(letters.len(), 1, "{repeated} is the same task: {letters:?}");
    let (entry, reason, message) = &letters[0];
    assert_eq!((entry, reason.as_str()), (&newcomer, "refused"));
    assert!(message.contains("enqueue under a new id"), "{message}");
    assert_eq!(scene.count("SELECT count(*) FROM effects").await, 1);
    worker.terminate().await;
}

#[test]
fn the_page_shows_the_examples_as_they_are() {
    let page = std::fs::read_to_string("docs/producers.md").expect("read the page");
    for (language, name) in [("sh", "enqueue.sh"), ("python", "enqueue.py"), ("js", "enqueue.mjs")]
    {
        let example = std::fs::read_to_string(Path::new(EXAMPLES).join(name)).expect(name);
        let block = format!("```{language}\n{example}```\n");
        assert!(page.contains(&block), "docs/producers.md does not show {name} as it is");
    }
}

#[test]
fn the_page_has_the_limits_of_the_program() {
    use queue_worker::domain::{Kind, LockKey, TaskId};
    use queue_worker::queue::codec;

    let page = std::fs::read_to_string("docs/producers.md").expect("read the page");
    let row = |field: &str| {
        let start = format!("| `{field}` |");
        page.lines().find(|line| line.starts_with(&start)).expect(field).to_owned()
    };
    for (field, limit) in [
        ("task_id", TaskId::MAX_BYTES.to_string()),
        ("kind", Kind::MAX_BYTES.to_string()),
        ("lock_key", LockKey::MAX_BYTES.to_string()),
        ("max_attempts", codec::MAX_ATTEMPTS.to_string()),
        ("timeout_ms", codec::MAX_TIMEOUT.as_millis().to_string()),
        ("not_before_ms", codec::MAX_NOT_BEFORE_MS.to_string()),
        ("traceparent", codec::MAX_TRACEPARENT.to_string()),
        ("version", format!("`{}`", codec::VERSION)),
    ] {
        assert!(row(field).contains(&limit), "{field}: {limit}");
    }
}

//! What is delivered twice, late, or to a worker that stops just then.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::common::{STREAM, Scene, TcpProxy, wait_for};

/// Restarts of the whole test of scenario 04.
const CYCLES: usize = 25;

/// Adds 500 tasks a second until `over`; the task ids are `t-0`, `t-1`, …
async fn enqueue(
    mut connection: redis::aio::MultiplexedConnection,
    over: CancellationToken,
) -> i64 {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let mut added = 0;
    while !over.is_cancelled() {
        pace.tick().await;
        let mut pipeline = redis::pipe();
        for _ in 0..25 {
            pipeline
                .cmd("XADD")
                .arg(STREAM)
                .arg("*")
                .arg("task_id")
                .arg(format!("t-{added}"))
                .arg("kind")
                .arg("effect")
                .arg("payload")
                .arg("")
                .ignore();
            added += 1;
        }
        let () = pipeline.query_async(&mut connection).await.expect("XADD");
    }
    added
}

#[tokio::test]
async fn scenario_04_restarts_under_load_lose_nothing() {
    let scene = Scene::start().await;
    let (mut producer, over) = (JoinSet::new(), CancellationToken::new());
    producer.spawn(enqueue(scene.redis_connection().await, over.clone()));
    for _ in 0..CYCLES {
        let mut worker = scene.worker("a").await;
        worker.terminate().await;
    }
    over.cancel();
    let added = producer.join_next().await.expect("one producer").expect("it ended well");
    let mut last = scene.worker("last").await;
    wait_for("all effects", async || scene.count("SELECT count(*) FROM effects").await >= added)
        .await;
    scene.until_empty().await;
    let distinct = scene.count("SELECT count(DISTINCT task_id) FROM effects").await;
    assert_eq!((scene.count("SELECT count(*) FROM effects").await, distinct), (added, added));
    let burnt = "SELECT count(*) FROM queue_worker.processed_tasks \
                 WHERE attempts > 0 OR crashes > 0 OR status <> 'succeeded'";
    assert_eq!(scene.count(burnt).await, 0);
    last.terminate().await;
}

/// A SIGKILL after the commit, before the acknowledgement: the network swallows what is sent in
/// between.
#[tokio::test]
async fn scenario_11_done_before_the_acknowledgement_is_done() {
    let scene = Scene::start().await;
    let proxy = TcpProxy::start(scene.redis.port()).await;
    scene.write_config_for(
        &format!("redis://127.0.0.1:{}/", proxy.port()),
        &scene.database,
        "\n[handler.waits]\ntype = \"sql\"\nstatement = \"INSERT INTO effects (task_id, fence) \
         SELECT $2, $3 FROM pg_advisory_xact_lock(11)\"\n",
    );
    let mut first = scene.worker("a").await;
    let mut gate = scene.pool.acquire().await.expect("connect to postgres");
    sqlx::query("SELECT pg_advisory_lock(11)").execute(&mut *gate).await.expect("nobody has it");
    scene.task("program", "gate", "").await;
    scene.until_journal("program", "start").await;
    scene.task("statement", "waits", "").await;
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    wait_for("the statement to run", async || scene.count(waits).await > 0).await;
    proxy.silence();
    scene.open_gate();
    sqlx::query("SELECT pg_advisory_unlock(11)").execute(&mut *gate).await.expect("it is ours");
    scene.until_status("program", "succeeded").await;
    scene.until_status("statement", "succeeded").await;
    first.kill().await;
    proxy.forward();
    assert_eq!(scene.pending().await, 2, "neither is acknowledged");
    let mut second = scene.worker("b").await;
    scene.until_empty().await;
    assert_eq!(scene.journal_count("program", "start"), 1);
    assert_eq!(scene.count("SELECT count(*) FROM effects").await, 1);
    for id in ["program", "statement"] {
        let row = scene.row(id).await.expect("claimed");
        assert_eq!((row.status.as_str(), row.fence, row.crashes), ("succeeded", 1, 0), "{id}");
    }
    second.terminate().await;
}

#[tokio::test]
async fn scenario_19_a_long_task_is_not_delivered_again() {
    let scene = Scene::start().await;
    let lease = [
        ("QUEUE_WORKER_LEASE__TTL", "3s"),
        ("QUEUE_WORKER_LEASE__MIN_IDLE", "3s"),
        ("QUEUE_WORKER_LEASE__HEARTBEAT", "800ms"),
    ];
    let mut first = scene.worker_with("a", &lease).await;
    let mut second = scene.worker_with("b", &lease).await;
    scene.task("t", "gate", "").await;
    scene.until_journal("t", "start").await;
    for _ in 0..3 {
        scene.until_it_outlives_its_lease("t").await;
    }
    scene.open_gate();
    let row = scene.until_status("t", "succeeded").await;
    assert_eq!((row.fence, row.attempts, row.crashes), (1, 0, 0));
    assert_eq!(scene.journal_count("t", "start"), 1);
    scene.until_empty().await;
    first.terminate().await;
    second.terminate().await;
}

/// A producer that was not sure sends again: two entries at the same time, many times over.
#[tokio::test]
async fn the_same_task_enqueued_twice_at_once_runs_once() {
    let scene = Scene::start().await;
    let mut first = scene.worker("a").await;
    let mut second = scene.worker("b").await;
    for n in 0..40 {
        let (program, statement) = (format!("program-{n}"), format!("statement-{n}"));
        tokio::join!(
            scene.task(&program, "sleep", "0.2"),
            scene.task(&statement, "effect", ""),
            scene.task(&program, "sleep", "0.2"),
            scene.task(&statement, "effect", ""),
        );
    }
    scene.until_empty().await;
    let distinct = scene.count("SELECT count(DISTINCT task_id) FROM effects").await;
    assert_eq!((scene.count("SELECT count(*) FROM effects").await, distinct), (40, 40));
    let starts = scene.journal().iter().filter(|(_, what, _)| what == "start").count();
    assert_eq!(starts, 40);
    let burnt = "SELECT count(*) FROM queue_worker.processed_tasks \
                 WHERE attempts > 0 OR crashes > 0 OR status <> 'succeeded' OR fence <> 1";
    assert_eq!(scene.count(burnt).await, 0);
    assert_eq!(scene.letters().await, []);
    first.terminate().await;
    second.terminate().await;
}

#[tokio::test]
async fn the_same_id_with_another_payload_is_refused_and_kept() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("t", "effect", "one").await;
    scene.until_status("t", "succeeded").await;
    scene.task("t", "effect", "two").await;
    wait_for("the dead letter", async || scene.letters().await.len() == 1).await;
    let letter = &scene.letters().await[0];
    assert_eq!(letter.reason, "refused");
    assert!(letter.message.contains("used before"), "{}", letter.message);
    let fields = letter.fields.as_ref().expect("the entry's fields");
    assert!(fields.contains(&b"two".to_vec()), "byte for byte");
    scene.until_empty().await;
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence), ("succeeded", 1));
    assert_eq!(scene.count("SELECT count(*) FROM effects").await, 1);
    worker.terminate().await;
}

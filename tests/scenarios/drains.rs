//! What a drain does to tasks, and what it does when a store is away.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use crate::common::{Scene, Worker, wait_for};

/// Handlers are interrupted a second after SIGTERM, and the process goes two seconds after that.
const SHORT_DRAIN: [(&str, &str); 3] = [
    ("QUEUE_WORKER_DRAIN__TIMEOUT", "1s"),
    ("QUEUE_WORKER_DRAIN__KILL_AFTER", "1s"),
    ("QUEUE_WORKER_DRAIN__MARGIN", "2s"),
];

/// timeout + kill_after + margin of [`SHORT_DRAIN`], which the unit's TimeoutStopSec covers.
const SHORT_BUDGET: Duration = Duration::from_secs(4);

/// Writes its process id to the journal, and does not end on SIGTERM.
const STUBBORN: &str = r#"
[handler.stubborn]
type = "exec"
kill_after = "500ms"
command = ["/bin/sh", "-c", '''
echo "$QUEUE_WORKER_TASK_ID pid $$" >> JOURNAL
trap 'echo "$QUEUE_WORKER_TASK_ID term $QUEUE_WORKER_FENCE" >> JOURNAL' TERM
echo "$QUEUE_WORKER_TASK_ID start $QUEUE_WORKER_FENCE" >> JOURNAL
while :; do sleep 0.05; done
''']
"#;

/// Writes its process id to the journal and sleeps for a minute.
const LONG: &str = r#"
[handler.long]
type = "exec"
command = ["/bin/sh", "-c", '''
echo "$QUEUE_WORKER_TASK_ID pid $$" >> JOURNAL
echo "$QUEUE_WORKER_TASK_ID start $QUEUE_WORKER_FENCE" >> JOURNAL
sleep 60
''']
"#;

fn with_handler(scene: &Scene, handler: &str) {
    let journal = scene.path().join("journal").display().to_string();
    scene.write_config(&handler.replace("JOURNAL", &journal));
}

/// Whether the process that a task wrote down still lives.
fn is_alive(scene: &Scene, task: &str) -> bool {
    let journal = scene.journal();
    let (_, _, pid) =
        journal.iter().find(|(id, what, _)| id == task && what == "pid").expect("it wrote its pid");
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

async fn drain_within(worker: &mut Worker, budget: Duration) {
    worker.signal(Signal::TERM);
    ends_within(worker, budget).await;
}

async fn ends_within(worker: &mut Worker, budget: Duration) {
    let (status, took) = worker.exit(budget + Duration::from_secs(10)).await;
    assert!(status.success(), "ended with {status}:\n{}", worker.log());
    assert!(took <= budget, "the drain took {took:?}:\n{}", worker.log());
}

#[tokio::test]
async fn scenario_01_a_stop_with_redis_away_lets_the_task_finish() {
    let mut scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("t", "gate", "").await;
    scene.until_journal("t", "start").await;
    scene.redis.kill();
    worker.signal(Signal::TERM);
    worker.until_logged("draining").await;
    scene.open_gate();
    ends_within(&mut worker, Duration::from_secs(10)).await;
    assert_eq!(scene.row("t").await.expect("claimed").status, "succeeded");
    scene.redis.restart().await.expect("restart redis");
    let mut second = scene.worker("b").await;
    scene.until_empty().await;
    assert_eq!(scene.journal_count("t", "start"), 1, "acknowledged, not run again");
    second.terminate().await;
}

#[tokio::test]
async fn scenario_01_a_stop_with_redis_silent_gives_back_and_goes() {
    let scene = Scene::start().await;
    with_handler(&scene, LONG);
    let mut worker = scene.worker_with("a", &SHORT_DRAIN).await;
    scene.task("t", "long", "").await;
    scene.until_journal("t", "start").await;
    scene.redis.pause();
    drain_within(&mut worker, SHORT_BUDGET).await;
    assert!(!is_alive(&scene, "t"));
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.attempts, row.crashes), ("released", 0, 0));
    scene.redis.resume();
    let _second = scene.worker("b").await;
    wait_for("b to start it", async || scene.journal_count("t", "start") == 2).await;
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.attempts, row.crashes), (0, 0));
}

#[tokio::test]
async fn a_stop_with_postgres_away_stays_within_its_budget() {
    let mut scene = Scene::start().await;
    with_handler(&scene, LONG);
    let mut worker = scene.worker_with("a", &SHORT_DRAIN).await;
    scene.task("t", "long", "").await;
    scene.until_journal("t", "start").await;
    scene.postgres.kill();
    drain_within(&mut worker, SHORT_BUDGET).await;
    assert!(!is_alive(&scene, "t"));
    scene.postgres.restart().await.expect("restart postgres");
    let _second = scene.worker("b").await;
    wait_for("b to start it", async || scene.journal_count("t", "start") == 2).await;
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.fence, row.attempts, row.crashes), (2, 0, 0), "an outage is no crash");
}

#[tokio::test]
async fn a_stop_with_postgres_silent_stays_within_its_budget() {
    let scene = Scene::start().await;
    with_handler(&scene, LONG);
    let mut worker = scene.worker_with("a", &SHORT_DRAIN).await;
    scene.task("t", "long", "").await;
    scene.until_journal("t", "start").await;
    scene.postgres.pause();
    drain_within(&mut worker, SHORT_BUDGET).await;
    assert!(!is_alive(&scene, "t"));
    scene.postgres.resume();
}

#[tokio::test]
async fn a_stop_before_any_store_has_answered_is_at_once() {
    let mut scene = Scene::start().await;
    scene.redis.kill();
    let mut worker = scene.spawn_worker("a", &[]);
    worker.until_logged("redis is away").await;
    drain_within(&mut worker, Duration::from_secs(3)).await;
}

#[tokio::test]
async fn an_idle_worker_stops_at_once_though_its_read_is_blocked() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    wait_for("the read to block", async || !scene.clients("xreadgroup").await.is_empty()).await;
    drain_within(&mut worker, Duration::from_millis(1500)).await;
    assert_eq!(scene.count("SELECT count(*) FROM queue_worker.processed_tasks").await, 0);
}

#[tokio::test]
async fn scenario_02_heartbeats_go_on_while_draining() {
    let scene = Scene::start().await;
    let lease = [
        ("QUEUE_WORKER_LEASE__TTL", "3s"),
        ("QUEUE_WORKER_LEASE__MIN_IDLE", "3s"),
        ("QUEUE_WORKER_LEASE__HEARTBEAT", "800ms"),
        ("QUEUE_WORKER_DRAIN__TIMEOUT", "60s"),
    ];
    let mut first = scene.worker_with("a", &lease).await;
    scene.task("t", "gate", "").await;
    scene.until_journal("t", "start").await;
    let _second = scene.worker_with("b", &lease).await;
    first.signal(Signal::TERM);
    first.until_logged("draining").await;
    for _ in 0..3 {
        scene.until_it_outlives_its_lease("t").await;
    }
    scene.open_gate();
    let (status, _) = first.exit(Duration::from_secs(10)).await;
    assert!(status.success());
    assert_eq!(scene.journal_count("t", "start"), 1);
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence, row.crashes), ("succeeded", 1, 0));
}

#[tokio::test]
async fn scenario_03_a_task_cut_by_a_stop_keeps_its_attempt() {
    let scene = Scene::start().await;
    with_handler(&scene, STUBBORN);
    let mut first = scene.worker_with("a", &SHORT_DRAIN).await;
    scene.task_with("t", "stubborn", b"", &[("max_attempts", "1")]).await;
    scene.until_journal("t", "start").await;
    let _second = scene.worker("b").await;
    drain_within(&mut first, SHORT_BUDGET).await;
    let exited = Instant::now();
    wait_for("b to start it", async || scene.journal_count("t", "start") == 2).await;
    let took = exited.elapsed();
    assert!(took <= Duration::from_secs(2), "started {took:?} after the exit");
    assert_eq!(scene.journal_count("t", "term"), 1, "the group got TERM first");
    assert!(!is_alive(&scene, "t"), "and KILL then");
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.attempts, row.crashes), ("running", 0, 0));
    assert_eq!(row.fence, 3, "claimed, given back, claimed");
    assert_eq!(scene.letters().await, []);
}

#[tokio::test]
async fn scenario_18_restarts_are_no_crashes() {
    let scene = Scene::start().await;
    scene.task("t", "gate", "").await;
    let environment = [
        ("QUEUE_WORKER_DRAIN__TIMEOUT", "200ms"),
        ("QUEUE_WORKER_DRAIN__KILL_AFTER", "1s"),
        ("QUEUE_WORKER_DRAIN__MARGIN", "2s"),
    ];
    for restart in 1..=5 {
        let mut worker = scene.worker_with("a", &environment).await;
        wait_for("the task to start", async || scene.journal_count("t", "start") == restart).await;
        worker.terminate().await;
        let row = scene.row("t").await.expect("claimed");
        assert_eq!((row.status.as_str(), row.attempts, row.crashes), ("released", 0, 0));
        assert_eq!(scene.locks().await, Vec::<String>::new());
    }
    scene.open_gate();
    let mut worker = scene.worker("a").await;
    let row = scene.until_status("t", "succeeded").await;
    assert_eq!((row.fence, row.attempts, row.crashes), (11, 0, 0));
    assert_eq!(scene.letters().await, []);
    worker.terminate().await;
}

#[tokio::test]
async fn a_second_sigterm_hurries() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("t", "sleep", "60").await;
    scene.until_journal("t", "start").await;
    worker.signal(Signal::TERM);
    worker.until_logged("draining").await;
    let start = Instant::now();
    drain_within(&mut worker, Duration::from_secs(5)).await;
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(worker.logged("asked to hurry"), 1);
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence), ("released", 2));
    assert_eq!((row.attempts, row.crashes), (0, 0));
    assert_eq!(scene.locks().await, Vec::<String>::new());
}

/// Eight places, so that eight run and what was fetched beyond has not started.
#[tokio::test]
async fn tasks_that_were_fetched_and_not_started_are_handed_over() {
    let scene = Scene::start().await;
    let mut first = scene.worker_with("a", &SHORT_DRAIN).await;
    // Quick ones first, so that the worker fetches ahead; then long ones that hold all places.
    for n in 0..60 {
        scene.task(&format!("quick-{n}"), "effect", "").await;
    }
    for n in 0..30 {
        scene.task(&format!("long-{n}"), "sleep", "60").await;
    }
    wait_for("all places to be taken", async || {
        scene.journal().iter().filter(|(_, what, _)| what == "start").count() == 8
    })
    .await;
    drain_within(&mut first, SHORT_BUDGET).await;
    assert_eq!(scene.locks().await, Vec::<String>::new());
    let bad = "SELECT count(*) FROM queue_worker.processed_tasks \
               WHERE attempts > 0 OR crashes > 0 OR status NOT IN ('released', 'succeeded')";
    assert_eq!(scene.count(bad).await, 0);
    let given_back = "SELECT count(*) FROM queue_worker.processed_tasks WHERE status = 'released'";
    assert!(scene.count(given_back).await >= 8, "mostly also some that had not started");
    let second = scene.worker("b").await;
    let exited = Instant::now();
    wait_for("b to fill its places", async || {
        scene.journal().iter().filter(|(_, what, _)| what == "start").count() == 16
    })
    .await;
    assert!(exited.elapsed() < Duration::from_secs(4), "after {:?}", exited.elapsed());
    drop(second);
}

/// Tasks are fetched ahead as fast as tasks end; the long ones that come then must not wait in one
/// worker's hands while another has handlers free.
#[tokio::test]
async fn long_tasks_behind_short_ones_are_not_hoarded() {
    let scene = Scene::start().await;
    let first = scene.worker("a").await;
    for n in 0..60 {
        scene.task(&format!("quick-{n}"), "effect", "").await;
    }
    for n in 0..30 {
        scene.task(&format!("long-{n}"), "gate", "").await;
    }
    let running = |scene: &Scene| scene.journal().iter().filter(|(_, w, _)| w == "start").count();
    wait_for("a to fill its places", async || running(&scene) == 8).await;
    let second = scene.worker("b").await;
    wait_for("b to fill its places too", async || running(&scene) == 16).await;
    scene.open_gate();
    for n in 0..30 {
        let row = scene.until_status(&format!("long-{n}"), "succeeded").await;
        assert_eq!((row.attempts, row.crashes), (0, 0));
    }
    scene.until_empty().await;
    assert_eq!(scene.journal().iter().filter(|(_, what, _)| what == "start").count(), 30);
    for mut worker in [first, second] {
        worker.terminate().await;
    }
}

//! The real binary under signals: what a task sees of a deploy, a kill and a hurry.

mod common;

use std::time::Duration;

use common::{Scene, wait_for};
use rustix::process::Signal;

/// The lock's time to live at its default.
const TTL: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_task_runs_once_and_leaves_nothing_behind() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("t", "sleep", "0").await;
    scene.task("e", "effect", "").await;
    let row = scene.until_status("t", "succeeded").await;
    assert_eq!((row.fence, row.attempts, row.crashes), (1, 0, 0));
    scene.until_status("e", "succeeded").await;
    assert_eq!(scene.count("SELECT count(*) FROM effects WHERE task_id = 'e'").await, 1);
    scene.until_empty().await;
    wait_for("the locks to be gone", async || scene.locks().await.is_empty()).await;
    worker.terminate().await;
}

#[tokio::test]
async fn sigterm_lets_a_task_finish_and_starts_no_other() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("t", "gate", "").await;
    scene.until_journal("t", "start").await;
    worker.signal(Signal::TERM);
    worker.until_logged("draining").await;
    scene.task("late", "sleep", "0").await;
    scene.open_gate();
    let (status, _) = worker.exit(Duration::from_secs(20)).await;
    assert!(status.success());
    assert_eq!(scene.row("t").await.expect("claimed").status, "succeeded");
    assert_eq!(scene.row("late").await, None);
    assert_eq!(scene.locks().await, Vec::<String>::new());
    assert_eq!(scene.pending().await, 0);
    assert_eq!(scene.length().await, 1, "the late one waits for another worker");
}

#[tokio::test]
async fn a_killed_worker_is_replaced_within_its_ttl_and_a_second() {
    let scene = Scene::start().await;
    let mut first = scene.worker("a").await;
    scene.task("t", "sleep", "60").await;
    scene.until_journal("t", "start").await;
    let _second = scene.worker("b").await;
    first.kill().await;
    let killed = tokio::time::Instant::now();
    wait_for("the takeover", async || scene.journal_count("t", "start") == 2).await;
    let took = killed.elapsed();
    assert!(took <= TTL + Duration::from_secs(1), "taken over after {took:?}");
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence, row.crashes), ("running", 2, 1));
}

//! Two workers that both believe a task to be theirs.

use std::time::Duration;

use rustix::process::Signal;

use crate::common::{GROUP, STREAM, Scene, wait_for};

/// Who has the only pending entry of the stream.
async fn owner(scene: &Scene) -> Option<String> {
    let mut connection = scene.redis_connection().await;
    let pending: Vec<(String, String, i64, i64)> = redis::cmd("XPENDING")
        .arg(STREAM)
        .arg(GROUP)
        .arg("-")
        .arg("+")
        .arg(10)
        .query_async(&mut connection)
        .await
        .expect("XPENDING");
    pending.into_iter().map(|(_, owner, _, _)| owner).next()
}

#[tokio::test]
async fn scenario_10_a_zombie_is_refused_by_the_fence() {
    let scene = Scene::start().await;
    let mut zombie = scene.worker("a").await;
    scene.task("t", "gate", "").await;
    scene.until_journal("t", "start").await;
    // Its program ends while the worker is frozen: it wakes with a success in its hands.
    zombie.signal(Signal::STOP);
    scene.open_gate_for(1);
    scene.until_journal("t", "end").await;
    let mut heir = scene.worker("b").await;
    wait_for("b to take over", async || scene.journal_count("t", "start") == 2).await;
    let (lock, entry) = (scene.locks().await, owner(&scene).await);
    assert_eq!(lock.len(), 1);
    zombie.signal(Signal::CONT);
    zombie.until_logged("outcome refused").await;
    zombie.terminate().await;
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence, row.crashes), ("running", 2, 1));
    assert_eq!(scene.locks().await, lock, "the heir's lock stands");
    assert_eq!(owner(&scene).await, entry, "and its entry is its own");
    scene.open_gate_for(2);
    let row = scene.until_status("t", "succeeded").await;
    assert_eq!(row.result, Some(b"fence 2\n".to_vec()));
    scene.until_empty().await;
    heir.terminate().await;
}

/// The same when the heir has finished before the zombie wakes.
#[tokio::test]
async fn scenario_10_a_zombie_that_comes_too_late_changes_nothing() {
    let scene = Scene::start().await;
    let mut zombie = scene.worker("a").await;
    for id in ["t", "u"] {
        scene.task(id, "gate", "").await;
        scene.until_journal(id, "start").await;
    }
    zombie.signal(Signal::STOP);
    let mut heir = scene.worker("b").await;
    scene.open_gate();
    for id in ["t", "u"] {
        let row = scene.until_status(id, "succeeded").await;
        assert_eq!((row.fence, row.crashes), (2, 1), "{id}");
    }
    scene.until_empty().await;
    zombie.signal(Signal::CONT);
    zombie.until_logged_times("outcome refused", 2).await;
    scene.task("new", "effect", "").await;
    scene.until_status("new", "succeeded").await;
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence), ("succeeded", 2));
    assert_eq!(row.result, Some(b"fence 2\n".to_vec()));
    zombie.terminate().await;
    heir.terminate().await;
}

/// The predecessor had only just claimed: the successor under the same name waits for the lease,
/// and nobody's work is lost to the restart.
#[tokio::test]
async fn a_crash_is_counted_once_and_forgotten_after_success() {
    let scene = Scene::start().await;
    for crash in 1..=2 {
        let mut worker = scene.worker("a").await;
        if crash == 1 {
            scene.task("t", "gate", "").await;
        }
        wait_for("the task to start", async || scene.journal_count("t", "start") == crash).await;
        worker.kill().await;
    }
    scene.open_gate();
    let mut worker = scene.worker("a").await;
    let row = scene.until_status("t", "succeeded").await;
    assert_eq!((row.fence, row.attempts), (3, 0));
    assert_eq!(scene.letters().await, []);
    let took = worker.terminate().await;
    assert!(took < Duration::from_secs(3), "{took:?}");
}

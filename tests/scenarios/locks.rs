//! Tasks that share a resource.

use crate::common::{Scene, wait_for};

/// The journal of tasks that must not overlap: each start is followed by its own end, and the
/// fences of the resource rise.
fn assert_one_at_a_time(journal: &[(String, String, i64)]) {
    let mut last = 0;
    for pair in journal.chunks(2) {
        let [(id, start, fence), (ended, end, _)] = pair else { panic!("{journal:?}") };
        assert_eq!((start.as_str(), end.as_str(), ended), ("start", "end", id), "{journal:?}");
        assert!(*fence > last, "fences rise: {journal:?}");
        last = *fence;
    }
}

#[tokio::test]
async fn tasks_with_the_same_lock_key_never_overlap_and_see_rising_fences() {
    let scene = Scene::start().await;
    let mut first = scene.worker("a").await;
    let mut second = scene.worker("b").await;
    for n in 0..6 {
        scene.task_with(&format!("t-{n}"), "sleep", b"0.3", &[("lock_key", "repo")]).await;
    }
    for n in 0..6 {
        let row = scene.until_status(&format!("t-{n}"), "succeeded").await;
        assert_eq!((row.attempts, row.crashes), (0, 0));
    }
    assert_one_at_a_time(&scene.journal());
    assert_eq!(scene.journal().len(), 12);
    scene.until_empty().await;
    wait_for("the locks to be gone", async || scene.locks().await.is_empty()).await;
    first.terminate().await;
    second.terminate().await;
}

/// The holder of the resource is killed: the next one gets a higher fence, after the lease.
#[tokio::test]
async fn a_killed_holder_frees_its_resource_by_time() {
    let scene = Scene::start().await;
    let mut first = scene.worker("a").await;
    scene.task_with("holder", "gate", b"", &[("lock_key", "repo")]).await;
    scene.until_journal("holder", "start").await;
    let mut second = scene.worker("b").await;
    scene.task_with("waiter", "sleep", b"0", &[("lock_key", "repo")]).await;
    scene.until_status("waiter", "delayed").await;
    first.kill().await;
    scene.open_gate();
    for id in ["holder", "waiter"] {
        scene.until_status(id, "succeeded").await;
    }
    let fences: Vec<i64> = scene
        .journal()
        .into_iter()
        .filter(|(_, what, _)| what == "start")
        .map(|(_, _, fence)| fence)
        .collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "{:?}", scene.journal());
    let row = scene.row("waiter").await.expect("claimed");
    assert_eq!((row.attempts, row.crashes), (0, 0));
    second.terminate().await;
}

#[tokio::test]
async fn a_hot_key_burns_nothing_and_blocks_nobody() {
    let scene = Scene::start().await;
    let mut first = scene.worker("a").await;
    let mut second = scene.worker("b").await;
    for n in 0..50 {
        scene.task_with(&format!("hot-{n}"), "sleep", b"0.05", &[("lock_key", "hot")]).await;
    }
    for n in 0..20 {
        scene.task(&format!("other-{n}"), "effect", "").await;
    }
    wait_for("the others", async || scene.count("SELECT count(*) FROM effects").await == 20).await;
    let hot_left = scene
        .count(
            "SELECT count(*) FROM queue_worker.processed_tasks \
             WHERE lock_key = 'hot' AND status <> 'succeeded'",
        )
        .await;
    assert!(hot_left > 25, "the others had to wait: only {hot_left} hot ones are left");
    wait_for("the hot ones", async || {
        scene
            .count(
                "SELECT count(*) FROM queue_worker.processed_tasks \
                 WHERE lock_key = 'hot' AND status = 'succeeded'",
            )
            .await
            == 50
    })
    .await;
    assert_one_at_a_time(&scene.journal());
    let burnt = "SELECT count(*) FROM queue_worker.processed_tasks \
                 WHERE attempts > 0 OR crashes > 0";
    assert_eq!(scene.count(burnt).await, 0);
    assert_eq!(scene.letters().await, []);
    first.terminate().await;
    second.terminate().await;
}

#[tokio::test]
async fn a_holder_that_is_given_back_frees_its_resource_at_once() {
    let scene = Scene::start().await;
    let mut first = scene.worker_with("a", &[("QUEUE_WORKER_DRAIN__TIMEOUT", "200ms")]).await;
    scene.task_with("t", "gate", b"", &[("lock_key", "repo")]).await;
    scene.until_journal("t", "start").await;
    first.terminate().await;
    assert_eq!(scene.locks().await, Vec::<String>::new());
    let held = "SELECT count(*) FROM queue_worker.resources WHERE holder IS NOT NULL";
    assert_eq!(scene.count(held).await, 0);
    scene.open_gate();
    let mut second = scene.worker("b").await;
    let row = scene.until_status("t", "succeeded").await;
    assert_eq!((row.attempts, row.crashes), (0, 0));
    let fences: Vec<i64> = scene.journal().into_iter().map(|(_, _, fence)| fence).collect();
    assert_eq!(fences, [1, 2, 2]);
    second.terminate().await;
}

//! Tasks that bring their worker down, and what becomes of those beside them.

mod common;

use common::{Scene, Worker, wait_for};

/// Short leases, so that a crash is found out soon.
const LEASE: &str = r#"
[lease]
ttl = "2s"
heartbeat = "400ms"
min_idle = "2s"
sweep = "200ms"
suspect_wait = "3s"

[handler.poison]
type = "exec"
command = ["/bin/sh", "-c", "kill -9 $PPID; sleep 60"]
max_attempts = 10
"#;

/// Starts a worker whenever there is none, as systemd would, until `done`.
async fn restart_until(scene: &Scene, mut done: impl AsyncFnMut() -> bool) {
    let mut worker: Option<Worker> = None;
    wait_for("the end of the crashes", async || {
        let gone = match &mut worker {
            Some(worker) => worker.child.try_wait().expect("look at the worker").is_some(),
            None => true,
        };
        if gone {
            worker = Some(scene.spawn_worker("a", &[]));
        }
        done().await
    })
    .await;
}

#[tokio::test]
async fn scenario_14_a_poison_task_is_dead_after_its_fourth_crash_and_its_neighbours_are_unharmed()
{
    let scene = Scene::start().await;
    scene.write_config(LEASE);
    for n in 0..6 {
        scene.task(&format!("neighbour-{n}"), "sleep", "1").await;
    }
    scene.task("poison", "poison", "").await;
    scene.task("failing", "exit", "1").await;
    restart_until(&scene, async || {
        scene.row("poison").await.is_some_and(|row| row.status == "dead")
    })
    .await;
    let poison = scene.row("poison").await.expect("just seen");
    assert_eq!((poison.crashes, poison.attempts), (4, 0));
    assert_eq!(
        scene
            .count("SELECT count(*) FROM queue_worker.dead_letters WHERE reason = 'crashed'")
            .await,
        1
    );
    let _worker = scene.worker("b").await;
    for n in 0..6 {
        let row = scene.until_status(&format!("neighbour-{n}"), "succeeded").await;
        assert!(row.crashes < 4, "{row:?}");
    }
    let failing = scene.until_status("failing", "failed").await;
    assert_eq!((failing.attempts, failing.crashes), (3, 0), "failures are not crashes");
}

#[tokio::test]
async fn many_tasks_cut_off_by_one_kill_do_not_crawl_one_by_one() {
    let scene = Scene::start().await;
    scene.write_config(LEASE);
    let mut first = scene.worker("a").await;
    for n in 0..8 {
        scene.task(&format!("t-{n}"), "sleep", "2").await;
    }
    wait_for("all to run", async || scene.journal().len() == 8).await;
    first.kill().await;
    let _second = scene.worker("b").await;
    wait_for("all to run again", async || {
        scene.journal().iter().filter(|(_, what, _)| what == "start").count() == 16
    })
    .await;
    // All eight are in mid-run at once again: with one crash each they are no suspects.
    assert_eq!(
        scene
            .count(
                "SELECT count(*) FROM queue_worker.processed_tasks \
                 WHERE status = 'running' AND crashes = 1"
            )
            .await,
        8
    );
    for n in 0..8 {
        scene.until_status(&format!("t-{n}"), "succeeded").await;
    }
}

#[tokio::test]
async fn a_suspect_runs_while_nothing_else_does() {
    let scene = Scene::start().await;
    scene.write_config(LEASE);
    scene.task("suspect", "sleep", "1").await;
    let mut worker = scene.worker("a").await;
    for crash in 1..=2 {
        wait_for("the suspect to run", async || scene.journal_count("suspect", "start") == crash)
            .await;
        worker.kill().await;
        worker = scene.worker("a").await;
    }
    // A steady stream of others, each longer than the gap between two of them.
    for n in 0..60 {
        scene.task(&format!("other-{n}"), "sleep", "0.2").await;
    }
    worker.until_logged("runs alone now").await;
    scene.until_status("suspect", "succeeded").await;
    let journal = scene.journal();
    let start = journal.iter().rposition(|(id, what, _)| id == "suspect" && what == "start");
    let end = journal.iter().rposition(|(id, what, _)| id == "suspect" && what == "end");
    assert_eq!(
        end.expect("ended"),
        start.expect("started") + 1,
        "nothing started or ended between its start and its end"
    );
    for n in 0..60 {
        scene.until_status(&format!("other-{n}"), "succeeded").await;
    }
}

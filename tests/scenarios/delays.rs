//! What is not to run yet, or not here.

use std::time::Duration;

use crate::common::{Scene, wait_for};

fn in_ms(delay: Duration) -> String {
    let now = queue_worker::clock::Clock::System.wall_ms();
    (now + i64::try_from(delay.as_millis()).expect("a short delay")).to_string()
}

/// Twice the lease: whoever keeps a delayed task in the stream would run it several times.
#[tokio::test]
async fn scenario_15_a_delay_beyond_the_lease_runs_once() {
    let scene = Scene::start().await;
    let mut first = scene.worker("a").await;
    let mut second = scene.worker("b").await;
    let due = in_ms(Duration::from_secs(11));
    scene.task_with("t", "sleep", b"0", &[("not_before_ms", &due)]).await;
    scene.until_status("t", "delayed").await;
    scene.until_empty().await;
    let row = scene.until_status("t", "succeeded").await;
    assert!(queue_worker::clock::Clock::System.wall_ms() >= due.parse().expect("a number"));
    assert_eq!((row.attempts, row.crashes), (0, 0));
    scene.until_empty().await;
    assert_eq!(scene.journal_count("t", "start"), 1);
    first.terminate().await;
    second.terminate().await;
}

#[tokio::test]
async fn not_before_is_kept_and_met() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    let (soon, past) = (in_ms(Duration::from_secs(2)), in_ms(Duration::ZERO));
    scene.task_with("soon", "effect", b"", &[("not_before_ms", &soon)]).await;
    scene.task_with("past", "effect", b"", &[("not_before_ms", &past)]).await;
    scene.until_status("past", "succeeded").await;
    scene.until_status("soon", "succeeded").await;
    let late = scene
        .count(
            "SELECT (EXTRACT(EPOCH FROM processed_at) * 1000)::bigint \
             FROM queue_worker.processed_tasks WHERE task_id = 'soon'",
        )
        .await
        - soon.parse::<i64>().expect("a number");
    assert!((0..=2500).contains(&late), "{late} ms late");
    worker.terminate().await;
}

/// A worker that stops between two attempts takes nothing with it.
#[tokio::test]
async fn a_delayed_retry_survives_a_restart_and_keeps_its_options() {
    let scene = Scene::start().await;
    let mut first = scene.worker("a").await;
    scene.task_with("t", "exit", b"1", &[("max_attempts", "2")]).await;
    wait_for("the first failure", async || {
        scene.row("t").await.is_some_and(|row| row.attempts == 1)
    })
    .await;
    first.terminate().await;
    let mut second = scene.worker("b").await;
    let row = scene.until_status("t", "failed").await;
    assert_eq!(
        (row.attempts, row.crashes),
        (2, 0),
        "its own two attempts, not the handler's three"
    );
    assert_eq!(scene.journal_count("t", "start"), 2);
    second.terminate().await;
}

#[tokio::test]
async fn scenario_16_an_unknown_kind_waits_for_a_worker_that_knows_it() {
    let scene = Scene::start().await;
    let mut old = scene.worker("old").await;
    scene.task_with("t", "new", b"5", &[("max_attempts", "1")]).await;
    scene.until_status("t", "delayed").await;
    assert_eq!(old.logged("no handler for this kind"), 1);
    scene.write_config("\n[handler.new]\ntype = \"exec\"\ncommand = [\"/bin/cat\"]\n");
    let mut new = scene.worker("new").await;
    old.terminate().await;
    // Up to a minute passes until it is looked at again; here it is due now.
    let due = "UPDATE queue_worker.processed_tasks SET run_at = now() WHERE status = 'delayed'";
    sqlx::query(due).execute(&scene.pool).await.expect("make it due");
    let row = scene.until_status("t", "succeeded").await;
    assert_eq!((row.attempts, row.crashes), (0, 0));
    assert_eq!(row.result, Some(b"5".to_vec()));
    assert_eq!(scene.letters().await, []);
    new.terminate().await;
}

#[tokio::test]
async fn scenario_16_an_unknown_kind_is_given_up_after_its_time() {
    let scene = Scene::start().await;
    let mut worker = scene.worker_with("a", &[("QUEUE_WORKER_UNKNOWN_KIND__GIVE_UP", "1s")]).await;
    scene.task("t", "nobody-knows", "payload").await;
    scene.until_status("t", "delayed").await;
    let past = "UPDATE queue_worker.processed_tasks \
                SET run_at = now(), waits_since = waits_since - interval '1 second'";
    sqlx::query(past).execute(&scene.pool).await.expect("make it late");
    scene.until_status("t", "dead").await;
    let letters = scene.letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].reason, "unknown_kind");
    assert_eq!(letters[0].payload.as_deref(), Some(&b"payload"[..]));
    scene.until_empty().await;
    worker.terminate().await;
}

/// Two workers look for due tasks at the same time.
#[tokio::test]
async fn a_crowd_that_is_due_at_once_runs_once_each() {
    let scene = Scene::start().await;
    let mut first = scene.worker("a").await;
    let mut second = scene.worker("b").await;
    let due = in_ms(Duration::from_secs(3));
    for n in 0..500 {
        scene.task_with(&format!("t-{n}"), "effect", b"", &[("not_before_ms", &due)]).await;
    }
    wait_for("all effects", async || scene.count("SELECT count(*) FROM effects").await >= 500)
        .await;
    scene.until_empty().await;
    let distinct = scene.count("SELECT count(DISTINCT task_id) FROM effects").await;
    assert_eq!((scene.count("SELECT count(*) FROM effects").await, distinct), (500, 500));
    first.terminate().await;
    second.terminate().await;
}

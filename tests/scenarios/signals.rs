//! Signals other than SIGTERM, and what is told at the next start.

use std::time::Duration;

use rustix::process::Signal;

use crate::common::{Scene, wait_for};

const LAST_WORDS: &str = "ended without draining";

#[tokio::test]
async fn sigtstp_quiets_and_sigcont_ends_the_quiet() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("running", "gate", "").await;
    scene.until_journal("running", "start").await;
    worker.signal(Signal::TSTP);
    worker.until_logged("quiet").await;
    scene.task("later", "effect", "").await;
    scene.open_gate();
    scene.until_status("running", "succeeded").await;
    assert_eq!(scene.row("later").await, None, "a quiet worker pulls nothing");
    worker.signal(Signal::CONT);
    scene.until_status("later", "succeeded").await;
    worker.terminate().await;
}

#[tokio::test]
async fn sigcont_does_not_end_a_drain() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("running", "gate", "").await;
    scene.until_journal("running", "start").await;
    worker.signal(Signal::TERM);
    worker.signal(Signal::CONT);
    worker.until_logged("draining").await;
    worker.signal(Signal::CONT);
    scene.task("later", "effect", "").await;
    scene.open_gate();
    let (status, _) = worker.exit(Duration::from_secs(10)).await;
    assert!(status.success());
    assert_eq!(scene.row("running").await.expect("claimed").status, "succeeded");
    assert_eq!(scene.row("later").await, None);
    assert_eq!(worker.logged("pulling tasks again"), 0);
}

#[tokio::test]
async fn sigterm_ends_a_quiet_worker_too() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    worker.signal(Signal::TSTP);
    worker.until_logged("quiet").await;
    worker.terminate().await;
}

#[tokio::test]
async fn sigusr2_drains_at_its_own_pace() {
    let scene = Scene::start().await;
    let mut worker = scene.worker_with("a", &[("QUEUE_WORKER_DRAIN__TIMEOUT", "100ms")]).await;
    scene.task("running", "sleep", "2").await;
    scene.until_journal("running", "start").await;
    worker.signal(Signal::USR2);
    let (status, _) = worker.exit(Duration::from_secs(10)).await;
    assert!(status.success());
    assert_eq!(scene.row("running").await.expect("claimed").status, "succeeded");
}

#[tokio::test]
async fn sighup_applies_a_changed_handler_and_refuses_a_broken_file() {
    let scene = Scene::start().await;
    let handler = |words: &str| {
        format!("\n[handler.say]\ntype = \"exec\"\ncommand = [\"/bin/echo\", {words}]\n")
    };
    scene.write_config(&handler("\"old\""));
    let mut worker = scene.worker("a").await;
    scene.task("1", "say", "").await;
    assert_eq!(scene.until_status("1", "succeeded").await.result, Some(b"old\n".to_vec()));

    scene.write_config(&handler("\"new\""));
    worker.signal(Signal::HUP);
    worker.until_logged("reloaded").await;
    scene.task("2", "say", "").await;
    assert_eq!(scene.until_status("2", "succeeded").await.result, Some(b"new\n".to_vec()));

    scene.write_config(&handler("broken"));
    worker.signal(Signal::HUP);
    worker.until_logged("reload refused").await;
    scene.task("3", "say", "").await;
    assert_eq!(scene.until_status("3", "succeeded").await.result, Some(b"new\n".to_vec()));

    // A kind that goes waits like any unknown one, and a kind that comes is known at once.
    scene.write_config(&handler("\"newest\"").replace("say", "tell"));
    worker.signal(Signal::HUP);
    worker.until_logged_times("reloaded", 2).await;
    scene.task("4", "say", "").await;
    scene.task("5", "tell", "").await;
    assert_eq!(scene.until_status("5", "succeeded").await.result, Some(b"newest\n".to_vec()));
    scene.until_status("4", "delayed").await;
    worker.terminate().await;
}

#[tokio::test]
async fn what_waits_for_a_restart_is_told_at_each_reload_until_it_is_taken_back() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    let waits = "lease.max_crashes has changed; it takes effect at the next restart";
    let crashes = |number| format!("\n[lease]\nmax_crashes = {number}\n");
    for (more, reloads, told) in
        [(crashes(9), 1, 1), (crashes(9), 2, 2), (crashes(8), 3, 3), (String::new(), 4, 3)]
    {
        scene.write_config(&more);
        worker.signal(Signal::HUP);
        worker.until_logged_times("reloaded", reloads).await;
        assert_eq!(worker.logged(waits), told, "{}", worker.log());
    }
    worker.terminate().await;
}

#[tokio::test]
async fn an_unclean_end_is_told_at_the_next_start_and_a_clean_one_is_not() {
    let scene = Scene::start().await;
    let mut first = scene.worker("a").await;
    assert_eq!(first.logged(LAST_WORDS), 0);
    let pid = first.pid().as_raw_nonzero();
    first.kill().await;
    let mut second = scene.worker("a").await;
    assert_eq!(second.logged(LAST_WORDS), 1);
    assert_eq!(second.logged(&format!("pid {pid}")), 1);
    second.terminate().await;
    let mut third = scene.worker("a").await;
    assert_eq!(third.logged(LAST_WORDS), 0);
    third.terminate().await;
}

#[tokio::test]
async fn a_signal_right_after_the_start_is_obeyed() {
    let scene = Scene::start().await;
    scene.task("t", "sleep", "0").await;
    let mut worker = scene.spawn_worker("a", &[]);
    wait_for("the first line", async || !worker.log().is_empty()).await;
    worker.signal(Signal::TERM);
    let (status, took) = worker.exit(Duration::from_secs(10)).await;
    assert!(status.success());
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(scene.pending().await, 0);
}

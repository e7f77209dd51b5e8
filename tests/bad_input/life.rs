//! What systemd hears from the start to the end.

use std::time::Duration;

use rustix::process::Signal;

use crate::Unit;
use crate::common::{Scene, wait_for};

/// "At once" on a busy machine, an unoptimized program's own start included.
const AT_ONCE: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_stop_during_the_start_ends_well_and_claims_nothing() {
    let mut scene = Scene::start().await;
    scene.task("t", "sleep", "30").await;
    for away in [false, true] {
        if away {
            scene.redis.stop().await;
            scene.postgres.stop().await;
        }
        for delay in [0, 1, 2, 5, 10, 20, 35, 50] {
            let mut unit = Unit::start(&scene, &format!("after-{delay}-{away}"), &[]);
            // Not to wait for something: the delay is what is tried.
            tokio::time::sleep(Duration::from_millis(delay)).await;
            unit.worker.signal(Signal::TERM);
            let (status, took) = unit.worker.exit(AT_ONCE).await;
            let log = unit.worker.log();
            assert_eq!(status.code(), Some(0), "after {delay} ms: {status}\n{log}");
            assert!(took < AT_ONCE, "after {delay} ms: {took:?}\n{log}");
            assert!(!log.contains("WARN"), "after {delay} ms:\n{log}");
        }
    }
    scene.redis.restart().await.expect("start redis");
    scene.postgres.restart().await.expect("start postgres");
    assert_eq!(scene.row("t").await, None);
    assert_eq!((scene.length().await, scene.pending().await), (1, 0));
    assert_eq!(scene.locks().await, Vec::<String>::new());
}

#[tokio::test]
async fn stopping_is_told_only_of_a_stop() {
    let scene = Scene::start().await;
    let unit = Unit::start(&scene, "a", &[]);
    unit.systemd.until_status(&["ready, idle"]).await;
    unit.worker.signal(Signal::TSTP);
    unit.systemd.until_status(&["quiet"]).await;
    unit.systemd.until_more(3, "WATCHDOG=1").await;
    unit.worker.signal(Signal::CONT);
    unit.systemd.until_status(&["ready, idle"]).await;
    scene.task("t", "effect", "").await;
    scene.until_status("t", "succeeded").await;
    assert_eq!((unit.systemd.count("READY=1"), unit.systemd.count("STOPPING=1")), (1, 0));
    let reloading = |unit: &Unit| {
        let heard = unit.systemd.heard();
        heard.into_iter().find(|heard| heard.lines.iter().any(|line| line == "RELOADING=1"))
    };
    unit.worker.signal(Signal::HUP);
    wait_for("RELOADING=1", async || reloading(&unit).is_some()).await;
    let together = reloading(&unit).expect("just seen").lines;
    assert!(together.iter().any(|line| line.starts_with("MONOTONIC_USEC=")), "{together:?}");
    wait_for("the end of the reload", async || unit.systemd.count("READY=1") == 2).await;
    unit.ends().await;

    let mut unit = Unit::start(&scene, "b", &[]);
    unit.systemd.until_status(&["ready, idle"]).await;
    scene.task("long", "sleep", "3").await;
    scene.until_journal("long", "start").await;
    unit.worker.signal(Signal::USR2);
    unit.systemd.until_status(&["draining in the background: 1 task"]).await;
    unit.systemd.until_more(1, "WATCHDOG=1").await;
    let (status, _) = unit.worker.exit(Duration::from_secs(30)).await;
    assert!(status.success(), "{status}\n{}", unit.worker.log());
    scene.until_status("long", "succeeded").await;
    assert_eq!(unit.systemd.count("STOPPING=1"), 0);
}

#[tokio::test]
async fn a_background_drain_that_systemd_ends_tells_of_it_once() {
    let scene = Scene::start().await;
    let mut unit = Unit::start(&scene, "a", &[]);
    unit.systemd.until_status(&["ready, idle"]).await;
    scene.task("long", "sleep", "60").await;
    scene.until_journal("long", "start").await;
    unit.worker.signal(Signal::USR2);
    unit.systemd.until_status(&["draining in the background"]).await;
    unit.worker.signal(Signal::TERM);
    unit.systemd.until("STOPPING=1").await;
    unit.worker.signal(Signal::TERM);
    unit.worker.exit(Duration::from_secs(20)).await;
    assert_eq!(unit.systemd.count("STOPPING=1"), 1);
}

#[tokio::test]
async fn a_state_directory_that_cannot_be_written_is_a_warning() {
    let scene = Scene::start().await;
    // Not even root may write there.
    for (name, folder) in [("proc", "/proc/self"), ("device", "/dev/null/state")] {
        let unit = Unit::start(&scene, name, &[("QUEUE_WORKER_WORKER__STATE_DIR", folder)]);
        unit.systemd.until_status(&["ready, idle"]).await;
        scene.task(name, "effect", "").await;
        scene.until_status(name, "succeeded").await;
        let warnings = unit.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:#?}");
        let told = &warnings[0];
        assert!(told.contains(folder) && told.contains("worker.state_dir"), "{told}");
        unit.ends().await;
    }
}

//! What systemd hears from the start to the end.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rustix::process::Signal;

use crate::Unit;
use crate::common::{Scene, wait_for};

/// "At once" on a busy machine, an unoptimized program's own start included.
const AT_ONCE: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_stop_during_the_start_ends_well_and_claims_nothing() {
    const DELAYS: [u64; 10] = [0, 1, 2, 3, 5, 8, 12, 20, 35, 50];
    const ROWS: &str = "SELECT count(*) FROM queue_worker.processed_tasks";
    let scene = Scene::start().await;
    for delay in DELAYS {
        scene.task(&format!("t-{delay}"), "sleep", "0").await;
        let before = scene.count(ROWS).await;
        let log = stopped_after(&scene, &format!("after-{delay}"), delay).await;
        if !log.contains("pulling from") {
            assert_eq!(scene.count(ROWS).await, before, "claimed:\n{log}");
        }
        let running = "SELECT count(*) FROM queue_worker.processed_tasks WHERE status = 'running'";
        assert_eq!(scene.count(running).await, 0, "half done:\n{log}");
        assert_eq!(scene.locks().await, Vec::<String>::new(), "held:\n{log}");
    }
    // What was fetched and given back is there at once.
    let unit = Unit::start(&scene, "last", &[]);
    scene.until_empty().await;
    for delay in DELAYS {
        assert_eq!(scene.until_status(&format!("t-{delay}"), "succeeded").await.crashes, 0);
    }
    unit.ends().await;
}

#[tokio::test]
async fn a_stop_during_a_start_without_stores_ends_well() {
    let mut scene = Scene::start().await;
    scene.redis.stop().await;
    scene.postgres.pause();
    for delay in [0, 5, 20, 50, 300, 1_500] {
        stopped_after(&scene, &format!("after-{delay}"), delay).await;
    }
    scene.postgres.resume();
}

/// Stops a worker so many milliseconds after its start, and answers what it said. A process that
/// the loader has not even handed over to its `main` cannot catch the signal, and need not: systemd
/// counts that as a clean exit, too.
async fn stopped_after(scene: &Scene, name: &str, delay: u64) -> String {
    let mut unit = Unit::start(scene, name, &[]);
    // Not to wait for something: the delay is what is tried.
    tokio::time::sleep(Duration::from_millis(delay)).await;
    unit.worker.signal(Signal::TERM);
    let (status, took) = unit.worker.exit(AT_ONCE).await;
    let log = unit.worker.log();
    let not_begun = log.is_empty() && status.signal() == Some(Signal::TERM.as_raw());
    assert!(status.success() || not_begun, "after {delay} ms: {status}, {took:?}\n{log}");
    log
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
    scene.task("long", "gate", "").await;
    scene.until_journal("long", "start").await;
    unit.worker.signal(Signal::USR2);
    unit.systemd.until_status(&["draining in the background: 1 task"]).await;
    unit.systemd.until_more(1, "WATCHDOG=1").await;
    scene.open_gate();
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
    unit.systemd.until_status(&["draining in the background", "no time limit"]).await;
    unit.worker.signal(Signal::TERM);
    unit.systemd.until("STOPPING=1").await;
    unit.systemd.until_status(&["draining: 1 task", "s left"]).await;
    unit.worker.signal(Signal::TERM);
    let (status, _) = unit.worker.exit(Duration::from_secs(20)).await;
    assert!(status.success(), "{status}\n{}", unit.worker.log());
    assert_eq!(unit.systemd.count("STOPPING=1"), 1);
    let row = scene.row("long").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.crashes), ("released", 0));
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

#[tokio::test]
async fn the_watchdog_of_another_process_is_not_fed_and_a_limit_of_zero_is_none() {
    let scene = Scene::start().await;
    for (name, variable) in [("other", ("WATCHDOG_PID", "1")), ("zero", ("WATCHDOG_USEC", "0"))] {
        let unit = Unit::start(&scene, name, &[variable]);
        unit.systemd.until_status(&["ready, idle"]).await;
        scene.task(name, "sleep", "2").await;
        // Two more statuses at least: two times at which a watchdog would have been fed.
        unit.systemd.until_status(&["running: 1 task, 1 s old"]).await;
        scene.until_status(name, "succeeded").await;
        assert_eq!(unit.systemd.count("WATCHDOG=1"), 0, "{name}");
        unit.ends().await;
    }
}

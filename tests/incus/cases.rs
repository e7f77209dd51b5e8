//! What Incus does to a container in the middle of a long task.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::Ground;
use crate::common::{Verdict, wait_for};

/// The lock's time to live at its default, and how soon after it a task runs again.
const TTL: Duration = Duration::from_secs(5);
const AND: Duration = Duration::from_secs(1);
/// How long the task of a stop takes.
const TASK: Duration = Duration::from_secs(4);
/// Seconds of a task that a kill meets. It forks nothing meanwhile: Incus forbids that right before
/// it kills, and a program that minds ends with a failure of its own.
const LONG: &str = "6";
/// Less than a task of a stop.
const TOO_SHORT: Duration = Duration::from_secs(1);

/// `incus restart --force` kills everything at once: the lock ends by itself, and another worker
/// does the task, once.
pub(crate) async fn restart_by_force(ground: Rc<Ground>) -> Verdict {
    let (a, b) = (&ground.a, &ground.b);
    ground.start_on_a("force", "sleep", LONG).await;
    b.start_worker().await;
    let token = ground.lock().await.expect("the task holds its lock");
    let asked = Instant::now();
    let restart = async {
        a.incus("restart", &["--force"]).await;
        asked.elapsed()
    };
    let taken_over = async {
        wait_for("the lock to end", async || ground.lock().await.as_deref() != Some(&token)).await;
        let lock = asked.elapsed();
        b.until_started("force").await;
        (lock, asked.elapsed())
    };
    let (restarted, (lock, again)) = tokio::join!(restart, taken_over);
    assert!(lock <= TTL + AND, "the lock ended after {lock:?}");
    assert!(again <= TTL + AND, "the task ran again after {again:?}");
    let row = ground.scene.until_status("force", "succeeded").await;
    assert_eq!((row.fence, row.crashes), (2, 1));
    assert_eq!((a.count("force", "end"), b.count("force", "end")), (0, 1));
    a.start_worker().await;
    assert!(a.log().contains("ended without draining"), "{}", a.log());
    ground.assert_nothing_left().await;
    Verdict::Passed(format!(
        "restarted in {:.1} s; lock gone after {:.1} s, the task runs again after {:.1} s (TTL 5 s)",
        restarted.as_secs_f64(),
        lock.as_secs_f64(),
        again.as_secs_f64()
    ))
}

/// `incus stop` waits for a drain that fits.
pub(crate) async fn stop_in_time(ground: Rc<Ground>) -> Verdict {
    ground.start_on_a("fits", "sleep", &TASK.as_secs().to_string()).await;
    let took = ground.a.incus("stop", &[]).await;
    let row = ground.scene.row("fits").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence, row.crashes), ("succeeded", 1, 0));
    ground.assert_nothing_left().await;
    Verdict::Passed(format!("stopped in {:.1} s, a task of {TASK:?} done", took.as_secs_f64()))
}

/// `incus stop --timeout` that is too short fails, and the drain goes on in peace.
pub(crate) async fn stop_too_short(ground: Rc<Ground>) -> Verdict {
    let (a, b) = (&ground.a, &ground.b);
    ground.start_on_a("short", "sleep", &TASK.as_secs().to_string()).await;
    b.start_worker().await;
    let timeout = TOO_SHORT.as_secs().to_string();
    let asked = Instant::now();
    let stop = ground.daemon.output(&["stop", a.name, "--timeout", &timeout]).await;
    let gave_up = asked.elapsed();
    assert!(!stop.status.success(), "incus stop gives up after {timeout} s");
    wait_for("the container to be off", async || !a.is_running().await).await;
    let row = ground.scene.row("short").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence, row.crashes), ("succeeded", 1, 0));
    assert_eq!(b.count("short", "start"), 0);
    ground.assert_nothing_left().await;
    Verdict::Passed(format!(
        "incus gave up after {:.1} s, the drain went on, off after {:.1} s",
        gave_up.as_secs_f64(),
        asked.elapsed().as_secs_f64()
    ))
}

/// A host that loses patience kills the rest (`boot.host_shutdown_timeout`): another worker does it.
pub(crate) async fn stop_by_force(ground: Rc<Ground>) -> Verdict {
    let (a, b) = (&ground.a, &ground.b);
    ground.start_on_a("impatient", "sleep", LONG).await;
    b.start_worker().await;
    let timeout = TOO_SHORT.as_secs().to_string();
    let stop = ground.daemon.output(&["stop", a.name, "--timeout", &timeout]).await;
    assert!(!stop.status.success(), "incus stop gives up after {timeout} s");
    let asked = Instant::now();
    let forced = a.incus("stop", &["--force"]);
    let taken_over = async {
        b.until_started("impatient").await;
        asked.elapsed()
    };
    let (_, again) = tokio::join!(forced, taken_over);
    assert!(again <= TTL + AND, "the task ran again after {again:?}");
    let row = ground.scene.until_status("impatient", "succeeded").await;
    assert_eq!((row.fence, row.crashes), (2, 1));
    assert_eq!((a.count("impatient", "end"), b.count("impatient", "end")), (0, 1));
    ground.assert_nothing_left().await;
    Verdict::Passed(format!("runs again {:.1} s after the kill", again.as_secs_f64()))
}

/// Cut off from both stores, a worker stops its task when its lease ends, as another one starts it,
/// and comes back by itself.
pub(crate) async fn cut_off(ground: Rc<Ground>) -> Verdict {
    let (a, b) = (&ground.a, &ground.b);
    ground.start_on_a("cut", "gate", "").await;
    b.start_worker().await;
    a.cut("redis").await;
    let cut = Instant::now();
    a.cut("postgres").await;
    b.until_started("cut").await;
    let again = cut.elapsed();
    assert!(again <= TTL + AND, "the task ran again after {again:?}");
    wait_for("the end of its lease", async || a.log().contains("the run is cancelled")).await;
    // Both gates: a child of the first worker that still ran would say so.
    a.gate(true);
    b.gate(true);
    let row = ground.scene.until_status("cut", "succeeded").await;
    assert_eq!(row.fence, 2);
    assert_eq!((a.count("cut", "end"), b.count("cut", "end")), (0, 1));
    a.until_status("not ready").await;
    a.connect().await;
    let connected = Instant::now();
    a.until_status("ready, idle").await;
    let ready = connected.elapsed();
    assert_eq!(a.show("NRestarts").await, "0");
    b.stop_worker().await;
    ground.scene.task("after", "sleep", "0").await;
    ground.scene.until_status("after", "succeeded").await;
    assert_eq!(a.count("after", "end"), 1);
    ground.assert_nothing_left().await;
    Verdict::Passed(format!(
        "runs again after {:.1} s; ready {:.1} s after the return, without a restart",
        again.as_secs_f64(),
        ready.as_secs_f64()
    ))
}

/// Cut off from Redis alone, the task goes on under its lease in Postgres, and nobody else starts it
/// although its lock has ended.
pub(crate) async fn cut_off_from_redis(ground: Rc<Ground>) -> Verdict {
    let (a, b) = (&ground.a, &ground.b);
    ground.start_on_a("no-redis", "gate", "").await;
    b.start_worker().await;
    let token = ground.lock().await.expect("the task holds its lock");
    a.cut("redis").await;
    wait_for("the lock to end", async || ground.lock().await.as_deref() != Some(&token)).await;
    a.until_status("not ready: waiting for redis").await;
    a.gate(true);
    let row = ground.scene.until_status("no-redis", "succeeded").await;
    assert_eq!((row.fence, row.crashes), (1, 0));
    assert_eq!((a.count("no-redis", "end"), b.count("no-redis", "start")), (1, 0));
    a.connect().await;
    a.until_status("ready, idle").await;
    ground.assert_nothing_left().await;
    Verdict::Passed("done by its worker, once".to_owned())
}

/// `queue-worker doctor` sees that it is in a container, and how the drain compares with what Incus
/// waits before it kills.
pub(crate) async fn doctor(ground: Rc<Ground>) -> Verdict {
    ground.a.start_worker().await;
    let finding = ground.a.finding("container.shutdown").await;
    let found = finding["found"].as_str().unwrap_or_default();
    assert!(found.starts_with("in a container (lxc)"), "{finding}");
    // 26 s of drain and 5 s for the rest of the container are more than the usual 30 s.
    assert_eq!(finding["level"], "warning", "{finding}");
    Verdict::Passed(found.to_owned())
}

/// The host is shut down: the daemon powers its containers off, which drain.
pub(crate) async fn host_shutdown(ground: Rc<Ground>) -> Verdict {
    ground.start_on_a("shutdown", "sleep", &TASK.as_secs().to_string()).await;
    let took = ground.daemon.shut_down().await;
    let row = ground.scene.row("shutdown").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence, row.crashes), ("succeeded", 1, 0));
    ground.assert_nothing_left().await;
    Verdict::Passed(format!("down in {:.1} s, a task of {TASK:?} done", took.as_secs_f64()))
}

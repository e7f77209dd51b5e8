//! Ends that no program sees coming: a process that hangs, and one that is killed.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::Machine;
use crate::common::Verdict;
use crate::service::Service;

/// The lock's time to live at its default.
const TTL: Duration = Duration::from_secs(5);
/// How long after it a task runs again.
const AND: Duration = Duration::from_secs(1);
/// What the journal says after an end that was not a drain.
const CUT_OFF: &str = "ended without draining";

/// A worker that has stopped moving is killed by the watchdog and started anew.
pub(crate) async fn watchdog(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "watchdog").await;
    service.drop_in("50-watchdog.conf", "[Service]\nWatchdogSec=2").await;
    service.start_with_task("t").await;
    let pid = service.pid().await;
    machine.guest.kill("STOP", pid).await;
    let frozen = Instant::now();
    service.until_logged("Watchdog timeout").await;
    service.until("NRestarts", "1").await;
    service.until_logged(CUT_OFF).await;
    let restarted = frozen.elapsed();
    service.until_said("t", "start", 2).await;
    let again = frozen.elapsed();
    service.open_gate();
    let row = service.scene.until_status("t", "succeeded").await;
    assert_eq!((row.fence, row.crashes), (2, 1));
    assert_eq!(service.count("t", "end"), 1);
    service.stop_clean().await;
    Verdict::Passed(format!(
        "WatchdogSec=2: new process after {:.1} s, the task runs again after {:.1} s",
        restarted.as_secs_f64(),
        again.as_secs_f64()
    ))
}

/// After SIGKILL the task runs again within the time to live and a second, in the new process.
pub(crate) async fn killed(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "killed").await;
    service.start_with_task("t").await;
    machine.guest.kill("KILL", service.pid().await).await;
    let killed = Instant::now();
    service.until_said("t", "start", 2).await;
    let took = killed.elapsed();
    assert!(took <= TTL + AND, "runs again after {took:?}");
    assert_eq!(service.show("NRestarts").await, "1");
    assert_eq!(service.logged(CUT_OFF).await, 1);
    service.open_gate();
    let row = service.scene.until_status("t", "succeeded").await;
    assert_eq!((row.fence, row.crashes), (2, 1));
    assert_eq!(service.count("t", "end"), 1, "the first child died with its worker");
    service.stop_clean().await;
    Verdict::Passed(format!("runs again after {:.1} s, TTL 5 s", took.as_secs_f64()))
}

//! Stops of the unit in the middle of work, in time and not.

use std::rc::Rc;
use std::time::Duration;

use crate::Machine;
use crate::common::{Verdict, wait_for};
use crate::guest::{END_LIMIT, Guest};
use crate::service::Service;
use crate::unit::Committed;

/// What the journal says after an end that was not a drain.
const CUT_OFF: &str = "ended without draining";
/// What the unit requires where the servers are on the same machine.
const LOCAL_SERVERS: [&str; 2] = ["redis-queue-worker.service", "postgresql.service"];
/// TimeoutStopSec of a drain that is extended.
const SHORT_LIMIT: u64 = 6;
/// The length of the task that a poweroff meets.
const TASK: Duration = Duration::from_secs(3);

/// `systemctl stop` waits for the running task, and systemd shows what the worker waits for.
pub(crate) async fn in_the_middle(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "drain").await;
    service.start_with_task("t").await;
    let mut stop = service.spawn_systemctl("stop");
    let status = service.until_status("draining: 1 task").await;
    assert_eq!(service.show("ActiveState").await, "deactivating");
    service.scene.task("late", "sleep", "0").await;
    assert_eq!(stop.try_wait().expect("ask for the stop"), None, "the stop waits");
    service.open_gate();
    assert!(stop.wait().await.expect("wait for the stop").success());
    service.assert_clean_end().await;
    let row = service.scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence, row.crashes), ("succeeded", 1, 0));
    assert_eq!(service.scene.row("late").await, None);
    Verdict::Passed(format!("{status:?}"))
}

/// What does not finish in `drain.timeout` is given back inside TimeoutStopSec.
pub(crate) async fn gives_back(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "drain-gives-back").await;
    service.write_config("timeout = \"1s\"\nkill_after = \"1s\"\nmargin = \"2s\"");
    service.drop_in("50-limit.conf", "[Service]\nTimeoutStopSec=10").await;
    service.start_with_task("t").await;
    let took = service.stop_clean().await;
    let row = service.scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.attempts, row.crashes), ("released", 0, 0));
    service.start().await;
    service.until_said("t", "start", 2).await;
    service.open_gate();
    service.scene.until_status("t", "succeeded").await;
    assert_eq!(service.count("t", "end"), 1);
    service.stop_clean().await;
    Verdict::Passed(format!("stopped in {:.1} s of 10 s", took.as_secs_f64()))
}

/// A SIGKILL at the end of TimeoutStopSec is silent: the next start tells of it.
pub(crate) async fn cut_off(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "drain-cut-off").await;
    service.write_config("timeout = \"3s\"\nkill_after = \"1s\"\nmargin = \"2s\"");
    service.drop_in("50-limit.conf", "[Service]\nTimeoutStopSec=6").await;
    service.start_with_task("t").await;
    assert_eq!(service.logged(CUT_OFF).await, 0);
    let pid = service.pid().await;
    let mut stop = service.spawn_systemctl("stop");
    service.until_status("draining: 1 task").await;
    machine.guest.kill("STOP", pid).await;
    assert!(stop.wait().await.expect("wait for the stop").success(), "systemd says nothing");
    let result = service.show("Result").await;
    service.start().await;
    assert_eq!(service.show("Result").await, "success", "and the next start forgets the result");
    assert_eq!(service.logged(CUT_OFF).await, 1, "{}", service.log().await);
    assert_eq!(service.logged(&format!("(pid {pid},")).await, 1);
    service.until_said("t", "start", 2).await;
    service.open_gate();
    let row = service.scene.until_status("t", "succeeded").await;
    assert_eq!((row.fence, row.crashes), (2, 1));
    assert_eq!(service.count("t", "end"), 1);
    service.stop_clean().await;
    Verdict::Passed(format!("Result={result} after the stop, told at the next start"))
}

/// The poweroff of a container (`incus stop`, SIGRTMIN+4 to PID 1) waits for the drain.
pub(crate) async fn power_off(_: Rc<Machine>) -> Verdict {
    let guest = Rc::new(Guest::boot("power-off").await);
    let service = Service::new(&guest, "power-off").await;
    service.start().await;
    service.scene.task("t", "sleep", &TASK.as_secs().to_string()).await;
    service.until_said("t", "start", 1).await;
    let took = guest.power_off(END_LIMIT).await;
    let scene = &service.scene;
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence, row.crashes), ("succeeded", 1, 0));
    assert_eq!(scene.locks().await, Vec::<String>::new());
    assert_eq!(scene.pending().await, 0);
    Verdict::Passed(format!(
        "off after {:.1} s, the task of {} s done",
        took.as_secs_f64(),
        TASK.as_secs()
    ))
}

/// Where Redis and Postgres are on the same machine, they are stopped after the worker, although a
/// switch stops one unit after the other; their crash stops nothing. A store that systemd starts
/// again has to restart directly, or the worker would be restarted with it: systemd 254.
pub(crate) async fn local_servers(machine: Rc<Machine>) -> Verdict {
    let service = Service::with(&machine.guest, "local-servers", Committed::Local).await;
    let restarts = machine.guest.systemd_version().await >= 254;
    let restart = if restarts { "Restart=always\nRestartMode=direct\n" } else { "" };
    for server in LOCAL_SERVERS {
        let text = format!("[Service]\nExecStart=/bin/sleep infinity\n{restart}");
        machine.guest.write(&format!("/etc/systemd/system/{server}"), &text);
    }
    service.daemon_reload().await;
    service.start_with_task("t").await;
    let [redis, _] = LOCAL_SERVERS;
    let show = async |name: &str| machine.guest.show(redis, name).await;
    let pid = show("MainPID").await;
    machine.guest.run(["systemctl", "kill", "--signal=KILL", redis]).await;
    if restarts {
        wait_for("the server to be back", async || {
            show("ActiveState").await == "active" && show("MainPID").await != pid
        })
        .await;
    } else {
        wait_for("the server to be dead", async || show("ActiveState").await == "failed").await;
        machine.guest.run(["systemctl", "start", redis]).await;
    }
    assert_eq!(service.show("ActiveState").await, "active", "a crash stops nobody");
    assert_eq!(service.logged("draining").await, 0);
    let stop = machine.guest.command(["systemctl", "stop", redis]).spawn();
    let mut stop = stop.expect("run nsenter");
    service.until_status("draining: 1 task").await;
    assert_eq!(show("ActiveState").await, "active", "the server waits for its client");
    service.open_gate();
    assert!(stop.wait().await.expect("wait for the stop").success());
    service.assert_clean_end().await;
    service.scene.until_status("t", "succeeded").await;
    machine.guest.run(["systemctl", "stop", LOCAL_SERVERS[0], LOCAL_SERVERS[1]]).await;
    Verdict::Passed(format!("{redis} stays until the drain is over"))
}

/// A drain that does not fit into TimeoutStopSec is shortened, and the journal warns of it.
pub(crate) async fn shortened(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "drain-shortened").await;
    let more = "timeout = \"60s\"\nkill_after = \"2s\"\nmargin = \"2s\"";
    service.write_config(more);
    service.drop_in("50-limit.conf", "[Service]\nTimeoutStopSec=7").await;
    service.start_with_task("t").await;
    let unit = service.unit();
    let words = ["journalctl", "--output=cat", "--priority=warning", "--unit", &unit];
    let warnings = machine.guest.run(words).await;
    let warning = warnings.lines().find(|line| line.contains("shortened to 3s + 2s + 2s"));
    assert!(warning.is_some(), "no warning of it:\n{}", service.log().await);
    let took = service.stop_clean().await;
    let row = service.scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.attempts, row.crashes), ("released", 0, 0));
    Verdict::Passed(format!("64 s configured, 7 s allowed, stopped in {:.1} s", took.as_secs_f64()))
}

/// While tasks end, a drain goes on beyond TimeoutStopSec, which systemd extends.
pub(crate) async fn extended(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "drain-extended").await;
    let more = "timeout = \"3s\"\nkill_after = \"1s\"\nmargin = \"2s\"\nextend_at_most = \"30s\"";
    service.write_config(more);
    service.drop_in("50-limit.conf", &format!("[Service]\nTimeoutStopSec={SHORT_LIMIT}")).await;
    service.start().await;
    let tasks = ["2", "4", "6", "8", "10"];
    for seconds in tasks {
        service.scene.task(seconds, "sleep", seconds).await;
    }
    for id in tasks {
        service.until_said(id, "start", 1).await;
    }
    let took = service.stop_clean().await;
    assert!(took > Duration::from_secs(SHORT_LIMIT), "the last task alone takes longer: {took:?}");
    for id in tasks {
        let row = service.scene.row(id).await.expect("claimed");
        assert_eq!((row.status.as_str(), row.fence), ("succeeded", 1), "{id}");
    }
    Verdict::Passed(format!(
        "TimeoutStopSec={SHORT_LIMIT}, stopped after {:.1} s, all done",
        took.as_secs_f64()
    ))
}

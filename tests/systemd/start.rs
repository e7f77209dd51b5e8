//! How a start looks from outside: with stores and without, cut short, and with a broken file.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::Machine;
use crate::common::Verdict;
use crate::service::Service;
use crate::unit::{self, Committed};

/// How long after `systemctl start` the stop comes, in milliseconds (lxc/incus#4041).
const STOPS_AFTER_MS: [u64; 6] = [0, 10, 20, 50, 100, 150];
/// "At once", on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);

/// `systemctl start` returns when the worker is ready, and `systemctl status` says what it does.
pub(crate) async fn says_ready(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "start").await;
    let took = service.systemctl("start").await;
    assert_eq!(service.show("ActiveState").await, "active");
    assert_eq!(service.show("SubState").await, "running");
    let status = service.until_status("ready, idle").await;
    service.scene.task("t", "sleep", "0").await;
    service.scene.until_status("t", "succeeded").await;
    service.stop_clean().await;
    Verdict::Passed(format!("{} ms to READY, then {status:?}", took.as_millis()))
}

/// A status line without the details of the complaint.
fn brief(status: &str) -> &str {
    status.match_indices(": ").nth(1).map_or(status, |(at, _)| &status[..at])
}

/// The strictest sandbox is wide enough for statements.
pub(crate) async fn sql_only(machine: Rc<Machine>) -> Verdict {
    let service = Service::with(&machine.guest, "start-sql-only", Committed::Default).await;
    service.start().await;
    service.scene.task("t", "effect", "").await;
    service.scene.until_status("t", "succeeded").await;
    let took = service.stop_clean().await;
    Verdict::Passed(format!("stopped in {} ms", took.as_millis()))
}

/// The unit for distributions other than NixOS migrates, starts, reloads and drains.
pub(crate) async fn other_distribution(machine: Rc<Machine>) -> Verdict {
    let name = "start-other-distribution";
    let service = Service::with(&machine.guest, name, Committed::Other).await;
    let dropped =
        sqlx::query("DROP SCHEMA queue_worker CASCADE").execute(&service.scene.pool).await;
    dropped.expect("drop the schema");
    service.start().await;
    service.systemctl("reload").await;
    service.until_logged("reloaded").await;
    service.scene.task("t", "sleep", "0").await;
    service.scene.until_status("t", "succeeded").await;
    let took = service.stop_clean().await;
    Verdict::Passed(format!("stopped in {} ms", took.as_millis()))
}

/// sidekiq/sidekiq#4915: a start without Redis does not time out; it says what it waits for.
pub(crate) async fn without_redis(machine: Rc<Machine>) -> Verdict {
    let mut service = Service::new(&machine.guest, "start-without-redis").await;
    service.scene.task("t", "sleep", "0").await;
    service.scene.redis.stop().await;
    let took = service.systemctl("start").await;
    let status = service.until_status("not ready: waiting for redis").await;
    assert_eq!(service.show("ActiveState").await, "active");
    service.scene.redis.restart().await.expect("start redis again");
    service.scene.until_status("t", "succeeded").await;
    service.until_status("ready, idle").await;
    assert_eq!(service.show("NRestarts").await, "0");
    service.stop_clean().await;
    Verdict::Passed(format!("{} ms to READY, then {:?}", took.as_millis(), brief(&status)))
}

/// A start without Postgres, and without a schema: the worker waits, the migration is tried until it
/// succeeds, and then the worker pulls.
pub(crate) async fn migrates(machine: Rc<Machine>) -> Verdict {
    let mut service = Service::new(&machine.guest, "start-migrates").await;
    let dropped =
        sqlx::query("DROP SCHEMA queue_worker CASCADE").execute(&service.scene.pool).await;
    dropped.expect("drop the schema");
    service.scene.postgres.stop().await;
    service.systemctl("start").await;
    let status = service.until_status("not ready: waiting for postgres").await;
    service.scene.postgres.restart().await.expect("start postgres again");
    service.until_status("ready, idle").await;
    service.scene.task("t", "sleep", "0").await;
    service.scene.until_status("t", "succeeded").await;
    assert_eq!(service.show("NRestarts").await, "0");
    service.stop_clean().await;
    Verdict::Passed(format!("{:?}, then migrated and ready", brief(&status)))
}

/// lxc/incus#4041: a stop right after the start ends it at once, with nothing claimed: a worker that
/// was quick enough to claim a task also finishes it. First the stops meet the migration, then the
/// worker itself.
pub(crate) async fn stopped_at_once(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "stop-right-after-start").await;
    let mut stops = Stops::default();
    for wait in STOPS_AFTER_MS {
        stops.stop(&service, "migrating", wait).await;
    }
    service.skip_migration().await;
    for wait in STOPS_AFTER_MS {
        stops.stop(&service, "starting", wait).await;
    }
    service.start().await;
    for id in &stops.tasks {
        let row = service.scene.until_status(id, "succeeded").await;
        assert_eq!((row.attempts, row.crashes), (0, 0), "{id}");
        assert_eq!(service.count(id, "end"), 1, "{id}");
    }
    service.stop_clean().await;
    Verdict::Passed(format!(
        "{} stops after 0 to 150 ms, {} of them after the first pull; the longest took {} ms",
        stops.tasks.len(),
        stops.pulled,
        stops.longest.as_millis()
    ))
}

/// Stops right after the start, and what they met.
#[derive(Default)]
struct Stops {
    tasks: Vec<String>,
    pulled: usize,
    longest: Duration,
}

impl Stops {
    async fn stop(&mut self, service: &Service, phase: &str, wait_ms: u64) {
        let id = format!("{phase}-{wait_ms}");
        service.scene.task(&id, "sleep", "0").await;
        let pulled = service.logged("pulling from").await;
        let unit = service.unit();
        let script = format!(
            "systemctl --no-block start {unit}; sleep 0.{wait_ms:03}; exec systemctl stop {unit}"
        );
        let start = Instant::now();
        service.guest.run(["sh", "-c", &script]).await;
        let took = start.elapsed();
        assert!(took < AT_ONCE, "{id}: the stop took {took:?}");
        self.longest = self.longest.max(took);
        assert_eq!(service.show("Result").await, "success", "{id}");
        assert_eq!(service.show("ActiveState").await, "inactive", "{id}");
        let migration = unit::migration_name(&service.name);
        assert_eq!(service.guest.show(&migration, "ActiveState").await, "inactive", "{id}");
        assert_eq!(service.scene.locks().await, Vec::<String>::new(), "{id}");
        assert_eq!(service.held().await, 0, "{id}");
        if service.logged("pulling from").await > pulled {
            self.pulled += 1;
        } else {
            assert_eq!(service.scene.row(&id).await, None, "nothing was pulled");
        }
        self.tasks.push(id);
    }
}

/// Exit code 78 means that a restart cannot help, and systemd does not try.
pub(crate) async fn broken_configuration(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "broken-configuration").await;
    service.write_config("timeuot = \"1s\"");
    let start = machine.guest.try_run(["systemctl", "start", &service.unit()]).await;
    assert!(!start.status.success(), "systemctl start says that it failed");
    assert_eq!(service.show("ActiveState").await, "failed");
    assert_eq!(service.show("SubState").await, "failed", "not auto-restart");
    assert_eq!(service.show("ExecMainStatus").await, "78");
    assert_eq!(service.show("NRestarts").await, "0");
    assert!(service.logged("timeuot").await > 0, "{}", service.log().await);
    service.write_config("");
    service.start().await;
    service.stop_clean().await;
    Verdict::Passed("exit 78, failed, not restarted".to_owned())
}

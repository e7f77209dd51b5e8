//! A new program or configuration while tasks run: restart, reload, background drain, and the
//! order of `nixos-rebuild switch`.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::Machine;
use crate::common::{STREAM, Verdict, wait_for};
use crate::guest::{NEW, OLD};
use crate::service::Service;
use crate::unit::Committed;

/// A reload does not wait for the drain that it starts, however busy the machine is.
const AT_ONCE: Duration = Duration::from_secs(3);

/// A restart drains the old program and starts the new one.
pub(crate) async fn restart(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "restart-new-binary").await;
    service.start_with_task("t").await;
    assert_eq!(service.program().await, OLD);
    service.rewrite(|unit| unit.replace(OLD, NEW));
    service.daemon_reload().await;
    let mut restart = service.spawn_systemctl("restart");
    service.until_status("draining: 1 task").await;
    service.open_gate();
    let asked = Instant::now();
    assert!(restart.wait().await.expect("wait for the restart").success());
    service.until_status("ready").await;
    let took = asked.elapsed();
    assert_eq!(service.program().await, NEW);
    let row = service.scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence, row.crashes), ("succeeded", 1, 0));
    service.stop_clean().await;
    Verdict::Passed(format!("ready {} ms after the last task", took.as_millis()))
}

/// A reload that drains in the background returns at once; the new program follows by itself.
pub(crate) async fn background(machine: Rc<Machine>) -> Verdict {
    let unit = Committed::Background;
    let service = Service::with(&machine.guest, "background-drain", unit).await;
    service.start_with_task("t").await;
    service.rewrite(|unit| unit.replace(OLD, NEW));
    service.daemon_reload().await;
    let took = service.systemctl("reload").await;
    assert!(took < AT_ONCE, "the reload took {took:?}");
    let status = service.until_status("draining in the background: 1 task").await;
    assert_eq!(service.show("ActiveState").await, "active");
    assert_eq!(service.program().await, OLD);
    service.scene.task("later", "sleep", "0").await;
    assert_eq!(service.scene.row("later").await, None);
    service.open_gate();
    service.until("NRestarts", "1").await;
    service.scene.until_status("later", "succeeded").await;
    assert_eq!(service.program().await, NEW);
    let row = service.scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.fence, row.crashes), ("succeeded", 1, 0));
    assert_eq!(service.logged("ended without draining").await, 0);
    service.stop_clean().await;
    Verdict::Passed(format!("reload in {} ms; {status:?}", took.as_millis()))
}

/// A reload applies what it can, under the same process; a broken file changes nothing.
pub(crate) async fn reload(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "reload").await;
    service.start().await;
    let pid = service.pid().await;
    let more = |words: &str| {
        format!("[handler.say]\ntype = \"exec\"\ncommand = [\"/bin/echo\", {words}]\n")
    };
    service.write_config(&more("\"new\""));
    let took = service.systemctl("reload").await;
    service.until_logged("reloaded").await;
    service.scene.task("1", "say", "").await;
    let row = service.scene.until_status("1", "succeeded").await;
    assert_eq!(row.result, Some(b"new\n".to_vec()));
    service.write_config(&more("broken"));
    let refused = machine.guest.try_run(["systemctl", "reload", &service.unit()]).await;
    assert!(!refused.status.success(), "the reload checks the file first");
    assert_eq!(service.show("ActiveState").await, "active");
    service.scene.task("2", "say", "").await;
    let row = service.scene.until_status("2", "succeeded").await;
    assert_eq!(row.result, Some(b"new\n".to_vec()));
    assert_eq!(service.pid().await, pid);
    service.until_status("ready").await;
    service.stop_clean().await;
    Verdict::Passed(format!("{} ms", took.as_millis()))
}

/// Tasks that are in flight when the switch begins.
const IN_FLIGHT: usize = 100;
/// How often the producer adds two more, during all of the switch.
const PRODUCE_EVERY: Duration = Duration::from_millis(50);
/// The limit of the old unit, under which it is stopped.
const OLD_LIMIT: Duration = Duration::from_secs(15);

/// `nixos-rebuild switch`: the old unit is stopped under its old limit, then come daemon-reload and
/// the start of the new one; 100 tasks in flight, half of them too long for the drain, and a
/// producer that never stops.
pub(crate) async fn switch(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "switch").await;
    service.write_config("timeout = \"4s\"\nkill_after = \"2s\"\nmargin = \"2s\"");
    service.rewrite(|unit| with_limit(unit, OLD_LIMIT));
    service.daemon_reload().await;
    service.start().await;
    let mut ids = BTreeSet::new();
    for number in 0..IN_FLIGHT {
        let id = format!("long-{number}");
        let seconds = if number % 2 == 0 { "3" } else { "8" };
        service.scene.task(&id, "sleep", seconds).await;
        ids.insert(id);
    }
    wait_for("all to run", async || ids.iter().all(|id| service.count(id, "start") == 1)).await;
    let mut producer = Producer::start(&service).await;

    let begun = Instant::now();
    service.systemctl("stop").await;
    let drained = begun.elapsed();
    assert!(drained < OLD_LIMIT, "the drain took {drained:?}");
    service.assert_clean_end().await;
    service.rewrite(|unit| with_limit(&unit.replace(OLD, NEW), OLD_LIMIT * 2));
    service.daemon_reload().await;
    service.start().await;
    let down = begun.elapsed();
    assert_eq!(service.program().await, NEW);

    ids.extend(producer.stop().await);
    wait_for("all to succeed", async || succeeded(&service).await == ids.len()).await;
    service.scene.until_empty().await;
    let twice = service.scene.count(
        "SELECT count(*) FROM (SELECT task_id FROM effects GROUP BY 1 HAVING count(*) > 1) AS t",
    );
    assert_eq!(twice.await, 0, "effects that happened twice");
    let done_twice = ids.iter().filter(|id| service.count(id, "end") > 1).count();
    assert_eq!(done_twice, 0, "programs that ran to their end twice");
    let crashes = "SELECT coalesce(sum(crashes), 0)::bigint FROM queue_worker.processed_tasks";
    assert_eq!(service.scene.count(crashes).await, 0);
    let given_back = ids.iter().filter(|id| service.count(id, "start") > 1).count();
    service.stop_clean().await;
    Verdict::Passed(format!(
        "{} tasks: lost 0, twice 0, zombie locks 0, given back {given_back}; drained in {:.1} of \
         {} s, no pulling for {:.1} s",
        ids.len(),
        drained.as_secs_f64(),
        OLD_LIMIT.as_secs(),
        down.as_secs_f64()
    ))
}

async fn succeeded(service: &Service) -> usize {
    let query = "SELECT count(*) FROM queue_worker.processed_tasks WHERE status = 'succeeded'";
    usize::try_from(service.scene.count(query).await).expect("a count")
}

fn with_limit(unit: &str, limit: Duration) -> String {
    let lines = unit.lines().map(|line| match line.split_once('=') {
        Some(("TimeoutStopSec", _)) => format!("TimeoutStopSec={}\n", limit.as_secs()),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// Adds an exec task and one with an effect every so often.
struct Producer {
    task: JoinSet<BTreeSet<String>>,
    end: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Producer {
    async fn start(service: &Service) -> Self {
        let mut connection = service.scene.redis_connection().await;
        let (end, mut ended) = tokio::sync::oneshot::channel();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut ids = BTreeSet::new();
            let mut ticks = tokio::time::interval(PRODUCE_EVERY);
            while ended.try_recv().is_err() {
                ticks.tick().await;
                for (kind, payload) in [("effect", ""), ("sleep", "0")] {
                    let id = format!("{kind}-{}", ids.len());
                    let mut command = redis::cmd("XADD");
                    command.arg(STREAM).arg("*").arg("task_id").arg(&id);
                    command.arg("kind").arg(kind).arg("payload").arg(payload);
                    command.query_async::<String>(&mut connection).await.expect("XADD");
                    ids.insert(id);
                }
            }
            ids
        });
        Self { task, end: Some(end) }
    }

    async fn stop(&mut self) -> BTreeSet<String> {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        self.task.join_next().await.expect("it runs").expect("it does not panic")
    }
}

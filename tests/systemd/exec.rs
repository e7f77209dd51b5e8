//! What the programs of tasks leave behind: nothing, however the worker ends.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::Machine;
use crate::common::{Verdict, wait_for};
use crate::service::Service;

/// A program that forks, forks twice, and escapes into a session of its own; each sleeps for a
/// number of seconds that nobody else sleeps for.
const FAMILY: &str = r#"
[handler.family]
type = "exec"
command = ["/bin/sh", "-c", '''
sleep 86411 &
setsid sleep 86412 &
(setsid sh -c 'sleep 86413 & exec sleep 86414' &)
echo "$QUEUE_WORKER_TASK_ID start $QUEUE_WORKER_FENCE" >> STATE/journal
wait
''']
kill_after = "1s"
timeout = "10m"
"#;
const SLEEPERS: [&str; 4] = ["86411", "86412", "86413", "86414"];

/// After SIGKILL of the worker, and after a stop that gives the task back, no child is left.
pub(crate) async fn children(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "exec-children").await;
    let drain = "timeout = \"1s\"\nkill_after = \"2s\"\nmargin = \"2s\"";
    service.write_config(&format!("{drain}\n{}", FAMILY.replace("STATE", &service.state())));
    service.start().await;
    service.scene.task("t", "family", "").await;
    let all = async || sleepers(&service).await.len() == SLEEPERS.len();
    wait_for("the whole family", all).await;
    let first = sleepers(&service).await;
    machine.guest.kill("KILL", service.pid().await).await;
    let gone = async || {
        let now = sleepers(&service).await;
        first.iter().all(|one| !now.contains(one))
    };
    wait_for("the family of the killed worker to be gone", gone).await;
    service.until_said("t", "start", 2).await;
    wait_for("the second family", all).await;
    service.stop_clean().await;
    assert_eq!(sleepers(&service).await, Vec::<String>::new());
    Verdict::Passed(format!("{} of {} gone, twice", first.len(), SLEEPERS.len()))
}

/// Where the unit delegates, each program runs in a cgroup of its own, the worker in another.
pub(crate) async fn cgroups(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "exec-cgroups").await;
    service.start().await;
    for id in ["1", "2"] {
        service.scene.task(id, "gate", "").await;
        service.until_said(id, "start", 1).await;
    }
    let unit = format!("/sys/fs/cgroup/system.slice/{}", service.unit());
    let find = format!("cd {unit} && find . -name cgroup.procs | xargs grep -H . || true");
    let processes = machine.guest.run(["sh", "-c", &find]).await;
    let count = |folder: &str| {
        let folders = processes.lines().filter_map(|line| line.strip_prefix(folder));
        folders.filter_map(|rest| rest.split('/').next()).collect::<BTreeSet<_>>().len()
    };
    assert_eq!(count("./tasks/task-"), 2, "{processes}");
    let worker = format!("./worker/cgroup.procs:{}", service.pid().await);
    assert!(processes.lines().any(|line| line == worker), "{processes}");
    service.open_gate();
    for id in ["1", "2"] {
        service.scene.until_status(id, "succeeded").await;
    }
    let log = service.log().await;
    let limits =
        log.lines().find(|line| line.contains("runs in a cgroup")).unwrap_or_default().to_owned();
    service.stop_clean().await;
    Verdict::Passed(limits)
}

/// The process ids of the family.
async fn sleepers(service: &Service) -> Vec<String> {
    let words = ["ps", "-e", "-o", "pid=,args="];
    let processes = service.guest.run(words).await;
    let words = processes.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    words
        .filter(|words| matches!(words[..], [_, "sleep", number] if SLEEPERS.contains(&number)))
        .map(|words| words[0].to_owned())
        .collect()
}

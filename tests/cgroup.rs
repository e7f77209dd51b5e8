//! Exec handlers in cgroups of their own: on the real tree where one may be made, and limits as
//! writes to a tree of plain files, since many machines have no controller to spare.
//!
//! Each test on the real tree runs in a process of its own that begins inside a scratch cgroup. It
//! needs cgroup v2 and the right to make cgroups, as root has; without, it says so and is skipped.

mod programs;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_worker::domain::{Failure, FailureClass};
use queue_worker::handler::exec::cgroup::{Cgroups, Limits, Unavailable, controllers_of};
use queue_worker::handler::exec::{ExecHandler, ExecOptions, become_reaper};
use queue_worker::handler::{ExternalHandler, Run};
use tokio::time::Instant;

use programs::{LIMIT, Notes, eventually, pids, run, shell, within};

/// Names the scratch cgroup to the process that runs inside.
const SCRATCH: &str = "QUEUE_WORKER_TEST_CGROUP";
/// Somebody without privileges.
const NOBODY: u32 = 65534;

async fn execute(
    options: ExecOptions,
    cgroups: &Arc<Cgroups>,
    run: Run,
) -> Result<Option<Bytes>, Failure> {
    let handler = ExecHandler::new(options).in_cgroups(Some(Arc::clone(cgroups)));
    within(LIMIT, handler.run(run)).await
}

fn task_groups(cgroups: &Cgroups) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cgroups.tasks()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

/// Where the tree of this process is mounted, and its own place in it.
fn own_cgroup() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let mount = line.split(' ').nth(4)?;
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    Some(Path::new(mount).join(own))
}

/// How a scratch cgroup was given to the process inside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delegated {
    Not,
    Marked,
    Owned,
}

/// A cgroup that a test may do with as it likes; everything in it is killed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Option<Self> {
        let dir = own_cgroup()?.join(format!("queue-worker-test-{}.scope", uuid::Uuid::new_v4()));
        std::fs::create_dir(&dir).ok()?;
        let scratch = Self(dir);
        rustix::fs::access(scratch.0.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).ok()?;
        Some(scratch)
    }

    /// As systemd does it, for everybody or, before version 251, for somebody without privileges.
    fn delegate(&self, how: Delegated) {
        match how {
            Delegated::Not => {}
            Delegated::Marked => {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(&self.0, "user.delegate", b"1", flags).unwrap();
            }
            Delegated::Owned => {
                for name in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
                    let path = self.0.join(name);
                    std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
                }
            }
        }
    }

    /// Runs one test of this program again, inside; as another user if it is theirs.
    fn rerun(&self, test: &str, how: Delegated) -> Output {
        let copy = tempfile::Builder::new().prefix("queue-worker-test").tempdir().unwrap();
        let program = copy.path().join("test");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(copy.path(), open).unwrap();
        let script = r#"echo 0 >"$1/cgroup.procs" || exit 99; shift; exec "$@""#;
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(&self.0);
        if how == Delegated::Owned {
            let (user, group) = (format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"));
            command.args(["setpriv", &user, &group, "--clear-groups"]);
        }
        command
            .arg(program)
            .args(["--exact", test, "--nocapture"])
            .env(SCRATCH, &self.0)
            .current_dir("/")
            .process_group(0)
            .output()
            .unwrap()
    }

    fn remove(dir: &Path) -> bool {
        for entry in std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
            if entry.path().is_dir() {
                Self::remove(&entry.path());
            }
        }
        std::fs::remove_dir(dir).is_ok()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        let deadline = Instant::now() + LIMIT;
        while !Self::remove(&self.0) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// `Some` in the process inside; outside it runs that process, and `None` says that all is done.
fn inside(test: &str, how: Delegated) -> Option<PathBuf> {
    if let Some(scratch) = std::env::var_os(SCRATCH) {
        become_reaper().unwrap();
        return Some(scratch.into());
    }
    let Some(scratch) = Scratch::make() else {
        eprintln!("SKIPPED {test}: no cgroup v2 tree in which this user may make cgroups");
        return None;
    };
    if how == Delegated::Owned && !can_be_nobody() {
        eprintln!("SKIPPED {test}: it needs root and setpriv(1)");
        return None;
    }
    scratch.delegate(how);
    let output = scratch.rerun(test, how);
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", said(&output.stdout), said(&output.stderr));
    assert!(said(&output.stdout).contains("1 passed"), "{}", said(&output.stdout));
    None
}

fn can_be_nobody() -> bool {
    let setpriv = Command::new("setpriv").arg("--version").output();
    rustix::process::geteuid().is_root() && setpriv.is_ok_and(|output| output.status.success())
}

#[tokio::test]
async fn a_program_starts_and_ends_in_a_cgroup_of_its_own() {
    let Some(root) = inside("a_program_starts_and_ends_in_a_cgroup_of_its_own", Delegated::Marked)
    else {
        return;
    };
    assert!(controllers_of(None).is_ok());
    let cgroups = Cgroups::take_over().unwrap();
    assert_eq!(cgroups.tasks(), root.join("tasks"));
    assert_eq!(own_cgroup().unwrap(), root.join("worker"));
    assert!(pids(root.join("cgroup.procs")).is_empty());
    // Also from the leaf, as a look from outside finds it.
    assert!(controllers_of(Some(std::process::id())).is_ok());
    let said = execute(shell("cat /proc/self/cgroup"), &cgroups, run("")).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("/tasks/task-"), "{said}");
    assert_eq!(task_groups(&cgroups), Vec::<PathBuf>::new(), "removed at the end");

    // It is set from outside right after the start, and each `cat` inherits it from the shell.
    let mut options =
        shell(r#"while [ "$(cat /proc/self/oom_score_adj)" != "$SCORE" ]; do :; done"#);
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let score = (own.trim().parse::<i32>().unwrap() + 200).min(1_000);
    options.environment.insert("SCORE".into(), score.to_string());
    execute(options, &cgroups, run("")).await.unwrap();

    // What it started in the background is inside too, and gone at the end.
    let notes = Notes::new();
    let options = notes.options(
        r#"setsid sh -c 'cat /proc/self/cgroup >>"$NOTES"; exec sleep 1000' </dev/null >/dev/null 2>&1 &
        while ! grep -qs task- "$NOTES"; do sleep 0.01; done"#,
    );
    execute(options, &cgroups, run("")).await.unwrap();
    let said = std::fs::read_to_string(notes.file()).unwrap();
    assert!(said.contains("/tasks/task-"), "{said}");
    assert_eq!(task_groups(&cgroups), Vec::<PathBuf>::new());
}

/// A leader, a child in a session of its own, and two double-forked daemons, one without an
/// environment: four ids. All ignore SIGTERM.
const TREE: &str = r#"
    trap '' TERM
    echo $$ >>"$NOTES"
    setsid sh -c 'echo $$ >>"$NOTES"; exec sleep 1000' </dev/null >/dev/null 2>&1 &
    (setsid sh -c 'echo $$ >>"$NOTES"; exec sleep 1000' </dev/null >/dev/null 2>&1 &)
    (setsid sh -c 'echo $$ >>"$NOTES"; exec env -i sleep 1000' </dev/null >/dev/null 2>&1 &)
    while :; do sleep 1000; done
"#;

#[tokio::test]
async fn every_descendant_is_killed_at_once() {
    if inside("every_descendant_is_killed_at_once", Delegated::Marked).is_none() {
        return;
    }
    let cgroups = Cgroups::take_over().unwrap();
    for dropped in [false, true] {
        let notes = Notes::new();
        let mut options = notes.options(TREE);
        options.kill_after = Duration::from_millis(50);
        let run = run("");
        let cancel = run.cancel.clone();
        let started = async {
            let tree = notes.count(4).await;
            let group = task_groups(&cgroups).pop().unwrap();
            eventually("nobody is elsewhere", || {
                let inside = pids(group.join("cgroup.procs"));
                tree.iter().all(|pid| inside.contains(pid))
            })
            .await;
            if !dropped {
                cancel.cancel();
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = started => assert!(dropped),
            result = execute(options, &cgroups, run) => {
                assert!(!dropped);
                assert_eq!(result.unwrap_err().status.as_deref(), Some("cancelled"));
            }
        }
        notes.all_gone().await;
        eventually("its cgroup is gone", || {
            cgroups.sweep();
            task_groups(&cgroups).is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn what_a_killed_worker_left_is_killed_at_the_start() {
    let Some(root) = inside("what_a_killed_worker_left_is_killed_at_the_start", Delegated::Marked)
    else {
        return;
    };
    let old = root.join("tasks/task-old");
    std::fs::create_dir_all(old.join("inner")).unwrap();
    let script = r#"echo 0 >"$1/cgroup.procs"; exec sleep 1000"#;
    let mut left =
        Command::new("sh").args(["-c", script, "sh"]).arg(old.join("inner")).spawn().unwrap();
    let pid = left.id().cast_signed();
    eventually("it is inside", || pids(old.join("inner/cgroup.procs")).contains(&pid)).await;
    let cgroups = Cgroups::take_over().unwrap();
    assert!(!left.wait().unwrap().success());
    eventually("its cgroup is gone", || cgroups.sweep() == 0).await;
    assert!(!old.exists());
}

#[tokio::test]
async fn nothing_is_taken_that_was_not_delegated() {
    let Some(root) = inside("nothing_is_taken_that_was_not_delegated", Delegated::Not) else {
        return;
    };
    let error = Cgroups::take_over().unwrap_err();
    // Somebody without privileges who may make cgroups here has got them by a delegation.
    if rustix::process::geteuid().is_root() {
        assert!(matches!(error, Unavailable::NotDelegated(_)), "{error}");
        assert!(error.remedy().contains("Delegate=yes"), "{error}");
    }
    assert!(!root.join("tasks").exists() && !root.join("worker").exists());
}

#[tokio::test]
async fn a_cgroup_that_only_we_may_write_to_was_delegated() {
    let test = "a_cgroup_that_only_we_may_write_to_was_delegated";
    let Some(root) = inside(test, Delegated::Owned) else { return };
    let cgroups = Cgroups::take_over().unwrap();
    assert_eq!(own_cgroup().unwrap(), root.join("worker"));
    let said = execute(shell("id -u; cat /proc/self/cgroup"), &cgroups, run("")).await;
    let said = String::from_utf8_lossy(&said.unwrap().unwrap()).into_owned();
    assert!(said.starts_with("65534\n") && said.contains("/tasks/task-"), "{said}");
    assert!(task_groups(&cgroups).is_empty());
    assert!(controllers_of(None).is_ok(), "also from the leaf");
}

#[tokio::test]
async fn others_in_the_same_cgroup_are_left_in_peace() {
    let Some(root) = inside("others_in_the_same_cgroup_are_left_in_peace", Delegated::Marked)
    else {
        return;
    };
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    let error = Cgroups::take_over().unwrap_err();
    assert!(error.to_string().contains(&other.id().to_string()), "{error}");
    assert!(!root.join("worker").exists());
    other.kill().unwrap();
    other.wait().unwrap();
}

/// A tree of plain files that offers all controllers, with nobody inside.
fn fake_tree() -> (tempfile::TempDir, Arc<Cgroups>) {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
    std::fs::write(root.path().join("cgroup.procs"), "").unwrap();
    let cgroups = Cgroups::take_over_at(root.path()).unwrap();
    (root, cgroups)
}

fn limited(script: &str, cgroups: &Cgroups) -> ExecOptions {
    let mut options = shell(script);
    options.environment.insert("TASKS".into(), cgroups.tasks().to_str().unwrap().into());
    options.limits =
        Limits { memory_max: Some(512 << 20), pids_max: Some(64), cpu_weight: Some(20) };
    options
}

#[tokio::test]
async fn limits_are_there_before_the_program() {
    let (_root, cgroups) = fake_tree();
    let script =
        "cd $TASKS/task-*; cat cgroup.procs memory.max memory.swap.max pids.max cpu.weight";
    let said = execute(limited(script, &cgroups), &cgroups, run("")).await.unwrap().unwrap();
    assert_eq!(said, "053687091206420");
}

#[tokio::test]
async fn a_program_that_was_killed_for_its_memory_is_told_so() {
    let (_root, cgroups) = fake_tree();
    let script = r"cd $TASKS/task-*
        printf 'max 9\noom 1\noom_kill 2\n' >memory.events; echo last words >&2; kill -9 $$";
    let failure = execute(limited(script, &cgroups), &cgroups, run("")).await.unwrap_err();
    assert_eq!(failure.status.as_deref(), Some("oom"));
    assert_eq!(failure.class, FailureClass::Retry { after: None });
    assert_eq!(
        failure.message,
        "out of memory: reached memory_max 512 MiB of [handler.resize]; `sh` was killed by signal \
         SIGKILL"
    );
    assert_eq!(failure.tail, "last words\n");
}

#[tokio::test]
async fn a_handler_with_limits_does_not_run_without_them() {
    let (root, cgroups) = fake_tree();
    std::fs::remove_dir_all(root.path()).unwrap();
    let failure = execute(limited("true", &cgroups), &cgroups, run("")).await.unwrap_err();
    assert_eq!(failure.status.as_deref(), Some("not started"));
    assert!(failure.message.contains("its cgroup could not be made"), "{}", failure.message);
    assert_eq!(execute(shell("echo ran"), &cgroups, run("")).await.unwrap().unwrap(), "ran\n");
}

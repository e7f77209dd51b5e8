//! Exec handlers with real processes: results, failures, bounds, and that nothing is left behind.

mod programs;

use std::collections::BTreeSet;
use std::sync::Once;
use std::time::Duration;

use bytes::Bytes;
use queue_worker::domain::{Failure, FailureClass};
use queue_worker::handler::exec::{ExecHandler, ExecOptions, become_reaper, sweep};
use queue_worker::handler::{ExternalHandler, Run};
use tokio::time::Instant;

use programs::{LIMIT, Notes, eventually, is_alive, pids, run, shell, within};

const SECRET: &str = "QUEUE_WORKER_TEST_SECRET";

fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| become_reaper().unwrap());
}

async fn execute(options: ExecOptions, run: Run) -> Result<Option<Bytes>, Failure> {
    prepare();
    within(LIMIT, ExecHandler::new(options).run(run)).await
}

/// A leader, a child in its group, one in a session of its own, a double-forked daemon without an
/// environment, and one with it: five ids.
const TREE: &str = r#"
    echo $$ >>"$NOTES"
    (echo $BASHPID >/dev/null; exec sh -c 'echo $$ >>"$NOTES"; exec sleep 1000') &
    setsid sh -c 'echo $$ >>"$NOTES"; exec sleep 1000' </dev/null >/dev/null 2>&1 &
    (setsid sh -c 'echo $$ >>"$NOTES"; exec sleep 1000' </dev/null >/dev/null 2>&1 &)
    (setsid sh -c 'echo $$ >>"$NOTES"; exec env -i sleep 1000' </dev/null >/dev/null 2>&1 &)
"#;

#[tokio::test]
async fn output_is_the_result() {
    let result = execute(ExecOptions::new(["cat"]), run("payload")).await;
    assert_eq!(result.unwrap().unwrap(), "payload");
    assert_eq!(execute(ExecOptions::new(["true"]), run("")).await.unwrap(), None);
}

#[tokio::test]
async fn the_result_is_capped_and_the_rest_is_read() {
    let script = "head -c 3000000 /dev/zero";
    let result = execute(shell(script), run("")).await.unwrap().unwrap();
    assert_eq!(result.len(), 64 * 1024);
}

#[tokio::test]
async fn exit_statuses_are_told_apart() {
    let failure = execute(shell("echo bad input >&2; exit 65"), run("")).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::ForGood);
    assert_eq!(failure.status.as_deref(), Some("exit 65"));
    assert_eq!(failure.tail, "bad input\n");
    for code in [1, 75, 127] {
        let failure = execute(shell(&format!("exit {code}")), run("")).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::Retry { after: None });
        assert_eq!(failure.status, Some(format!("exit {code}")));
    }
    for (signal, name) in [("KILL", "signal SIGKILL"), ("SEGV", "signal SIGSEGV")] {
        let failure = execute(shell(&format!("kill -{signal} $$")), run("")).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::Retry { after: None });
        assert_eq!(failure.status.as_deref(), Some(name));
    }
}

#[tokio::test]
async fn a_missing_program_is_named_with_the_remedy() {
    for program in ["no-such-program-here", "/etc/passwd", "/no/such/file"] {
        let failure = execute(ExecOptions::new([program]), run("")).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::Retry { after: None });
        assert!(failure.message.contains(program), "{}", failure.message);
        assert!(failure.message.contains("extraPackages"), "{}", failure.message);
    }
    let mut options = ExecOptions::new(["true"]);
    options.working_dir = Some("/no/such/directory".into());
    let failure = execute(options, run("")).await.unwrap_err();
    assert!(failure.message.contains("/no/such/directory"), "{}", failure.message);
}

#[tokio::test]
async fn a_relative_program_starts_at_the_working_directory() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("job");
    std::os::unix::fs::symlink("/bin/pwd", &program).unwrap();
    let mut options = ExecOptions::new(["./job"]);
    options.working_dir = Some(dir.path().into());
    let result = execute(options, run("")).await.unwrap().unwrap();
    assert_eq!(result, format!("{}\n", dir.path().display()));
}

#[tokio::test]
async fn input_that_is_not_read_does_no_harm() {
    let result = execute(shell("echo done"), run(vec![b'x'; 4 << 20])).await;
    assert_eq!(result.unwrap().unwrap(), "done\n");
}

#[tokio::test]
async fn a_large_payload_arrives_whole_while_output_flows() {
    let payload = Bytes::from(vec![b'x'; 64 << 20]);
    let result = execute(shell("tee /dev/stderr | wc -c"), run(payload)).await;
    assert_eq!(String::from_utf8_lossy(&result.unwrap().unwrap()).trim(), "67108864");
}

#[tokio::test]
async fn endless_lines_on_standard_error_stay_bounded() {
    let before = peak_memory();
    let script = "head -c 100000000 /dev/zero | tr '\\0' x >&2; printf '0123456789' >&2; exit 1";
    let failure = execute(shell(script), run("")).await.unwrap_err();
    assert_eq!(failure.tail.len(), 16 * 1024);
    assert!(failure.tail.ends_with(b"xxx0123456789"));
    if std::env::var_os("NEXTEST").is_some() {
        // Alone in its process: no other test's memory is counted.
        let grown = peak_memory() - before;
        assert!(grown < 20 << 20, "grew by {grown} bytes");
    }
}

fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn cancelling_kills_the_whole_tree() {
    let notes = Notes::new();
    let mut options = notes.options(&format!("trap '' TERM; {TREE} while :; do sleep 1000; done"));
    options.kill_after = Duration::from_millis(200);
    let run = run("");
    let cancel = run.cancel.clone();
    let cancelled = async {
        let pids = notes.count(5).await;
        assert!(pids.iter().all(|pid| is_alive(*pid)));
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(execute(options, run), cancelled);
    let failure = result.unwrap_err();
    assert_eq!(failure.status.as_deref(), Some("cancelled"));
    assert!(failure.message.contains("SIGKILL"), "{}", failure.message);
    notes.all_gone().await;
}

#[tokio::test]
async fn a_program_may_end_by_itself_on_sigterm() {
    let notes = Notes::new();
    let mut options = notes.options(
        "trap 'echo bye >&2; exit 0' TERM; echo $$ >>\"$NOTES\"; while :; do sleep 0.01; done",
    );
    options.kill_after = LIMIT;
    let run = run("");
    let cancel = run.cancel.clone();
    let cancelled = async {
        notes.count(1).await;
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(execute(options, run), cancelled);
    let failure = result.unwrap_err();
    assert!(failure.message.contains("exit 0"), "{}", failure.message);
    assert!(failure.tail.ends_with(b"bye\n"));
}

/// While its group cleans up, a run is not over: other runs that end meanwhile must not take its
/// members for leftovers.
#[tokio::test]
async fn the_group_has_its_time_although_the_leader_has_ended() {
    let notes = Notes::new();
    let mut options = notes.options(
        r#"sh -c 'trap "sleep 0.3; echo 0 >>\"$NOTES\"; exit" TERM; echo $$ >>"$NOTES"
            while :; do sleep 0.01; done' &
        trap 'exit 1' TERM; wait"#,
    );
    options.kill_after = LIMIT;
    let run = run("");
    let cancel = run.cancel.clone();
    let cancelled = async {
        notes.count(1).await;
        cancel.cancel();
        while pids(notes.file()).len() < 2 {
            execute(ExecOptions::new(["true"]), self::run("")).await.unwrap();
            sweep();
        }
    };
    let started = Instant::now();
    let (result, ()) = tokio::join!(execute(options, run), within(LIMIT, cancelled));
    assert!(result.unwrap_err().message.contains("exit 1"));
    assert_eq!(pids(notes.file())[1], 0, "it has cleaned up");
    assert!(started.elapsed() < LIMIT / 2);
    notes.all_gone().await;
}

#[tokio::test]
async fn whoever_forks_while_being_killed_is_killed_too() {
    let notes = Notes::new();
    let mut options = notes.options(
        r#"trap '' TERM
        while :; do (setsid sh -c 'echo $$ >>"$NOTES"; exec sleep 1000' >/dev/null 2>&1 &); done"#,
    );
    options.kill_after = Duration::from_millis(50);
    let run = run("");
    let cancel = run.cancel.clone();
    let cancelled = async {
        notes.count(30).await;
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(execute(options, run), cancelled);
    assert_eq!(result.unwrap_err().status.as_deref(), Some("cancelled"));
    notes.all_gone().await;
}

#[tokio::test]
async fn dropping_a_run_kills_the_whole_tree() {
    let notes = Notes::new();
    let options = notes.options(&format!("{TREE} wait; while :; do sleep 1000; done"));
    tokio::select! {
        result = execute(options, run("")) => panic!("ended: {result:?}"),
        pids = notes.count(5) => assert_eq!(pids.len(), 5),
    }
    notes.all_gone().await;
}

#[tokio::test]
async fn nothing_is_left_after_a_normal_end() {
    let notes = Notes::new();
    let script = format!("{TREE} while [ \"$(wc -l <\"$NOTES\")\" -lt 5 ]; do sleep 0.01; done");
    execute(notes.options(&script), run("")).await.unwrap();
    assert_eq!(pids(notes.file()).len(), 5);
    notes.all_gone().await;
}

#[tokio::test]
async fn a_grandchild_that_holds_the_pipes_does_not_hang_the_run() {
    let notes = Notes::new();
    let script = r#"
        setsid sh -c 'echo $$ >>"$NOTES"; exec sleep 1000' &
        while [ ! -s "$NOTES" ]; do sleep 0.01; done; echo result"#;
    let options = notes.options(script);
    let started = Instant::now();
    assert_eq!(execute(options, run("")).await.unwrap().unwrap(), "result\n");
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    notes.all_gone().await;
}

#[tokio::test]
async fn a_child_sees_only_what_is_meant_for_it() {
    if std::env::var_os(SECRET).is_none() {
        // Its own process: the environment of this one cannot be changed safely.
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_child_sees_only_what_is_meant_for_it"])
            .env(SECRET, "s3cret")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let mut options = ExecOptions::new(["env"]);
    options.environment.insert("COLOUR".into(), "blue".into());
    options.environment.insert("TOKEN".into(), "hidden".into());
    options.scrub.push("TOKEN".into());
    let output = execute(options, run("")).await.unwrap().unwrap();
    let output = String::from_utf8(output.to_vec()).unwrap();
    let has = |line: &str| assert!(output.lines().any(|found| found == line), "{line}: {output}");
    has("COLOUR=blue");
    has("QUEUE_WORKER_TASK_ID=task 1/ä");
    has("QUEUE_WORKER_KIND=resize");
    has("QUEUE_WORKER_QUEUE=images");
    has("QUEUE_WORKER_ATTEMPT=2");
    has("QUEUE_WORKER_FENCE=7");
    has("QUEUE_WORKER_DEADLINE_MS=1700000000123");
    has("TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let names: BTreeSet<&str> =
        output.lines().map(|line| line.split('=').next().unwrap()).collect();
    let foreign: Vec<_> = names
        .iter()
        .filter(|name| {
            !["PATH", "HOME", "LANG", "TZ", "USER", "COLOUR", "TRACEPARENT"].contains(name)
        })
        .filter(|name| !name.starts_with("QUEUE_WORKER_"))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert!(!output.contains("s3cret") && !output.contains("hidden"));
}

/// As the same user and not as root, for whom nothing is hidden.
#[tokio::test]
async fn a_child_cannot_read_the_environment_of_the_daemon() {
    const NOBODY: u32 = 65534;
    if std::env::var_os(SECRET).is_none() {
        if !rustix::process::geteuid().is_root() {
            return check_hidden().await;
        }
        let copy = tempfile::Builder::new().prefix("queue-worker-test").tempdir().unwrap();
        let program = copy.path().join("test");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(copy.path(), open).unwrap();
        let mut command = std::process::Command::new(program);
        std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
        std::os::unix::process::CommandExt::gid(&mut command, NOBODY);
        let output = command
            .args(["--exact", "a_child_cannot_read_the_environment_of_the_daemon"])
            .current_dir("/")
            .env(SECRET, "s3cret")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    check_hidden().await;
}

async fn check_hidden() {
    let own = std::process::id();
    let script = format!("cat /proc/{own}/environ || exit 3");
    let failure = execute(shell(&script), run("")).await.unwrap_err();
    assert_eq!(failure.status.as_deref(), Some("exit 3"));
    assert!(String::from_utf8_lossy(&failure.tail).contains("Permission denied"));
    // And descendants are still found, although the daemon itself is hidden.
    let notes = Notes::new();
    let script = format!("{TREE} while [ \"$(wc -l <\"$NOTES\")\" -lt 5 ]; do sleep 0.01; done");
    execute(notes.options(&script), run("")).await.unwrap();
    notes.all_gone().await;
}

#[tokio::test]
async fn no_descriptor_and_no_zombie_is_left() {
    if std::env::var_os("NEXTEST").is_none() {
        return; // Other tests of the same process open files of their own.
    }
    execute(ExecOptions::new(["cat"]), run("warm up")).await.unwrap();
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = count();
    for _ in 0..20 {
        execute(ExecOptions::new(["cat"]), run(vec![0u8; 200_000])).await.unwrap();
        execute(shell("sleep 1000 & exit 1"), run("")).await.unwrap_err();
        let notes = Notes::new();
        let options = notes.options("echo $$ >\"$NOTES\"; exec sleep 1000");
        tokio::select! {
            result = execute(options, run("")) => panic!("ended: {result:?}"),
            _ = notes.count(1) => {}
        }
    }
    eventually("no child is left", || {
        sweep();
        let own = std::process::id();
        let threads = std::fs::read_dir(format!("/proc/{own}/task")).unwrap();
        threads.into_iter().all(|thread| {
            let list = std::fs::read_to_string(thread.unwrap().path().join("children"));
            list.unwrap_or_default().trim().is_empty()
        })
    })
    .await;
    assert!(count() <= before, "{} descriptors, {before} before", count());
}

#[tokio::test]
async fn children_of_others_survive_the_sweep() {
    prepare();
    let mut other = tokio::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let notes = Notes::new();
    let script = r#"
        setsid sh -c 'echo $$ >>"$NOTES"; exec sleep 1000' >/dev/null 2>&1 &
        while [ ! -s "$NOTES" ]; do sleep 0.01; done"#;
    execute(notes.options(script), run("")).await.unwrap();
    notes.all_gone().await;
    assert!(other.try_wait().unwrap().is_none());
    other.kill().await.unwrap();
}

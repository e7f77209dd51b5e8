//! `dev`: a folder becomes a working queue, and Ctrl-C ends all of it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::common::wait_for;
use crate::said::{Said, say_alone};

/// How long the servers and the worker may take to start or to stop.
const LIMIT: Duration = Duration::from_secs(60);

fn start(dir: &Path) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_queue-worker"))
        .arg("dev")
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("start dev");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    (child, lines)
}

/// The lines up to one that contains `text`.
async fn until(lines: &mut Lines<BufReader<ChildStdout>>, text: &str) -> Vec<String> {
    let mut read = Vec::new();
    let reading = async {
        while let Some(line) = lines.next_line().await.expect("read a line") {
            read.push(line);
            if read.last().is_some_and(|line| line.contains(text)) {
                return;
            }
        }
        panic!("dev ended without {text:?}: {read:?}");
    };
    tokio::time::timeout(LIMIT, reading).await.expect(text);
    read
}

/// Runs the example that `dev` prints after `label`, as a shell would.
async fn example(page: &[String], label: &str) -> Said {
    example_with(page, label, "").await
}

/// The same with more words at its end.
async fn example_with(page: &[String], label: &str, more: &str) -> Said {
    let line = page.iter().find_map(|line| line.trim_start().strip_prefix(label));
    let line = format!("{} {more}", line.expect("an example"));
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(line).stdin(Stdio::null());
    command.output().await.expect("run the example").into()
}

async fn interrupt(mut child: Child) {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("dev runs");
    kill_process(pid, Signal::INT).expect("signal dev");
    let status = tokio::time::timeout(LIMIT, child.wait()).await.expect("an end in time");
    let status = status.expect("wait for dev");
    assert!(status.success(), "{status}");
}

/// Other users of the machine reach the loopback, and see the arguments of programs.
async fn only_we_can_log_in(dir: &Path, page: &[String]) {
    let file = std::fs::read_to_string(dir.join("queue-worker.toml")).expect("read the file");
    let file: toml::Table = file.parse().expect("TOML");
    let url = |section: &str| file[section]["url"].as_str().expect("a URL").to_owned();
    let redis = redis::Client::open(url("redis")).expect("a URL");
    let ping = async {
        let mut redis = redis.get_multiplexed_async_connection().await?;
        redis::cmd("PING").query_async::<String>(&mut redis).await
    };
    assert_eq!(ping.await.expect_err("no password").code(), Some("NOAUTH"));
    let options: PgConnectOptions = url("postgres").parse().expect("a URL");
    let refused = options.connect().await.expect_err("no password").to_string();
    assert!(refused.contains("password"), "{refused}");
    for server in ["redis", "postgres"] {
        let secret = dir.join(format!("{server}.password"));
        let mode = std::fs::metadata(&secret).expect("the secret").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", secret.display());
        let secret = std::fs::read_to_string(secret).expect("the secret");
        assert!(secret.len() >= 32 && !page.concat().contains(&secret), "{page:?}");
    }
    let answer = example_with(page, "look into Redis", "PING").await.good().text();
    assert_eq!(answer, "PONG\n");
    let ask = "--no-align --tuples-only --command 'SELECT 17'";
    assert_eq!(example_with(page, "and Postgres", ask).await.good().text(), "17\n");
}

#[tokio::test]
async fn dev_runs_the_task_of_its_own_example_and_stops_on_ctrl_c() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("queue");
    let (child, mut lines) = start(&dir);
    let page = until(&mut lines, "Ctrl-C stops everything").await;

    assert_eq!(example(&page, "enqueue a task").await.good().text(), "first\n");
    let config = dir.join("queue-worker.toml");
    let config = config.to_str().expect("text");
    let show = ["--config", config, "tasks", "show", "first", "--json"];
    wait_for("the task to be done", async || {
        let said = say_alone(&show).await;
        said.code == Some(0) && said.json()["status"] == json!("succeeded")
    })
    .await;
    let shown = example(&page, "see its result").await.good().text();
    assert!(shown.contains("    HELLO\n"), "{shown}");
    let status = example(&page, "see the queues").await.good().text();
    assert!(status.contains("\ndefault "), "{status}");
    assert_eq!(example(&page, "what went wrong").await.good().text(), "no dead letters\n");
    only_we_can_log_in(&dir, &page).await;

    interrupt(child).await;
    assert_eq!(say_alone(&show).await.code, Some(1), "the servers are gone");

    // The folder is started again with what it knew, on the same ports.
    let before = std::fs::read_to_string(config).expect("read the configuration");
    let (child, mut lines) = start(&dir);
    until(&mut lines, "Ctrl-C stops everything").await;
    let task = say_alone(&show).await.good().json();
    assert_eq!(task["result"], json!("HELLO"));
    assert_eq!(std::fs::read_to_string(config).expect("read the configuration"), before);
    interrupt(child).await;
}

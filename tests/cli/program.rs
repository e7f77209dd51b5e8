//! What needs no servers: exit codes, help, completions and manual pages.

use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::said::say_alone;

const WITH_SERVERS: [&[&str]; 6] = [
    &["migrate"],
    &["enqueue", "q", "--kind", "k", "--payload", "x"],
    &["status"],
    &["tasks", "list"],
    &["tasks", "show", "t"],
    &["dead", "list"],
];

#[tokio::test]
async fn a_broken_configuration_is_78_everywhere() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("broken.toml");
    std::fs::write(&config, "[redis]\nurl = 5\n").expect("write the configuration");
    let config = config.to_str().expect("text");
    let others = [&["check-config"][..], &["doctor"], &["run"]];
    for command in WITH_SERVERS.into_iter().chain(others) {
        let said = say_alone(&[&["--config", config], command].concat()).await;
        assert_eq!(said.code, Some(78), "{command:?}: {said:?}");
        assert!(said.err.contains("redis.url"), "{command:?}: {said:?}");
    }
    let said = say_alone(&["--config", "/nonexistent/x.toml", "status"]).await;
    assert_eq!(said.code, Some(78), "{said:?}");
    assert!(said.err.contains("/nonexistent/x.toml"), "{said:?}");
}

#[tokio::test]
async fn absent_servers_are_named_with_a_remedy() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("queue-worker.toml");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let text = format!(
        "[redis]\nurl = \"redis://:hush@127.0.0.1:{port}\"\n\
         [postgres]\nurl = \"postgres://me:hush@127.0.0.1:{port}/x\"\n[[queue]]\nname = \"q\"\n"
    );
    std::fs::write(&config, text).expect("write the configuration");
    let config = config.to_str().expect("text");
    for command in WITH_SERVERS {
        let said = say_alone(&[&["--config", config], command].concat()).await;
        assert_eq!(said.code, Some(1), "{command:?}: {said:?}");
        let store = if command[0] == "enqueue" { "redis" } else { "postgres" };
        let named = said.err.contains(&format!("{store} 127.0.0.1:{port}"));
        assert!(named && said.err.contains("check that it runs"), "{command:?}: {said:?}");
        assert!(!said.err.contains("hush") && !said.text().contains("hush"), "{said:?}");
    }
}

#[tokio::test]
async fn help_lists_the_commands_and_usage_errors_are_2() {
    let top = say_alone(&["help"]).await.good().text();
    for command in ["run", "status", "tasks", "dead", "enqueue", "dev", "migrate", "doctor"] {
        let listed = top.lines().any(|line| line.trim_start().starts_with(&format!("{command} ")));
        assert!(listed, "{command} in {top}");
        say_alone(&[command, "--help"]).await.good();
    }
    assert_eq!(say_alone(&["nonsense"]).await.code, Some(2));
}

#[tokio::test]
async fn completions_parse() {
    for (shell, check) in [("bash", &["-n"][..]), ("zsh", &["-n"]), ("fish", &["--no-execute"])] {
        let script = say_alone(&["completions", shell]).await.good();
        assert!(script.text().contains("requeue"), "{shell}");
        let mut command = Command::new(shell);
        command.args(check).stdin(Stdio::piped()).stderr(Stdio::piped());
        // Not every machine has every shell.
        let Ok(mut child) = command.spawn() else { continue };
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(&script.out).await.expect("write the script");
        drop(stdin);
        let output = child.wait_with_output().await.expect("wait for the shell");
        assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {output:?}");
    }
}

#[tokio::test]
async fn manual_pages_are_written() {
    let page = say_alone(&["man", "dead", "requeue"]).await.good().text();
    assert!(page.contains(".TH") && page.contains("passed over"), "{page}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("man1");
    say_alone(&["man", "--dir", dir.to_str().expect("text")]).await.good();
    for name in ["queue-worker.1", "queue-worker-status.1", "queue-worker-dead-requeue.1"] {
        let text = std::fs::read_to_string(dir.join(name)).expect(name);
        assert!(text.contains(".SH NAME"), "{name}: {text}");
    }
}

//! A broken configuration ends every command with 78, and says where and what to do.

use std::path::Path;
use std::process::{Command, Output};

/// What every case has, line by line; the wrong part comes after it, from line 7.
const HEAD: &str = "[redis]\nurl = \"redis://127.0.0.1:1/\"\n[postgres]\nurl = \
                    \"postgres://me@127.0.0.1:1/db\"\n[[queue]]\nname = \"q\"\n";

fn queue_worker(command: &str, file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_queue-worker"))
        .arg(command)
        .arg("--config")
        .arg(file)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").expect("a PATH"))
        .output()
        .expect("run queue-worker")
}

/// Runs the daemon and the check with this file; both must say the same.
fn refused(bytes: &[u8], place: &str, key: &str, remedy: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("qw.toml");
    std::fs::write(&file, bytes).expect("write the file");
    for command in ["run", "check-config", "migrate"] {
        let output = queue_worker(command, &file);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{command}: {told}");
        assert!(output.stdout.is_empty(), "{command}");
        let start = format!("queue-worker: {}{place}: {key}", file.display());
        assert!(told.starts_with(&start), "{command}: {told}\ndoes not start with {start}");
        assert!(told.contains(remedy), "{command}: {told}\nhas no {remedy:?}");
        assert_eq!(told.lines().count(), 1, "{command}: {told}");
    }
}

fn refused_after_head(tail: &str, line: usize, key: &str, remedy: &str) {
    refused(format!("{HEAD}{tail}").as_bytes(), &format!(":{line}"), key, remedy);
}

#[test]
fn an_unknown_key() {
    refused_after_head("[lease]\nheartbeet = \"1s\"\n", 8, "lease.heartbeet: ", "heartbeat");
}

#[test]
fn a_wrong_type() {
    refused_after_head("concurrency = \"many\"\n", 7, "queue.q.concurrency: ", "write");
}

#[test]
fn a_heartbeat_too_long_for_the_ttl() {
    let tail = "[lease]\nheartbeat = \"2s\"\n";
    refused_after_head(tail, 8, "lease.heartbeat: ", "raise lease.ttl to \"6500ms\"");
}

#[test]
fn a_minimum_idle_time_below_the_ttl() {
    let tail = "[lease]\nmin_idle = \"4s\"\n";
    refused_after_head(tail, 8, "lease.min_idle: ", "raise lease.min_idle to \"5s\"");
}

#[test]
fn no_queue() {
    refused(b"[redis]\n", "", "queue: ", "add [[queue]]");
}

#[test]
fn the_same_queue_twice() {
    refused_after_head("[[queue]]\nname = \"q\"\n", 7, "queue.q: ", "remove one");
}

#[test]
fn a_bad_duration() {
    refused_after_head("[drain]\ntimeout = \"soon\"\n", 8, "drain.timeout: ", "write it like");
    refused_after_head("[drain]\ntimeout = 25\n", 8, "drain.timeout: ", "write \"25s\"");
}

#[test]
fn a_bad_handler_type() {
    let remedy = r#"write "exec", "sql", "http" or "git-analysis""#;
    refused_after_head("[handler.k]\ntype = \"shell\"\n", 8, "handler.k.type: ", remedy);
}

#[test]
fn an_exec_handler_without_a_program() {
    let of = |command: &str| format!("[handler.k]\ntype = \"exec\"\n{command}");
    let key = "handler.k.command: ";
    refused_after_head(&of("command = []\n"), 9, key, "write the program and its arguments");
    refused_after_head(&of("command = [\"\"]\n"), 9, key, "write the program and its arguments");
    refused_after_head(&of("command = [\"no-such\"]\n"), 9, key, "install it, or write");
    refused_after_head(&of("command = [\"./x\"]\n"), 9, key, "write it from the root");
    refused_after_head(&of(""), 7, key, "add command = ");
}

#[test]
fn a_literal_password() {
    for section in ["redis", "postgres"] {
        let text = format!("[{section}]\npassword = \"hunter2\"\n[[queue]]\nname = \"q\"\n");
        let key = format!("{section}.password: ");
        refused(text.as_bytes(), ":2", &key, "set password_file");
    }
}

#[test]
fn a_drain_longer_than_the_stop_timeout() {
    let tail = "[drain]\ntimeout = \"85s\"\nstop_timeout = \"90s\"\n";
    refused_after_head(tail, 8, "drain.timeout: ", "lower drain.timeout");
    let tail = "[drain]\nstop_timeout = \"30s\"\n";
    refused_after_head(tail, 8, "drain.stop_timeout: ", "to \"35s\"");
}

#[test]
fn a_url_that_the_clients_do_not_take() {
    for url in ["redis://h:1/zero", "redis://h:99999/", "rediss://h:1/#insecure", "http://h:1/"] {
        let text = format!("[redis]\nurl = \"{url}\"\n[[queue]]\nname = \"q\"\n");
        refused(text.as_bytes(), ":2", "redis.url: ", "redis");
    }
    for url in ["postgres://h/db?sslmode=perhaps", "mysql://h/db"] {
        let text = format!("[postgres]\nurl = \"{url}\"\n[[queue]]\nname = \"q\"\n");
        refused(text.as_bytes(), ":2", "postgres.url: ", "postgres");
    }
}

#[test]
fn no_toml() {
    refused_after_head("what is this\n", 7, "", "https://toml.io");
    refused_after_head("\0", 7, "", "https://toml.io");
    refused(b"[[queue]]\nname = \"\xff\"\n", "", "", "save it as UTF-8");
    refused(&vec![b'#'; 5 << 20], "", "", "name a configuration file");
}

#[test]
fn a_missing_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for path in [folder.path().join("absent.toml"), folder.path().to_owned()] {
        let output = queue_worker("run", &path);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{told}");
        assert!(told.contains(&path.display().to_string()), "{told}");
        assert!(told.contains("create it, readable for this user"), "{told}");
    }
}

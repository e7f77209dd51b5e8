//! Whether this is a container, and how long its host lets it stop.
//!
//! Incus and LXD wait `boot.host_shutdown_timeout` (30 s by default) when their host goes down, then
//! they kill. The guest's own socket may tell it; mostly it tells only keys that begin with `user.`.
//! What other managers wait is not known here.

use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::finding::Findings;
use super::one;
use crate::config::{Config, format_duration as show};

/// How Incus, LXD and LXC call themselves.
const LXC: &str = "lxc";

/// What a host of these waits where nothing else was set.
const USUAL_LIMIT: Duration = Duration::from_secs(30);

/// What the rest of a container needs to stop.
const REST: Duration = Duration::from_secs(5);

/// How long the socket of the host may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most that the socket is listened to, in bytes.
const MOST_BYTES: u64 = 16 * 1024;

/// The sockets that Incus and LXD give their guests.
const SOCKETS: [&str; 2] = ["dev/incus/sock", "dev/lxd/sock"];

/// Files in which a container manager says its name, and systemd repeats it.
const NAMES: [&str; 2] = ["run/host/container-manager", "run/systemd/container"];

/// The longest name of a manager that is shown.
const LONGEST_NAME: usize = 40;

/// What surrounds this process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Container {
    /// `lxc`, `systemd-nspawn`, …
    manager: String,
    /// What the host waits; `None` where it does not tell.
    limit: Option<Duration>,
}

/// Looks whether this is a container.
pub(super) async fn look(config: &Config) -> Vec<Findings> {
    let mut findings = Findings::about("container");
    judge(&mut findings, find(Path::new("/")).await.as_ref(), config);
    one(findings)
}

async fn find(root: &Path) -> Option<Container> {
    let mut manager = NAMES.into_iter().find_map(|name| {
        let text = std::fs::read_to_string(root.join(name)).ok()?;
        let name: String = text.trim().chars().take(LONGEST_NAME).collect();
        (!name.is_empty()).then_some(name)
    });
    for socket in SOCKETS {
        let socket = root.join(socket);
        if socket.exists() {
            let manager = manager.take().unwrap_or_else(|| LXC.to_owned());
            let asked = tokio::time::timeout(PATIENCE, ask(&socket)).await;
            return Some(Container { manager, limit: asked.ok().flatten() });
        }
    }
    manager.map(|manager| Container { manager, limit: None })
}

/// One request of HTTP/1.0: the answer ends with the connection.
async fn ask(socket: &Path) -> Option<Duration> {
    const REQUEST: &[u8] = b"GET /1.0/config/boot.host_shutdown_timeout HTTP/1.0\r\n\
                             Host: incus\r\nConnection: close\r\n\r\n";
    let mut stream = UnixStream::connect(socket).await.ok()?;
    stream.write_all(REQUEST).await.ok()?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let is_good = head.lines().next()?.split(' ').nth(1)? == "200";
    is_good.then(|| body.trim().parse().ok().map(Duration::from_secs))?
}

fn judge(findings: &mut Findings, container: Option<&Container>, config: &Config) {
    const CHECK: &str = "container.shutdown";
    let Some(container) = container else {
        return findings.ok(CHECK, "this is no container");
    };
    let drain = &config.drain;
    let needed = drain.timeout + drain.kill_after + drain.margin;
    let manager = &container.manager;
    let (limit, whose) = match container.limit {
        Some(limit) => (limit, "boot.host_shutdown_timeout is"),
        None if manager == LXC => (USUAL_LIMIT, "boot.host_shutdown_timeout is not told, usually"),
        None => {
            return findings.note(
                CHECK,
                format!("in a container ({manager}), a drain may take {}", show(needed)),
                "when it is stopped from outside, its manager has a limit of its own",
                format!("let it wait for {} at least", show(needed + REST)),
            );
        }
    };
    let found = format!(
        "in a container ({manager}): {whose} {}, a drain may take {}",
        show(limit),
        show(needed)
    );
    if needed + REST > limit {
        findings.warning(
            CHECK,
            found,
            "when the host goes down, it kills what is not gone by then: those tasks count as \
             crashed",
            format!(
                "incus config set INSTANCE boot.host_shutdown_timeout {}, or lower drain.timeout",
                (needed + REST).as_secs()
            ),
        );
    } else {
        findings.ok(CHECK, found);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::super::finding::Level;
    use super::*;
    use crate::config::Environment;

    fn level(manager: &str, limit: Option<u64>, timeout: &str) -> Option<Level> {
        let text = format!("[drain]\ntimeout = {timeout:?}\n[[queue]]\nname = \"q\"\n");
        let config = Config::parse(&text, Path::new("f"), &Environment::default()).expect("good");
        let limit = limit.map(Duration::from_secs);
        let mut findings = Findings::about("container");
        judge(&mut findings, Some(&Container { manager: manager.to_owned(), limit }), &config);
        findings.level("container.shutdown")
    }

    #[test]
    fn a_drain_has_to_fit_into_what_the_host_waits() {
        assert_eq!(level(LXC, None, "25s"), Some(Level::Warning));
        assert_eq!(level(LXC, None, "15s"), Some(Level::Ok));
        assert_eq!(level(LXC, Some(60), "25s"), Some(Level::Ok));
        assert_eq!(level(LXC, Some(39), "25s"), Some(Level::Warning));
        assert_eq!(level("podman", None, "25s"), Some(Level::Note));
    }

    /// A root with the name of a manager and, maybe, the socket of a host that says `answer`.
    async fn found(name: Option<&str>, answer: Option<&'static str>) -> Option<Container> {
        let root = tempfile::tempdir().expect("a temporary folder");
        for folder in ["run/host", "dev/incus"] {
            std::fs::create_dir_all(root.path().join(folder)).expect("make a folder");
        }
        if let Some(name) = name {
            std::fs::write(root.path().join(NAMES[0]), name).expect("write the name");
        }
        let host = answer.map(|answer| {
            let listener = UnixListener::bind(root.path().join(SOCKETS[0])).expect("listen");
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("accept");
                let mut request = [0; 512];
                let count = stream.read(&mut request).expect("read");
                assert!(
                    request[..count].starts_with(b"GET /1.0/config/boot.host_shutdown_timeout ")
                );
                stream.write_all(answer.as_bytes()).expect("answer");
            })
        });
        let found = find(root.path()).await;
        if let Some(host) = host {
            host.join().expect("the host has answered");
        }
        found
    }

    #[tokio::test]
    async fn a_container_is_known_by_its_manager_or_its_socket() {
        let container = |manager: &str, seconds: Option<u64>| {
            let limit = seconds.map(Duration::from_secs);
            Some(Container { manager: manager.to_owned(), limit })
        };
        assert_eq!(found(None, None).await, None);
        assert_eq!(found(Some("lxc\n"), None).await, container("lxc", None));
        let told = "HTTP/1.0 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n120";
        assert_eq!(found(Some("lxc"), Some(told)).await, container("lxc", Some(120)));
        let forbidden = "HTTP/1.0 403 Forbidden\r\n\r\nnot authorized";
        assert_eq!(found(None, Some(forbidden)).await, container("lxc", None));
        assert_eq!(found(None, Some("nonsense")).await, container("lxc", None));
    }
}

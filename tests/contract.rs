//! The wire format against clients that other people write: plain `XADD` from redis-py and
//! redis-cli, and locks shared with redis-py's `Lock`.

mod common;
mod redis_server;

use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use common::redis_py;
use queue_worker::clock::Clock;
use queue_worker::domain::{Delivery, LockKey, QueueName, Task, WorkerId};
use queue_worker::lease::{Acquired, LeaseStore, RedisLeaseOptions, RedisLeases};
use queue_worker::queue::codec::decode;
use queue_worker::queue::{Demand, Queue, RedisQueue, RedisQueueOptions};
use redis_server::RedisServer;

fn python(server: &RedisServer, script: &str) -> String {
    let output = Command::new("python3")
        .env("PYTHONPATH", redis_py())
        .args(["-c", script, &server.port.to_string()])
        .output()
        .expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

async fn fetch(server: &RedisServer, queue: &str) -> Vec<Delivery> {
    let options = RedisQueueOptions::new(server.target(), WorkerId::random());
    let demand = Demand { entries: 100, bytes: usize::MAX };
    let name = QueueName::new(queue).expect("a queue name");
    RedisQueue::new(options).fetch(&name, demand, Duration::ZERO).await.expect("fetched")
}

async fn tasks(server: &RedisServer, queue: &str) -> Vec<Task> {
    let deliveries = fetch(server, queue).await;
    deliveries.iter().map(|one| decode(one, 1 << 20).expect("well-formed")).collect()
}

#[tokio::test]
async fn what_redis_py_adds_is_what_we_read() {
    let server = RedisServer::start();
    python(
        &server,
        r#"
import redis, sys
r = redis.Redis(port=int(sys.argv[1]))
r.xadd("qw:{mail}:tasks", {
    "task_id": "ünique-1", "kind": "send", "payload": bytes(range(256)) * 3,
    "lock_key": "repo:a/b", "max_attempts": 7, "timeout_ms": 1500,
    "not_before_ms": 1700000000000, "version": 1, "x-extra": b"\x00\xff",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
})
r.xadd("qw:{mail}:tasks", {"task_id": "2", "kind": "send", "payload": ""})
"#,
    );
    let tasks = tasks(&server, "mail").await;
    let binary: Bytes = (0..3).flat_map(|_| 0..=255u8).collect();
    assert_eq!(tasks[0].id.as_str(), "ünique-1");
    assert_eq!(tasks[0].kind.as_str(), "send");
    assert_eq!(tasks[0].payload, binary);
    assert_eq!(tasks[0].lock_key.as_ref().map(LockKey::as_str), Some("repo:a/b"));
    assert_eq!(tasks[0].max_attempts, Some(7));
    assert_eq!(tasks[0].timeout, Some(Duration::from_millis(1500)));
    assert_eq!(tasks[0].not_before_ms, Some(1_700_000_000_000));
    assert!(tasks[0].traceparent.as_ref().is_some_and(|trace| trace.starts_with("00-4bf9")));
    assert!(tasks[1].payload.is_empty() && tasks[1].lock_key.is_none());
}

#[tokio::test]
async fn what_redis_cli_adds_is_what_we_read() {
    let server = RedisServer::start();
    let status = Command::new("redis-cli")
        .args(["-p", &server.port.to_string(), "XADD", "qw:{cli}:tasks", "*", "task_id", "c1"])
        .args(["kind", "k", "payload", r#"{"a": "b c"}"#])
        .stdout(std::process::Stdio::null())
        .status()
        .expect("redis-cli comes with redis-server");
    assert!(status.success());
    let tasks = tasks(&server, "cli").await;
    assert_eq!(&tasks[0].payload[..], br#"{"a": "b c"}"#);
}

/// Node has no Redis client of its own, so this writes the protocol itself, as a small one would.
#[tokio::test]
async fn what_node_adds_is_what_we_read() {
    if Command::new("node").arg("--version").output().is_err() {
        eprintln!("node is not installed: nothing to check");
        return;
    }
    let server = RedisServer::start();
    let script = r#"
const socket = require("net").connect(Number(process.argv[1]), "127.0.0.1");
const args = ["XADD", "qw:{node}:tasks", "*", "task_id", "n1", "kind", "k", "payload",
  Buffer.from([0, 255, 13, 10, 128])].map((arg) => Buffer.from(arg));
socket.write(`*${args.length}\r\n`);
for (const arg of args) {
  socket.write(Buffer.concat([Buffer.from(`$${arg.length}\r\n`), arg, Buffer.from("\r\n")]));
}
socket.once("data", () => socket.end());
"#;
    let status = Command::new("node")
        .args(["-e", script, &server.port.to_string()])
        .status()
        .expect("node runs");
    assert!(status.success());
    assert_eq!(&tasks(&server, "node").await[0].payload[..], [0, 255, 13, 10, 128]);
}

#[tokio::test]
async fn locks_are_shared_with_redis_py() {
    let server = RedisServer::start();
    // Longer than Python needs to start, or to be installed what it needs.
    let ttl = Duration::from_secs(300);
    let options =
        RedisLeaseOptions { ttl, ..RedisLeaseOptions::new(server.target(), Clock::System) };
    let leases = RedisLeases::new(options);
    let Ok(Acquired::Granted(lock)) = leases.acquire("shared").await else { panic!("not granted") };
    let tried = python(
        &server,
        r#"
import redis, sys
r = redis.Redis(port=int(sys.argv[1]))
print(r.lock("shared", timeout=30, blocking=False).acquire(), r.get("shared").decode())
"#,
    );
    assert_eq!(tried.trim(), format!("False {}", lock.token));
    leases.release(&lock).await.expect("released");
    python(
        &server,
        r#"
import redis, sys
assert redis.Redis(port=int(sys.argv[1])).lock("shared", timeout=600, blocking=False).acquire()
"#,
    );
    match leases.acquire("shared").await.expect("an answer") {
        Acquired::Taken { remaining } => assert!(remaining > ttl),
        Acquired::Granted(_) => panic!("redis-py holds it"),
    }
    leases.release(&lock).await.expect("no error");
    assert_eq!(server.run::<u64>("EXISTS shared"), 1);
}

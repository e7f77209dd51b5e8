//! A master, a replica and three Sentinels, and what the tests ask of them.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use queue_worker::private_servers::{AppendFsync, RedisOptions, RedisServer};
use redis::Value;

use super::FAILOVER_LIMIT;
use super::common::{GROUP, STREAM, wait_for};
use super::redis_server::free_port;

pub(crate) const PASSWORD: &str = "sesame";
const SENTINELS: usize = 3;

pub(crate) struct Watched {
    servers: [RedisServer; 2],
    sentinels: Vec<Sentinel>,
    /// Which server is the master.
    master: usize,
}

/// One Sentinel; killed when dropped.
struct Sentinel {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Watched {
    /// All of them, when the Sentinels know each other and the replica.
    pub(crate) async fn start() -> Self {
        let options = |extra: Vec<(String, String)>| RedisOptions {
            append_only: Some(AppendFsync::Always),
            password: Some(PASSWORD.to_owned()),
            extra: [("masterauth".to_owned(), PASSWORD.to_owned())]
                .into_iter()
                .chain([("repl-diskless-sync-delay".to_owned(), "0".to_owned())])
                .chain(extra)
                .collect(),
            ..RedisOptions::default()
        };
        let first = RedisServer::start(options(Vec::new())).await.expect("start the master");
        let of = ("replicaof".to_owned(), format!("127.0.0.1 {}", first.port()));
        let second = RedisServer::start(options(vec![of])).await.expect("start the replica");
        let watched = Self {
            sentinels: (0..SENTINELS).map(|_| Sentinel::start(first.port())).collect(),
            servers: [first, second],
            master: 0,
        };
        watched.until_known().await;
        watched
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port)).collect();
        format!("redis+sentinel://:{PASSWORD}@{}/main", hosts.join(","))
    }

    pub(crate) fn master(&self) -> u16 {
        self.servers[self.master].port()
    }

    /// SIGKILL.
    pub(crate) fn kill_master(&mut self) {
        self.servers[self.master].kill();
        self.master = 1 - self.master;
    }

    pub(crate) async fn restart_old_master(&mut self) {
        self.servers[1 - self.master].restart().await.expect("restart the old master");
        self.until_known().await;
        self.until_replicated().await;
    }

    /// Waits until all Sentinels name another master than `before`.
    pub(crate) async fn until_failed_over(&self, before: u16) -> u16 {
        let deadline = tokio::time::Instant::now() + FAILOVER_LIMIT;
        loop {
            let mut named = Vec::new();
            for sentinel in &self.sentinels {
                named.push(sentinel.names().await);
            }
            if let Some(Some(port)) = named.first().copied()
                && port != before
                && named.iter().all(|other| *other == Some(port))
            {
                return port;
            }
            assert!(tokio::time::Instant::now() < deadline, "no failover: {named:?}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// A failover by command: the old master lives on as a replica.
    pub(crate) async fn fail_over_in_order(&self, before: u16) -> u16 {
        wait_for("the sentinels to begin a failover", async || {
            let answer = self.sentinels[0].query(&["SENTINEL", "FAILOVER", "main"]).await;
            matches!(answer, Some(Value::Okay))
        })
        .await;
        self.until_failed_over(before).await
    }

    /// The server that is not the master.
    pub(crate) fn replica(&self) -> u16 {
        self.servers[1 - self.master].port()
    }

    /// From now on the Sentinels cannot make a replica of the master: after a failover it goes on
    /// taking writes, and nobody closes its connections.
    pub(crate) async fn forbid_demotion(&self) {
        let words = ["ACL", "SETUSER", "default", "-slaveof", "-replicaof"];
        assert_eq!(self.on_master(&words).await, Some(Value::Okay));
    }

    /// Kills all Sentinels but one, which names the server on `port` from then on.
    pub(crate) async fn leave_one_sentinel_that_names(&mut self, port: u16) {
        self.sentinels.truncate(1);
        let last = &self.sentinels[0];
        let port = port.to_string();
        for words in [
            &["SENTINEL", "REMOVE", "main"][..],
            &["SENTINEL", "MONITOR", "main", "127.0.0.1", &port, "1"],
            &["SENTINEL", "SET", "main", "auth-pass", PASSWORD],
        ] {
            assert_eq!(last.query(words).await, Some(Value::Okay), "{words:?}");
        }
    }

    /// Whether the server on `port` has the key.
    pub(crate) async fn has_key(port: u16, key: &str) -> bool {
        ask(port, &["EXISTS", key]).await == Some(Value::Int(1))
    }

    /// Waits until the replica has confirmed all writes.
    pub(crate) async fn until_replicated(&self) {
        wait_for("the replica to have everything", async || {
            self.on_master(&["WAIT", "1", "100"]).await == Some(Value::Int(1))
        })
        .await;
    }

    /// Adds a task, on the master.
    pub(crate) async fn task(&self, id: &str, kind: &str, payload: &str) {
        let words = ["XADD", STREAM, "*", "task_id", id, "kind", kind, "payload", payload];
        wait_for("the master to take a task", async || self.on_any_master(&words).await.is_some())
            .await;
    }

    pub(crate) async fn until_empty(&self) {
        wait_for("the stream to be empty", async || {
            let length = self.on_any_master(&["XLEN", STREAM]).await;
            let pending = self.on_any_master(&["XPENDING", STREAM, GROUP]).await;
            let none =
                matches!(&pending, Some(Value::Array(all)) if all.first() == Some(&Value::Int(0)));
            length == Some(Value::Int(0)) && none
        })
        .await;
    }

    pub(crate) async fn locks(&self) -> Vec<Value> {
        match self.on_any_master(&["KEYS", "lock:*"]).await {
            Some(Value::Array(keys)) => keys,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn run_on_master(&self, command: &str, words: &[&str]) -> Value {
        let all: Vec<&str> = [command].iter().chain(words).copied().collect();
        self.on_any_master(&all).await.expect("an answer")
    }

    async fn on_master(&self, words: &[&str]) -> Option<Value> {
        ask(self.master(), words).await
    }

    /// On the server that takes writes, whichever it is.
    async fn on_any_master(&self, words: &[&str]) -> Option<Value> {
        for server in &self.servers {
            let Some(Value::Array(role)) = ask(server.port(), &["ROLE"]).await else { continue };
            if role.first() == Some(&Value::BulkString(b"master".to_vec())) {
                return ask(server.port(), words).await;
            }
        }
        None
    }

    async fn until_known(&self) {
        wait_for("the sentinels to know each other and a replica that is up", async || {
            for sentinel in &self.sentinels {
                if !sentinel.is_ready().await {
                    return false;
                }
            }
            true
        })
        .await;
    }
}

impl Sentinel {
    fn start(master: u16) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = free_port();
        let text = format!(
            "port {port}\nbind 127.0.0.1\nrequirepass {PASSWORD}\nsentinel sentinel-pass {PASSWORD}\n\
             sentinel monitor main 127.0.0.1 {master} 2\n\
             sentinel auth-pass main {PASSWORD}\n\
             sentinel down-after-milliseconds main 500\n\
             sentinel failover-timeout main 3000\n"
        );
        let child = spawn(folder.path(), &text);
        Self { child, port, _folder: folder }
    }

    async fn query(&self, words: &[&str]) -> Option<Value> {
        ask(self.port, words).await
    }

    /// The port of the master that it names.
    async fn names(&self) -> Option<u16> {
        let answer = self.query(&["SENTINEL", "get-master-addr-by-name", "main"]).await?;
        let (_, port): (String, u16) = redis::from_redis_value(answer).ok()?;
        Some(port)
    }

    async fn is_ready(&self) -> bool {
        let Some(answer) = self.query(&["SENTINEL", "master", "main"]).await else { return false };
        let Ok(fields) =
            redis::from_redis_value::<std::collections::HashMap<String, String>>(answer)
        else {
            return false;
        };
        let is = |name: &str, value: &str| fields.get(name).is_some_and(|found| found == value);
        if !(is("num-other-sentinels", "2") && is("num-slaves", "1") && is("flags", "master")) {
            return false;
        }
        let Some(Value::Array(replicas)) = self.query(&["SENTINEL", "replicas", "main"]).await
        else {
            return false;
        };
        replicas.into_iter().all(|replica| {
            redis::from_redis_value::<std::collections::HashMap<String, String>>(replica).is_ok_and(
                |fields| {
                    fields.get("flags").is_some_and(|flags| flags == "slave")
                        && fields.get("master-link-status").is_some_and(|link| link == "ok")
                },
            )
        })
    }
}

fn spawn(folder: &Path, text: &str) -> Child {
    let file = folder.join("sentinel.conf");
    std::fs::write(&file, text).expect("write the configuration");
    Command::new("redis-server")
        .arg(&file)
        .arg("--sentinel")
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed")
}

/// One command on a connection of its own, logged in; `None` if that goes wrong.
async fn ask(port: u16, words: &[&str]) -> Option<Value> {
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{port}");
    let client = redis::Client::open(url).expect("a url");
    let mut connection = client.get_multiplexed_async_connection().await.ok()?;
    let mut cmd = redis::cmd(words[0]);
    cmd.arg(&words[1..]);
    cmd.query_async(&mut connection).await.ok()
}

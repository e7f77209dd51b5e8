//! The same locks as another ecosystem's Redlock: the npm packages `redlock` and `ioredis`.
//!
//! They are installed once into the target directory. Where there is no npm, these tests say so and
//! check nothing.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use queue_worker::lease::{Acquired, LeaseStore};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::cluster::{Cluster, granted, taken};
use super::redis_server::RedisServer;

const PACKAGES: [&str; 2] = ["redlock@4.2.0", "ioredis@5.11.1"];

/// Locks that each side takes while both contend.
const ROUNDS: usize = 100;

/// The directory that has the packages; `None` where there is no npm. Installed beside and renamed,
/// so that tests that run at the same time do not see half of it.
async fn packages() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let home = target.join("node-redlock");
    if home.join("node_modules").is_dir() {
        return Some(home);
    }
    if Command::new("npm").arg("--version").output().await.is_err() {
        eprintln!("NOT TESTED: npm is not installed, so locks are not tried against node-redlock");
        return None;
    }
    let fresh = tempfile::tempdir_in(target).expect("a directory");
    let npm = Command::new("npm")
        .args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"])
        .arg(fresh.path())
        .args(PACKAGES)
        .output()
        .await
        .expect("npm");
    assert!(
        npm.status.success(),
        "this test needs npm to install {PACKAGES:?}: {}",
        String::from_utf8_lossy(&npm.stderr)
    );
    if std::fs::rename(fresh.path(), &home).is_err() {
        assert!(home.join("node_modules").is_dir(), "the packages are not where they were put");
    }
    Some(home)
}

/// The other client, on the same nodes.
struct NodeRedlock {
    _process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl NodeRedlock {
    async fn start(cluster: &Cluster) -> Option<Self> {
        let home = packages().await?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redlock/redlock.js");
        let mut process = Command::new("node")
            .env("NODE_PATH", home.join("node_modules"))
            .arg(script)
            .args(cluster.nodes.iter().map(|node| node.port.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("node comes with npm");
        let orders = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped")).lines();
        Some(Self { _process: process, orders, answers })
    }

    async fn ask(&mut self, order: &str) -> String {
        self.orders.write_all(format!("{order}\n").as_bytes()).await.expect("node listens");
        let answer = tokio::time::timeout(Duration::from_secs(120), self.answers.next_line());
        answer.await.expect("in time").expect("text").expect("an answer")
    }
}

#[tokio::test]
async fn what_node_redlock_holds_is_taken_for_us() {
    let cluster = Cluster::start().await;
    let Some(mut node) = NodeRedlock::start(&cluster).await else { return };
    let store = cluster.store();
    let answer = node.ask("lock k 30000").await;
    let token = answer.strip_prefix("granted ").expect("granted").to_owned();
    assert!(cluster.values("k").contains(&Some(token)));
    assert!(taken(&store, "k").await > Duration::from_secs(20));
    assert_eq!(node.ask("unlock k").await, "released");
    granted(&store, "k").await;
}

#[tokio::test]
async fn what_we_hold_is_taken_for_node_redlock() {
    let cluster = Cluster::start().await;
    let Some(mut node) = NodeRedlock::start(&cluster).await else { return };
    let store = cluster.store();
    let lock = granted(&store, "k").await;
    cluster.run_all("PEXPIRE k 60000");
    assert_eq!(node.ask("lock k 30000").await, "failed");
    store.release(&lock).await.expect("released");
    assert!(node.ask("lock k 30000").await.starts_with("granted "));
    // Ours is over: neither a release nor a renewal of it touches theirs.
    store.release(&lock).await.expect("no error");
    store.renew(std::slice::from_ref(&lock)).await.expect("answers");
    assert_eq!(node.ask("unlock k").await, "released");
}

#[tokio::test]
async fn we_and_node_redlock_never_hold_the_same_lock() {
    let cluster = Cluster::start().await;
    let Some(mut node) = NodeRedlock::start(&cluster).await else { return };
    let guard = RedisServer::start();
    let store = cluster.store();
    let ours = async {
        let client = redis::Client::open(guard.url()).expect("a url");
        let mut connection = client.get_multiplexed_async_connection().await.expect("connected");
        let (mut rounds, mut overlaps) = (0, 0);
        while rounds < ROUNDS {
            let Ok(Acquired::Granted(lock)) = store.acquire("k").await else {
                tokio::time::sleep(Duration::from_millis(20).mul_f64(rand::random())).await;
                continue;
            };
            let mut set = redis::cmd("SET");
            set.arg(&["guard", "we", "PX", "60000", "NX"]);
            let alone: Option<String> = set.query_async(&mut connection).await.expect("an answer");
            overlaps += usize::from(alone.is_none());
            tokio::time::sleep(Duration::from_millis(3).mul_f64(rand::random())).await;
            let mut del = redis::cmd("DEL");
            del.arg("guard").query_async::<u64>(&mut connection).await.expect("an answer");
            store.release(&lock).await.expect("released");
            rounds += 1;
            tokio::time::sleep(Duration::from_millis(10).mul_f64(rand::random())).await;
        }
        overlaps
    };
    let order = format!("contend k 1000 {} {ROUNDS}", guard.port);
    let (overlaps, theirs) = tokio::join!(ours, node.ask(&order));
    assert_eq!((overlaps, theirs.as_str()), (0, "overlaps 0"));
}

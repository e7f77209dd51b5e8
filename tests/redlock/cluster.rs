//! Three independent servers, and stores on them.

use std::time::Duration;

use queue_worker::clock::Clock;
use queue_worker::connection::RedisTarget;
use queue_worker::lease::{Acquired, LeaseStore, Lock, QuorumLeaseOptions, QuorumLeases};

use super::common::wait_for;
use super::redis_server::RedisServer;

/// How long locks live here.
pub(crate) const TTL: Duration = Duration::from_secs(1);

pub(crate) struct Cluster {
    pub(crate) nodes: [RedisServer; 3],
}

impl Cluster {
    /// Servers that all vote on locks which live [`TTL`], also for a store that meets them anew.
    pub(crate) async fn start() -> Self {
        let cluster = Self { nodes: std::array::from_fn(|_| RedisServer::start()) };
        wait_for("the nodes to be old enough", async || cluster.nodes.iter().all(is_old_enough))
            .await;
        cluster
    }

    pub(crate) fn targets(&self) -> Vec<RedisTarget> {
        self.nodes.iter().map(RedisServer::target).collect()
    }

    /// Patient with its nodes, since the machine may be busy; times are tested with others.
    pub(crate) fn options(&self) -> QuorumLeaseOptions {
        QuorumLeaseOptions {
            ttl: TTL,
            node_timeout: Duration::from_millis(400),
            ..QuorumLeaseOptions::new(self.targets(), Clock::System)
        }
    }

    pub(crate) fn store(&self) -> QuorumLeases {
        QuorumLeases::new(self.options())
    }

    /// A store with the product's default of 50 ms for a node.
    pub(crate) fn brisk(&self) -> QuorumLeases {
        let node_timeout = Duration::from_millis(50);
        QuorumLeases::new(QuorumLeaseOptions { node_timeout, ..self.options() })
    }

    /// The value of a key on each node.
    pub(crate) fn values(&self, key: &str) -> [Option<String>; 3] {
        self.nodes.each_ref().map(|node| node.run(&format!("GET {key}")))
    }

    /// A command on each node.
    pub(crate) fn run_all(&self, words: &str) {
        for node in &self.nodes {
            node.run::<redis::Value>(words);
        }
    }
}

/// Older than the time to live, the drift, and the second that uptimes are rounded by.
fn is_old_enough(node: &RedisServer) -> bool {
    let info = node.run::<String>("INFO server");
    let uptime = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
    uptime.and_then(|seconds| seconds.trim().parse::<u64>().ok()).is_some_and(|age| age >= 3)
}

/// Waits until a node has carried out a SET, and as many deletions as settings since its statistics
/// were reset: sooner than any time to live.
pub(crate) async fn set_and_undone(node: &RedisServer) {
    let calls = |stats: &str, command: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(command));
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    wait_for("what was set to be deleted", async || {
        let stats = node.run::<String>("INFO commandstats");
        let set = calls(&stats, "cmdstat_set:calls=");
        set > 0 && set == calls(&stats, "cmdstat_del:calls=")
    })
    .await;
}

/// Waits until a majority of the store's nodes votes.
pub(crate) async fn voting(store: &impl LeaseStore) {
    wait_for("the nodes to vote", async || store.check().await.is_ok()).await;
}

pub(crate) async fn granted(store: &impl LeaseStore, name: &str) -> Lock {
    match store.acquire(name).await.expect("an answer") {
        Acquired::Granted(lock) => lock,
        Acquired::Taken { remaining } => panic!("{name} is taken for {remaining:?}"),
    }
}

pub(crate) async fn taken(store: &impl LeaseStore, name: &str) -> Duration {
    match store.acquire(name).await.expect("an answer") {
        Acquired::Taken { remaining } => remaining,
        Acquired::Granted(_) => panic!("{name} was granted"),
    }
}

//! Who gets a lock, and what a renewal does to it.

use std::time::Duration;

use futures_util::future::join_all;
use queue_worker::clock::Clock;
use queue_worker::lease::{
    Acquired, LeaseError, LeaseStore, QuorumLeaseOptions, QuorumLeases, Renewal,
};

use super::cluster::{Cluster, TTL, granted, set_and_undone, taken, voting};
use super::redis_server::{RedisServer, eventually};

#[tokio::test]
async fn a_lock_is_on_every_node_and_granted_once() {
    let cluster = Cluster::start().await;
    let (ours, other) = (cluster.store(), cluster.store());
    let before = Clock::System.now();
    let lock = granted(&ours, "k").await;
    let validity = lock.valid_until.saturating_since(before);
    assert!(validity < TTL, "{validity:?}");
    let token = Some(lock.token.to_string());
    eventually("the lock is on all nodes", || {
        cluster.values("k").iter().all(|value| *value == token)
    })
    .await;
    assert!(taken(&other, "k").await <= TTL);
    ours.release(&lock).await.expect("released");
    assert_eq!(cluster.values("k"), [const { None }; 3]);
    granted(&other, "k").await;
}

#[tokio::test]
async fn of_two_crowds_one_wins_each_lock() {
    let cluster = Cluster::start().await;
    let stores = [cluster.store(), cluster.store()];
    let names: Vec<String> = (0..300).map(|n| format!("k{n}")).collect();
    let calls = stores.iter().flat_map(|store| names.iter().map(|name| store.acquire(name)));
    let answers = join_all(calls).await;
    let won = |at: &usize| matches!(answers[*at], Ok(Acquired::Granted(_)));
    for at in 0..300 {
        let winners = [at, at + 300].iter().filter(|at| won(at)).count();
        assert_eq!(winners, 1, "{} of {:?}", names[at], (&answers[at], &answers[at + 300]));
    }
}

#[tokio::test]
async fn votes_that_rivals_split_are_given_back_and_tried_again() {
    let cluster = Cluster::start().await;
    let store = cluster.store();
    cluster.nodes[1].run::<()>("SET k one PX 60000");
    cluster.nodes[2].run::<()>("SET k two PX 60000");
    assert!(taken(&store, "k").await > Duration::from_secs(50));
    set_and_undone(&cluster.nodes[0]).await;
    cluster.nodes[1].run::<()>("PEXPIRE k 60");
    granted(&store, "k").await;
}

#[tokio::test]
async fn a_lock_that_a_rival_has_is_not_waited_for() {
    let cluster = Cluster::start().await;
    let patient = QuorumLeaseOptions {
        retry: queue_worker::protocol::quorum::Retry {
            count: 100,
            delay: Duration::from_secs(60),
            jitter: Duration::ZERO,
        },
        ..cluster.options()
    };
    let store = QuorumLeases::new(patient);
    cluster.nodes[0].run::<()>("SET k rival PX 30000");
    cluster.nodes[2].run::<()>("SET k rival PX 30000");
    let remaining = taken(&store, "k").await;
    assert!((25..=30).contains(&remaining.as_secs()), "{remaining:?}");
    set_and_undone(&cluster.nodes[1]).await;
}

#[tokio::test]
async fn a_renewal_spreads_the_lock_again() {
    let cluster = Cluster::start().await;
    let (store, heartbeat) = (cluster.store(), cluster.store());
    let lock = granted(&store, "k").await;
    cluster.nodes[1].run::<()>("DEL k");
    cluster.nodes[2].run::<()>("PEXPIRE k 600");
    let renewed = heartbeat.renew(std::slice::from_ref(&lock)).await.expect("answers");
    assert_eq!(renewed, [Renewal::Renewed]);
    let token = Some(lock.token.to_string());
    assert!(cluster.values("k").iter().all(|value| *value == token));
    assert!(cluster.nodes[2].run::<i64>("PTTL k") > 600);
    cluster.run_all("DEL k");
    assert_eq!(heartbeat.renew(&[lock]).await.expect("answers"), [Renewal::Renewed]);
}

#[tokio::test]
async fn only_a_majority_takes_a_lock_away_and_nothing_is_released() {
    let mut cluster = Cluster::start().await;
    let store = cluster.store();
    let lock = granted(&store, "k").await;
    let renew = async || store.renew(std::slice::from_ref(&lock)).await.expect("answers");
    cluster.run_all("PEXPIRE k 60000");
    cluster.nodes[1].run::<()>("SET k rival PX 60000");
    assert_eq!(renew().await, [Renewal::Renewed]);
    cluster.nodes[2].run::<()>("SET k rival PX 60000");
    assert_eq!(renew().await, [Renewal::Foreign]);
    assert_eq!(cluster.values("k")[0], Some(lock.token.to_string()));
    cluster.nodes[1].kill();
    assert_eq!(renew().await, [Renewal::Unconfirmed]);
    let ours: Option<String> = cluster.nodes[0].run("GET k");
    assert_eq!(ours, Some(lock.token.to_string()));
}

#[tokio::test]
async fn what_is_wrong_with_a_node_is_told_with_its_name() {
    let nodes: [RedisServer; 3] =
        std::array::from_fn(|_| RedisServer::with(&["--requirepass", "sesame"], Some("sesame")));
    let target = |node: &RedisServer| {
        queue_worker::connection::RedisTarget::parse(&node.url(), None, None).expect("a good url")
    };
    let targets = vec![nodes[0].target(), target(&nodes[1]), target(&nodes[2])];
    let store = QuorumLeases::new(QuorumLeaseOptions::new(targets, Clock::System));
    let error = store.check().await.expect_err("two refuse us").to_string();
    let address = format!("127.0.0.1:{}", nodes[1].port);
    assert!(error.contains(&address) && error.contains("`lease.password_file`"), "{error}");
    assert!(error.contains("has no vote yet"), "the third is young: {error}");
    let error = store.acquire("k").await.expect_err("no quorum");
    assert!(matches!(&error, LeaseError::NoQuorum { away, .. } if away.len() >= 2), "{error}");

    let targets = nodes.iter().map(RedisServer::target).collect();
    let store = QuorumLeases::new(QuorumLeaseOptions {
        ttl: TTL,
        ..QuorumLeaseOptions::new(targets, Clock::System)
    });
    voting(&store).await;
    granted(&store, "k").await;
}

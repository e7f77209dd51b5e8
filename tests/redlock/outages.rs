//! Nodes that are dead, paused, unreachable or forgetful.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use queue_worker::clock::Clock;
use queue_worker::connection::RedisTarget;
use queue_worker::lease::{Acquired, LeaseError, LeaseStore, QuorumLeaseOptions, QuorumLeases};
use queue_worker::protocol::quorum::Retry;
use tokio::time::Instant;

use super::cluster::{Cluster, granted, set_and_undone, taken, voting};
use super::common::{TcpProxy, wait_for};

/// What scenario 21 allows.
const LIMIT: Duration = Duration::from_millis(200);

/// Takes and gives back locks, none of which may take long; answers the slowest.
async fn brisk_locks(store: &QuorumLeases, count: usize) -> Duration {
    let mut slowest = Duration::ZERO;
    for n in 0..count {
        let since = Instant::now();
        let lock = granted(store, &format!("k{n}")).await;
        let took = since.elapsed();
        assert!(took < LIMIT, "lock {n} took {took:?}");
        slowest = slowest.max(took);
        store.renew(std::slice::from_ref(&lock)).await.expect("a majority renews");
        store.release(&lock).await.expect("a majority releases");
    }
    slowest
}

#[tokio::test]
async fn scenario_21_a_paused_node_slows_nobody() {
    let cluster = Cluster::start().await;
    let (known, new) = (cluster.brisk(), cluster.brisk());
    granted(&known, "first").await;
    cluster.nodes[1].stop();
    brisk_locks(&known, 20).await;
    brisk_locks(&new, 20).await;
    cluster.nodes[1].cont();
    wait_for("what came late to be undone", async || cluster.nodes[1].run::<u64>("DBSIZE") == 0)
        .await;
    brisk_locks(&known, 5).await;
}

#[tokio::test]
async fn a_dead_node_slows_nobody() {
    let mut cluster = Cluster::start().await;
    let store = cluster.brisk();
    granted(&store, "first").await;
    cluster.nodes[2].kill();
    brisk_locks(&store, 20).await;
    brisk_locks(&cluster.brisk(), 5).await;
}

/// A port that lets nobody connect and refuses nobody: its queue of connections is full.
fn blackhole() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    rustix::net::listen(&listener, 0).expect("a short queue");
    let address = listener.local_addr().expect("its address");
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(100));
    (listener, std::iter::repeat_with(connect).map_while(Result::ok).collect())
}

#[tokio::test]
async fn a_node_that_cannot_be_reached_slows_nobody() {
    let cluster = Cluster::start().await;
    let (hole, _queue) = blackhole();
    let SocketAddr::V4(address) = hole.local_addr().expect("its address") else { panic!("v4") };
    let mut targets = cluster.targets();
    targets[0] = RedisTarget::parse(&format!("redis://{address}"), None, None).expect("a url");
    let store = QuorumLeases::new(QuorumLeaseOptions { targets, ..cluster.options() });
    let since = Instant::now();
    store.check().await.expect("two suffice");
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    let brisk = Duration::from_millis(50);
    let mut targets = cluster.targets();
    targets[0] = RedisTarget::parse(&format!("redis://{address}"), None, None).expect("a url");
    let options = QuorumLeaseOptions { targets, node_timeout: brisk, ..cluster.options() };
    brisk_locks(&QuorumLeases::new(options), 20).await;
}

#[tokio::test]
async fn a_late_answer_to_a_lost_attempt_is_undone() {
    let cluster = Cluster::start().await;
    let store = cluster.brisk();
    let first = granted(&store, "first").await;
    store.release(&first).await.expect("released");
    for node in &cluster.nodes[..2] {
        node.run::<()>("SET k rival PX 60000");
    }
    cluster.nodes[2].run::<()>("CONFIG RESETSTAT");
    cluster.nodes[2].stop();
    taken(&store, "k").await;
    cluster.nodes[2].cont();
    set_and_undone(&cluster.nodes[2]).await;
    assert_eq!(cluster.values("k")[2], None);
}

#[tokio::test]
async fn a_late_answer_after_the_release_is_undone() {
    let cluster = Cluster::start().await;
    let store = cluster.brisk();
    let first = granted(&store, "first").await;
    store.release(&first).await.expect("released");
    cluster.nodes[2].run::<()>("CONFIG RESETSTAT");
    cluster.nodes[2].stop();
    let lock = granted(&store, "k").await;
    store.release(&lock).await.expect("released");
    cluster.nodes[2].cont();
    set_and_undone(&cluster.nodes[2]).await;
    assert_eq!(cluster.values("k"), [const { None }; 3]);
}

#[tokio::test]
async fn scenario_20_no_lock_is_granted_with_a_spent_validity() {
    let cluster = Cluster::start().await;
    let holder = QuorumLeases::new(QuorumLeaseOptions {
        ttl: Duration::from_millis(1_200),
        ..cluster.options()
    });
    voting(&holder).await;
    let contender = cluster.store();
    let held = granted(&holder, "k").await;
    let lock = loop {
        if let Acquired::Granted(lock) = contender.acquire("k").await.expect("an answer") {
            break lock;
        }
    };
    let now = Clock::System.now();
    let left = lock.valid_until.saturating_since(now);
    assert!(left > Duration::ZERO, "granted with nothing left");
    let lives = |node: &super::redis_server::RedisServer| {
        let ms = node.run::<i64>("PTTL k");
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    };
    let on = cluster.nodes.iter().filter(|node| lives(node) > Duration::ZERO).count();
    assert!(on >= 2, "the lock is on {on} nodes");
    assert!(held.valid_until <= now, "both were valid at once");
}

#[tokio::test]
async fn scenario_20_slow_answers_use_up_the_validity() {
    let cluster = Cluster::start().await;
    let mut proxies = Vec::new();
    for node in &cluster.nodes {
        proxies.push(TcpProxy::start(node.port).await);
    }
    let url = |proxy: &TcpProxy| format!("redis://127.0.0.1:{}", proxy.port());
    let target = |proxy| RedisTarget::parse(&url(proxy), None, None).expect("a url");
    let store = QuorumLeases::new(QuorumLeaseOptions {
        ttl: Duration::from_millis(300),
        node_timeout: Duration::from_secs(2),
        retry: Retry { count: 1, delay: Duration::from_millis(1), jitter: Duration::ZERO },
        ..QuorumLeaseOptions::new(proxies.iter().map(target).collect(), Clock::System)
    });
    voting(&store).await;
    for proxy in &proxies {
        proxy.delay(Duration::from_millis(400));
    }
    let error = store.acquire("k").await.expect_err("late");
    assert!(matches!(error, LeaseError::Spent { .. }), "{error}");
    assert_eq!(cluster.values("k"), [const { None }; 3]);
    for proxy in &proxies {
        proxy.forward();
    }
    granted(&store, "k").await;
}

#[tokio::test]
async fn a_minority_fails_fast_and_says_who_is_away() {
    let mut cluster = Cluster::start().await;
    let store = cluster.brisk();
    let lock = granted(&store, "k").await;
    cluster.nodes[0].kill();
    cluster.nodes[2].stop();
    cluster.nodes[1].run::<()>("CONFIG RESETSTAT");
    for _ in 0..10 {
        let since = Instant::now();
        let error = store.acquire("other").await.expect_err("no majority");
        assert!(since.elapsed() < LIMIT, "{:?}", since.elapsed());
        let (first, third) = (cluster.nodes[0].port, cluster.nodes[2].port);
        let error = error.to_string();
        assert!(
            error.contains(&first.to_string()) && error.contains(&third.to_string()),
            "{error}"
        );
        assert!(error.starts_with("2 of 3 lock nodes away, 2 must answer"), "{error}");
    }
    store.renew(std::slice::from_ref(&lock)).await.expect_err("no majority");
    store.check().await.expect_err("no majority");
    set_and_undone(&cluster.nodes[1]).await;
    cluster.nodes[2].cont();
    voting(&store).await;
    granted(&store, "other").await;
}

#[tokio::test]
async fn a_restarted_node_has_no_vote_until_what_it_forgot_has_ended() {
    let mut cluster = Cluster::start().await;
    let (holder, rival) = (cluster.store(), cluster.store());
    granted(&rival, "first").await;
    cluster.nodes[2].stop();
    let held = granted(&holder, "k").await;
    cluster.nodes[2].cont();
    cluster.nodes[2].run::<()>("FLUSHALL");
    cluster.nodes[1].kill();
    assert!(cluster.nodes[1].launch(), "the node starts again");
    // Two of three nodes know nothing of the lock now, but one of these has no vote.
    for store in [&rival, &cluster.store()] {
        let answer = store.acquire("k").await;
        assert!(!matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
    }
    wait_for("the lock to end", async || {
        let granted = matches!(rival.acquire("k").await, Ok(Acquired::Granted(_)));
        assert!(!granted || held.valid_until <= Clock::System.now(), "both were valid at once");
        granted
    })
    .await;
}

#[tokio::test]
async fn connections_that_the_servers_close_are_replaced_at_once() {
    let cluster = Cluster::start().await;
    let store = cluster.store();
    for _ in 0..10 {
        let lock = granted(&store, "k").await;
        for node in &cluster.nodes {
            node.run::<u64>("CLIENT KILL TYPE normal");
        }
        store.release(&lock).await.expect("released");
        cluster.run_all("SCRIPT FLUSH");
    }
    assert_eq!(cluster.values("k"), [const { None }; 3]);
}

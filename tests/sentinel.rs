//! A Redis that Sentinels watch: real servers, real failovers, the real program.
//!
//! The private servers are a master, a replica and three Sentinels, all with a password.

#![cfg(feature = "sentinel")]

mod common;
mod redis_server;

#[path = "sentinel/watched.rs"]
mod watched;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use common::{Scene, wait_for};
use queue_worker::clock::Clock;
use queue_worker::connection::{RedisError, RedisLink, RedisTarget};
use queue_worker::lease::{Acquired, LeaseStore, QuorumLeaseOptions, QuorumLeases};
use redis_server::RedisServer;
use tokio::time::Instant;
use watched::{PASSWORD, Watched};

/// The worker looks every other second, and a read may be blocked meanwhile.
const BACK_WITHIN: Duration = Duration::from_secs(8);

/// How often a heartbeat uses its connection: more rarely than a Sentinel may take to answer.
const HEARTBEAT: Duration = Duration::from_millis(1_500);

/// A master counts as down after half a second here, and the votes take a moment.
const FAILOVER_LIMIT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_worker_follows_the_master_in_the_middle_of_work() {
    let scene = Scene::start().await;
    let mut watched = Watched::start().await;
    scene.write_config_for(&watched.url(), &scene.database, "");
    let mut worker = scene.worker("a").await;
    watched.task("held", "gate", "").await;
    for n in 0..40 {
        watched.task(&format!("before-{n}"), "sleep", "0.3").await;
    }
    scene.until_journal("held", "start").await;
    // What the replica has confirmed is what Redis keeps.
    watched.until_replicated().await;
    let before = watched.master();
    watched.kill_master();
    let after = watched.until_failed_over(before).await;
    watched.task("after", "effect", "").await;
    scene.until_status("after", "succeeded").await;
    scene.open_gate();
    scene.until_status("held", "succeeded").await;
    for n in 0..40 {
        scene.until_status(&format!("before-{n}"), "succeeded").await;
    }
    watched.until_empty().await;
    let repeated = "SELECT count(*) FROM queue_worker.processed_tasks WHERE attempts > 0";
    assert_eq!(scene.count(repeated).await, 0, "an outage burns no attempt");
    assert_eq!(scene.count("SELECT count(*) FROM effects").await, 1);
    assert!(worker.logged("the sentinels name another master") >= 1, "{}", worker.log());
    assert!(worker.logged("redis is away") <= 2, "{}", worker.log());

    // Back again while the old master lives: for some seconds it goes on taking writes.
    watched.restart_old_master().await;
    watched.fail_over_in_order(after).await;
    let failed_over = Instant::now();
    watched.task("back", "effect", "").await;
    scene.until_status("back", "succeeded").await;
    assert!(failed_over.elapsed() < BACK_WITHIN, "after {:?}", failed_over.elapsed());
    watched.until_empty().await;
    worker.terminate().await;
    assert!(watched.locks().await.is_empty());
}

#[tokio::test]
async fn an_old_master_that_became_a_replica_is_left() {
    let watched = Watched::start().await;
    let target = RedisTarget::parse(&watched.url(), None, None).expect("a url");
    let link = RedisLink::new(target, Duration::from_secs(2));
    let set = || {
        let mut cmd = redis::cmd("SET");
        cmd.arg("k").arg("v");
        cmd
    };
    link.query(&set(), "SET").await.expect("the master takes it");
    let before = watched.master();
    watched.fail_over_in_order(before).await;
    wait_for("a write on the new master", async || link.query(&set(), "SET").await.is_ok()).await;
    assert_eq!(watched.run_on_master("GET", &["k"]).await, redis::Value::BulkString(b"v".to_vec()));
}

#[tokio::test]
async fn a_connection_that_is_used_rarely_leaves_an_old_master_that_lives_on() {
    let watched = Watched::start().await;
    let target = RedisTarget::parse(&watched.url(), None, None).expect("a url");
    let link = RedisLink::new(target, Duration::from_secs(2));
    link.query(&redis::cmd("PING"), "PING").await.expect("the master answers");
    watched.forbid_demotion().await;
    let after = watched.fail_over_in_order(watched.master()).await;
    let until = Instant::now() + FAILOVER_LIMIT;
    let mut beats = tokio::time::interval(HEARTBEAT);
    loop {
        beats.tick().await;
        let connection = link.connection(link.deadline()).await;
        if connection.is_ok_and(|connection| connection.address().ends_with(&after.to_string())) {
            break;
        }
        assert!(Instant::now() < until, "still on the old master");
    }
}

#[tokio::test]
async fn a_minority_of_the_sentinels_takes_no_connection_away() {
    let mut watched = Watched::start().await;
    let stranger = RedisServer::with(&["--requirepass", PASSWORD], Some(PASSWORD));
    let target = RedisTarget::parse(&watched.url(), None, None).expect("a url");
    let link = RedisLink::new(target.clone(), Duration::from_secs(2));
    let before = link.connection(link.deadline()).await.expect("the master answers");
    watched.leave_one_sentinel_that_names(stranger.port).await;
    let other = RedisLink::new(target, Duration::from_secs(2));
    let led = other.connection(other.deadline()).await.expect("the stranger answers");
    assert!(led.address().ends_with(&stranger.port.to_string()), "{}", led.address());
    let kept = link.connection(link.deadline()).await.expect("the connection is there");
    assert!(Arc::ptr_eq(&before, &kept), "moved to {}", kept.address());
    let kept = other.connection(other.deadline()).await.expect("the connection is there");
    assert!(Arc::ptr_eq(&led, &kept), "moved to {}", kept.address());
}

#[tokio::test]
async fn a_lock_node_may_be_watched_by_sentinels() {
    const TTL: Duration = Duration::from_millis(1_500);
    let mut watched = Watched::start().await;
    let mut plain = [RedisServer::start(), RedisServer::start()];
    let node = RedisTarget::parse(&watched.url(), None, None).expect("a url");
    let store = QuorumLeases::new(QuorumLeaseOptions {
        ttl: TTL,
        node_timeout: Duration::from_millis(400),
        ..QuorumLeaseOptions::new(vec![node, plain[0].target(), plain[1].target()], Clock::System)
    });
    let granted = async |name: &str| matches!(store.acquire(name).await, Ok(Acquired::Granted(_)));
    wait_for("the first lock", async || granted("a").await).await;
    let before = watched.master();
    watched.kill_master();
    watched.until_failed_over(before).await;
    plain[0].kill();
    // Without the new master's vote there is no majority.
    wait_for("a lock with the new master's vote", async || granted("b").await).await;
}

#[tokio::test]
async fn an_old_master_that_lives_on_has_no_vote() {
    let watched = Watched::start().await;
    let mut plain = [RedisServer::start(), RedisServer::start()];
    let node = RedisTarget::parse(&watched.url(), None, None).expect("a url");
    let store = QuorumLeases::new(QuorumLeaseOptions {
        ttl: Duration::from_millis(1_500),
        node_timeout: Duration::from_millis(400),
        ..QuorumLeaseOptions::new(vec![node, plain[0].target(), plain[1].target()], Clock::System)
    });
    let granted = async |name: &str| matches!(store.acquire(name).await, Ok(Acquired::Granted(_)));
    wait_for("the first lock", async || granted("first").await).await;
    watched.forbid_demotion().await;
    let (before, after) = (watched.master(), watched.replica());
    watched.fail_over_in_order(before).await;
    // Without the vote of one of the two masters there is no majority.
    plain[0].kill();
    let number = Cell::new(0);
    wait_for("a lock with the new master's vote", async || {
        number.update(|number| number + 1);
        let name = format!("later-{}", number.get());
        granted(&name).await && Watched::has_key(after, &name).await
    })
    .await;
    assert!(granted("last").await);
    assert!(!Watched::has_key(before, "last").await, "the old master has voted");
}

#[tokio::test]
async fn sentinels_that_do_not_know_the_name_are_quoted() {
    let watched = Watched::start().await;
    let url = watched.url().replace("/main", "/other");
    let target = RedisTarget::parse(&url, None, None).expect("a url");
    let link = RedisLink::new(target, Duration::from_secs(2));
    let error = link.query(&redis::cmd("PING"), "PING").await.expect_err("no such master");
    assert!(matches!(error, RedisError::Misconfigured { .. }), "{error}");
    assert!(error.to_string().contains("knows no master named \"other\""), "{error}");
}

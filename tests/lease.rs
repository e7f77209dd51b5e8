//! The lock store against real, private Redis servers.

mod common;
mod redis_server;

use std::time::Duration;

use common::TcpProxy;
use queue_worker::clock::Clock;
use queue_worker::connection::{RedisError, RedisTarget};
use queue_worker::domain::LockToken;
use queue_worker::lease::{
    Acquired, LeaseError, LeaseStore, Lock, RedisLeaseOptions, RedisLeases, Renewal,
};
use redis_server::{RedisServer, eventually};
use tokio::time::Instant;

const TTL: Duration = Duration::from_secs(5);

fn leases(server: &RedisServer) -> RedisLeases {
    RedisLeases::new(RedisLeaseOptions::new(server.target(), Clock::System))
}

fn short_lived(server: &RedisServer, ttl: Duration) -> RedisLeases {
    RedisLeases::new(RedisLeaseOptions {
        ttl,
        ..RedisLeaseOptions::new(server.target(), Clock::System)
    })
}

async fn granted(leases: &RedisLeases, name: &str) -> Lock {
    match leases.acquire(name).await.expect("an answer") {
        Acquired::Granted(lock) => lock,
        Acquired::Taken { remaining } => panic!("{name} is taken for {remaining:?}"),
    }
}

fn value(server: &RedisServer, key: &str) -> Option<String> {
    server.run(&format!("GET {key}"))
}

fn ttl(server: &RedisServer, key: &str) -> i64 {
    server.run(&format!("PTTL {key}"))
}

#[tokio::test]
async fn a_lock_is_granted_once() {
    let server = RedisServer::start();
    let (ours, other) = (leases(&server), leases(&server));
    let before = Clock::System.now();
    let lock = granted(&ours, "lock:task:1").await;
    let validity = lock.valid_until.saturating_since(before);
    assert!((4900..=4949 + 500).contains(&validity.as_millis()), "{validity:?}");
    assert_eq!(value(&server, "lock:task:1"), Some(lock.token.to_string()));
    assert_eq!(lock.token.to_string().len(), 32);
    assert!((4000..=5000).contains(&ttl(&server, "lock:task:1")));
    match other.acquire("lock:task:1").await.expect("an answer") {
        Acquired::Taken { remaining } => assert!(remaining <= TTL && remaining > TTL / 2),
        Acquired::Granted(_) => panic!("granted twice"),
    }
    ours.release(&lock).await.expect("released");
    granted(&other, "lock:task:1").await;
}

#[tokio::test]
async fn of_many_rivals_in_one_group_one_wins() {
    let server = RedisServer::start();
    let leases = leases(&server);
    let names: Vec<String> = (0..600).map(|n| format!("r{}", n % 200)).collect();
    let answers =
        futures_util::future::join_all(names.iter().map(|name| leases.acquire(name))).await;
    let won = answers.iter().filter(|answer| matches!(answer, Ok(Acquired::Granted(_)))).count();
    assert_eq!(won, 200);
    assert!(answers.iter().all(Result::is_ok));
}

#[tokio::test]
async fn release_and_renewal_leave_a_foreign_lock_alone() {
    let server = RedisServer::start();
    let leases = leases(&server);
    let lock = granted(&leases, "k").await;
    server.run::<()>("SET k somebody PX 60000");
    leases.release(&lock).await.expect("no error");
    assert_eq!(
        leases.renew(std::slice::from_ref(&lock)).await.expect("answers"),
        [Renewal::Foreign]
    );
    assert_eq!(value(&server, "k").as_deref(), Some("somebody"));
    assert!(ttl(&server, "k") > 50_000);
}

#[tokio::test]
async fn a_renewal_extends_and_sets_again_what_is_gone() {
    let server = RedisServer::start();
    let leases = leases(&server);
    let (kept, lost) = (granted(&leases, "kept").await, granted(&leases, "lost").await);
    server.run::<()>("PEXPIRE kept 1000");
    server.run::<()>("DEL lost");
    let renewed = leases.renew(&[kept, lost.clone()]).await.expect("answers");
    assert_eq!(renewed, [Renewal::Renewed, Renewal::Renewed]);
    assert!(ttl(&server, "kept") > 4000 && ttl(&server, "lost") > 4000);
    assert_eq!(value(&server, "lost"), Some(lost.token.to_string()));
}

#[tokio::test]
async fn many_locks_are_renewed_in_order() {
    let server = RedisServer::start();
    let leases = leases(&server);
    let mut locks = Vec::new();
    for n in 0..600 {
        locks.push(granted(&leases, &format!("l{n}")).await);
    }
    locks[300].token = LockToken::random();
    let renewed = leases.renew(&locks).await.expect("answers");
    assert_eq!(renewed.len(), 600);
    for (n, renewal) in renewed.into_iter().enumerate() {
        assert_eq!(renewal == Renewal::Foreign, n == 300, "{n}");
    }
}

#[tokio::test]
async fn after_its_release_a_lock_stays_away() {
    let server = RedisServer::start();
    let leases = leases(&server);
    for n in 0..100 {
        let lock = granted(&leases, &format!("k{n}")).await;
        leases.renew(std::slice::from_ref(&lock)).await.expect("renewed");
        leases.release(&lock).await.expect("released");
        assert_eq!(value(&server, &lock.name), None);
    }
    assert_eq!(server.run::<u64>("DBSIZE"), 0);
}

#[tokio::test]
async fn a_lock_ends_by_itself() {
    let server = RedisServer::start();
    let leases = short_lived(&server, Duration::from_millis(100));
    granted(&leases, "k").await;
    let until = Instant::now() + Duration::from_secs(5);
    while let Acquired::Taken { remaining } = leases.acquire("k").await.expect("an answer") {
        assert!(Instant::now() < until && remaining <= Duration::from_millis(100));
    }
}

#[tokio::test]
async fn a_key_that_is_no_lock_counts_as_taken_and_spoils_nothing() {
    let server = RedisServer::start();
    let leases = leases(&server);
    server.run::<u64>("HSET h a b");
    let (hash, lock) = tokio::join!(leases.acquire("h"), leases.acquire("k"));
    assert!(matches!(hash, Ok(Acquired::Taken { remaining: TTL })), "{hash:?}");
    let Ok(Acquired::Granted(lock)) = lock else { panic!("{lock:?}") };
    let hash = Lock { name: "h".into(), ..lock.clone() };
    assert_eq!(
        leases.renew(&[hash.clone(), lock.clone()]).await.expect("answers"),
        [Renewal::Foreign, Renewal::Renewed]
    );
    let (first, second) = tokio::join!(leases.release(&hash), leases.release(&lock));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(server.run::<u64>("EXISTS h k"), 1);
}

#[tokio::test]
async fn a_late_acquisition_is_undone() {
    let server = RedisServer::start();
    let leases = leases(&server);
    // The script is known from here on, so that the late call is carried out and not refused.
    let first = granted(&leases, "first").await;
    leases.release(&first).await.expect("released");
    server.run::<()>("CONFIG RESETSTAT");
    server.stop();
    let since = Instant::now();
    let error = leases.acquire("late").await.expect_err("no answer");
    assert!(matches!(error, LeaseError::Redis(RedisError::Timeout { .. })), "{error}");
    assert!(since.elapsed() < Duration::from_millis(900), "{:?}", since.elapsed());
    server.cont();
    eventually("the late SET is carried out and undone", || {
        let stats = server.run::<String>("INFO commandstats");
        stats.contains("cmdstat_set:calls=1,") && stats.contains("cmdstat_del:calls=1,")
    })
    .await;
    assert_eq!(value(&server, "late"), None);
    granted(&leases, "late").await;
}

/// Otherwise the lock would be a stranger's for as long as it lives, and its task would wait.
#[tokio::test]
async fn a_lock_whose_grant_was_lost_with_the_connection_is_still_ours() {
    let server = RedisServer::start();
    let proxy = TcpProxy::start(server.port).await;
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let target = RedisTarget::parse(&url, None, None).expect("a good url");
    let leases = RedisLeases::new(RedisLeaseOptions::new(target, Clock::System));
    // The script is known from here on.
    granted(&leases, "first").await;
    proxy.swallow_replies();
    let breaks = async {
        eventually("the lock is set", || server.run::<u64>("EXISTS k") == 1).await;
        proxy.forward();
        proxy.cut();
    };
    let (lock, ()) = tokio::join!(granted(&leases, "k"), breaks);
    assert_eq!(value(&server, "k"), Some(lock.token.to_string()));
    leases.release(&lock).await.expect("released");
    assert_eq!(value(&server, "k"), None);
}

#[tokio::test]
async fn locks_survive_a_forgotten_script_and_a_killed_connection() {
    let server = RedisServer::start();
    let leases = leases(&server);
    let lock = granted(&leases, "a").await;
    server.run::<()>("SCRIPT FLUSH");
    granted(&leases, "b").await;
    server.run::<u64>("CLIENT KILL TYPE normal");
    leases.release(&lock).await.expect("a release is repeated");
    assert_eq!(value(&server, "a"), None);
    granted(&leases, "c").await;
}

#[test]
fn works_on_a_thread_and_runtime_of_its_own() {
    let server = RedisServer::start();
    let target = server.target();
    let thread = std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let leases = RedisLeases::new(RedisLeaseOptions::new(target, Clock::System));
            let lock = granted(&leases, "k").await;
            leases.renew(&[lock]).await.expect("renewed")
        })
    });
    assert_eq!(thread.join().expect("no panic"), [Renewal::Renewed]);
}

#[tokio::test]
async fn a_replica_grants_nothing() {
    let server = RedisServer::start();
    let leases = leases(&server);
    granted(&leases, "a").await;
    server.run::<()>("REPLICAOF 127.0.0.1 1");
    let error = leases.acquire("b").await.expect_err("read-only");
    let LeaseError::Redis(RedisError::Unavailable { .. } | RedisError::Replica { .. }) = &error
    else {
        panic!("{error}");
    };
}

#[tokio::test]
async fn an_extension_after_the_release_brings_nothing_back() {
    let server = RedisServer::start();
    let (worker, heartbeat) = (leases(&server), leases(&server));
    let lock = granted(&worker, "k").await;
    heartbeat.renew(std::slice::from_ref(&lock)).await.expect("renewed");
    server.stop();
    let error = heartbeat.renew(std::slice::from_ref(&lock)).await.expect_err("no answer");
    assert!(error.is_transient(), "{error}");
    let (released, ()) = tokio::join!(worker.release(&lock), async { server.cont() });
    released.expect("released");
    heartbeat.check().await.expect("the late extension is behind us");
    assert_eq!(value(&server, "k"), None);
}

#[tokio::test]
async fn a_lock_that_came_too_late_is_given_back() {
    let server = RedisServer::start();
    let leases = short_lived(&server, Duration::from_millis(2));
    let error = leases.acquire("k").await.expect_err("worth nothing");
    assert!(matches!(error, LeaseError::Spent { .. }), "{error}");
    assert_eq!(value(&server, "k"), None);
}

#[tokio::test]
async fn the_check_sees_what_a_lock_would_meet() {
    let mut server = RedisServer::start();
    let leases = leases(&server);
    leases.check().await.expect("up");
    server.kill();
    leases.check().await.expect_err("down");
}

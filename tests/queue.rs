//! The queue against real, private Redis servers.

mod common;
mod redis_server;

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use common::TcpProxy;
use queue_worker::connection::{RedisError, RedisTarget};
use queue_worker::domain::{
    Delivery, EntryId, Kind, MalformedReason, QueueName, RawEntry, WorkerId,
};
use queue_worker::queue::codec::{NewTask, decode};
use queue_worker::queue::{CutShort, Demand, Queue, QueueDepth, RedisQueue, RedisQueueOptions};
use redis_server::{RedisServer, eventually};
use tokio::time::Instant;

const KEY: &str = "qw:{work}:tasks";
const START: EntryId = EntryId { ms: 0, seq: 0 };
const NO_WAIT: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(20);

static WORK: LazyLock<QueueName> = LazyLock::new(|| QueueName::new("work").expect("a name"));

fn demand(entries: usize) -> Demand {
    Demand { entries, bytes: usize::MAX }
}

fn options(target: RedisTarget) -> RedisQueueOptions {
    RedisQueueOptions::new(target, WorkerId::random())
}

fn queue(server: &RedisServer) -> RedisQueue {
    RedisQueue::new(options(server.target()))
}

/// A queue whose entries are up for reclaim after `min_idle`.
fn idling(server: &RedisServer, min_idle: Duration) -> RedisQueue {
    RedisQueue::new(RedisQueueOptions { min_idle, ..options(server.target()) })
}

fn behind(proxy: &TcpProxy) -> RedisTarget {
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    RedisTarget::parse(&url, None, None).expect("a good url")
}

fn entry(payload: &str) -> RawEntry {
    NewTask::new(Kind::new("k").expect("a kind"), Bytes::copy_from_slice(payload.as_bytes()))
        .encode()
}

async fn add(queue: &RedisQueue, count: usize) -> Vec<EntryId> {
    let mut ids = Vec::new();
    for n in 0..count {
        ids.push(queue.append(&WORK, &entry(&n.to_string())).await.expect("added"));
    }
    ids
}

fn ids(deliveries: &[Delivery]) -> Vec<EntryId> {
    deliveries.iter().map(|one| one.entry).collect()
}

/// Owner and delivery count of a pending entry.
fn pending(server: &RedisServer, id: EntryId) -> Option<(String, u64)> {
    let found: Vec<(String, String, u64, u64)> =
        server.run(&format!("XPENDING {KEY} qw {id} {id} 1"));
    found.into_iter().next().map(|(_, consumer, _, count)| (consumer, count))
}

/// How many clients wait in a blocking command.
fn blocked(server: &RedisServer) -> bool {
    server.run::<String>("INFO clients").contains("blocked_clients:1")
}

#[tokio::test]
async fn fetch_and_settle_leave_nothing_behind() {
    let server = RedisServer::start();
    let queue = queue(&server);
    let added = add(&queue, 300).await;
    let fetched = queue.fetch(&WORK, demand(1000), NO_WAIT).await.expect("fetched");
    assert_eq!(ids(&fetched), added);
    let depth = queue.depth(&WORK).await.expect("depth");
    assert_eq!(depth, QueueDepth { length: 300, pending: 300, lag: Some(0), consumers: 1 });
    let settled =
        futures_util::future::join_all(added.iter().map(|id| queue.settle(&WORK, *id))).await;
    assert!(settled.iter().all(Result::is_ok));
    let depth = queue.depth(&WORK).await.expect("depth");
    assert_eq!((depth.length, depth.pending), (0, 0));
    assert!(!queue.contains(&WORK, added[0]).await.expect("contains"));
    assert_eq!(queue.reap_consumers(&WORK, LONG).await.expect("reaped"), 1);
    assert_eq!(queue.depth(&WORK).await.expect("depth").consumers, 0);
}

#[tokio::test]
async fn depth_of_nothing_is_zero() {
    let server = RedisServer::start();
    assert_eq!(queue(&server).depth(&WORK).await.expect("depth"), QueueDepth::default());
}

/// An entry is the oldest as long as it is not settled, whoever works on it.
#[tokio::test]
async fn the_oldest_entry_is_told() {
    let server = RedisServer::start();
    let queue = queue(&server);
    assert_eq!(queue.oldest(&WORK).await.expect("told"), None);
    let added = add(&queue, 2).await;
    queue.fetch(&WORK, demand(10), NO_WAIT).await.expect("fetched");
    for id in added {
        assert_eq!(queue.oldest(&WORK).await.expect("told"), Some(id));
        queue.settle(&WORK, id).await.expect("settled");
    }
    assert_eq!(queue.oldest(&WORK).await.expect("told"), None);
}

#[tokio::test]
async fn a_blocked_fetch_survives_the_deletion_of_its_stream() {
    let server = RedisServer::start();
    for destroy in ["DEL qw:{work}:tasks", "FLUSHALL", "XGROUP DESTROY qw:{work}:tasks qw"] {
        let queue = queue(&server);
        let fetch = queue.fetch(&WORK, demand(10), LONG);
        let meanwhile = async {
            eventually("the fetch blocks", || blocked(&server)).await;
            server.run::<redis::Value>(destroy);
            let id = server.run::<String>(&format!("XADD {KEY} * a b"));
            id.parse::<EntryId>().expect("an id")
        };
        let (fetched, id) = tokio::join!(fetch, meanwhile);
        assert_eq!(ids(&fetched.expect(destroy)), [id], "{destroy}");
        server.run::<()>("FLUSHALL");
    }
}

#[tokio::test]
async fn entries_added_before_the_group_exists_are_delivered() {
    let server = RedisServer::start();
    server.run::<String>(&format!("XADD {KEY} * a b"));
    assert_eq!(queue(&server).fetch(&WORK, demand(9), NO_WAIT).await.expect("fetched").len(), 1);
}

#[tokio::test]
async fn interrupt_ends_the_fetch_under_way_and_no_later_one() {
    let server = RedisServer::start();
    let queue = queue(&server);
    let fetch = queue.fetch(&WORK, demand(10), LONG);
    let interrupt = async {
        eventually("the fetch blocks", || blocked(&server)).await;
        let since = Instant::now();
        queue.interrupt(&WORK).await;
        since
    };
    let (fetched, since) = tokio::join!(fetch, interrupt);
    assert_eq!(fetched.expect("fetched").len(), 0);
    assert!(since.elapsed() < Duration::from_millis(300), "{:?}", since.elapsed());
    let later = queue.fetch(&WORK, demand(10), LONG);
    let append = async {
        eventually("the later fetch blocks", || blocked(&server)).await;
        add(&queue, 1).await
    };
    let (fetched, added) = tokio::join!(later, append);
    assert_eq!(added.len(), 1);
    assert_eq!(fetched.expect("fetched").len(), 1);
}

#[tokio::test]
async fn interrupt_does_not_miss_a_fetch_that_is_about_to_block() {
    let server = RedisServer::start();
    for _ in 0..50 {
        let queue = queue(&server);
        let since = Instant::now();
        let (fetched, ()) =
            tokio::join!(queue.fetch(&WORK, demand(10), LONG), queue.interrupt(&WORK));
        assert!(fetched.expect("fetched").is_empty());
        assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    }
}

#[tokio::test]
async fn interrupt_gives_up_a_fetch_that_a_frozen_server_holds() {
    let server = RedisServer::start();
    let queue = queue(&server);
    let fetch = queue.fetch(&WORK, demand(10), LONG);
    let interrupt = async {
        eventually("the fetch blocks", || blocked(&server)).await;
        server.stop();
        queue.interrupt(&WORK).await;
    };
    let since = Instant::now();
    let (fetched, ()) = tokio::join!(fetch, interrupt);
    assert!(fetched.expect_err("no answer").error.is_transient());
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    server.cont();
}

#[tokio::test]
async fn a_cancelled_fetch_blocks_nobody_and_loses_nothing() {
    let server = RedisServer::start();
    let queue = queue(&server);
    {
        let fetch = queue.fetch(&WORK, demand(10), LONG);
        tokio::select! {
            _ = fetch => panic!("nothing to fetch"),
            () = eventually("the fetch blocks", || blocked(&server)) => {}
        }
    }
    eventually("the connection is closed", || !blocked(&server)).await;
    let added = add(&queue, 1).await;
    assert_eq!(ids(&queue.fetch(&WORK, demand(9), LONG).await.expect("fetched")), added);
}

#[tokio::test]
async fn what_was_delivered_unseen_is_found() {
    let server = RedisServer::start();
    let worker = WorkerId::random();
    let queue = RedisQueue::new(RedisQueueOptions::new(server.target(), worker));
    let added = add(&queue, 5).await;
    server.run::<()>(&format!("XGROUP CREATE {KEY} qw 0"));
    let swallow = format!("XREADGROUP GROUP qw {worker} COUNT 4 STREAMS {KEY} >");
    server.run::<redis::Value>(&swallow);
    server.run::<u64>(&format!("XDEL {KEY} {}", added[0]));
    let found = queue.delivered(&WORK, START, demand(100)).await.expect("found");
    assert_eq!(ids(&found), added[1..4]);
    assert_eq!(pending(&server, added[0]), None, "lost entries are acknowledged");
    let rest = queue.delivered(&WORK, added[2], demand(100)).await.expect("found");
    assert_eq!(ids(&rest), added[3..4]);
    let fresh = queue.fetch(&WORK, demand(100), NO_WAIT).await.expect("fetched");
    assert_eq!(ids(&fresh), added[4..]);
}

#[tokio::test]
async fn scenario_09_orphans_behind_a_long_live_list_are_reached() {
    let server = RedisServer::start();
    let min_idle = Duration::from_secs(60);
    let live = idling(&server, min_idle);
    let added = add(&live, 210).await;
    let running = live.fetch(&WORK, demand(150), NO_WAIT).await.expect("fetched");
    assert_eq!(running.len(), 150);
    let dead = idling(&server, min_idle);
    let orphans = dead.fetch(&WORK, demand(60), NO_WAIT).await.expect("fetched");
    for orphan in &orphans {
        dead.hand_over(&WORK, orphan.entry, &orphan.raw).await.expect("idle for long");
    }
    let rescuer = idling(&server, min_idle);
    let mut found = HashSet::new();
    for _ in 0..2 {
        for _ in 0..6 {
            found.extend(ids(&rescuer.reclaim(&WORK, demand(10)).await.expect("reclaimed")));
        }
    }
    assert_eq!(found, added[150..].iter().copied().collect());
    // One call with a larger demand reaches them too.
    let second = idling(&server, Duration::ZERO);
    assert_eq!(second.reclaim(&WORK, demand(210)).await.expect("reclaimed").len(), 210);
}

/// Pages of one entry, by the bytes that they may have.
const PAGES: Demand = Demand { entries: 9, bytes: 1_500 };

/// A small entry and a giant one that a dead worker has left, and who is to take them over, behind a
/// network on which the giant takes seconds to arrive.
async fn small_before_giant(server: &RedisServer) -> (Vec<EntryId>, TcpProxy, RedisQueue) {
    let dead = idling(server, Duration::ZERO);
    let mut added = add(&dead, 1).await;
    added.push(dead.append(&WORK, &entry(&"x".repeat(3_000_000))).await.expect("added"));
    assert_eq!(dead.fetch(&WORK, demand(2), NO_WAIT).await.expect("fetched").len(), 2);
    let proxy = TcpProxy::start(server.port).await;
    let rescuer = RedisQueue::new(RedisQueueOptions {
        min_idle: Duration::ZERO,
        max_payload: 1_000,
        ..options(behind(&proxy))
    });
    assert!(rescuer.delivered(&WORK, START, demand(1)).await.expect("connected").is_empty());
    proxy.throttle(1_000_000);
    (added, proxy, rescuer)
}

/// An error that is swallowed would let the later pages idle for ever anew with nobody at work; one
/// that comes alone, the earlier ones.
#[tokio::test]
async fn a_look_that_fails_on_a_later_page_says_so_and_gives_the_earlier_ones() {
    let server = RedisServer::start();
    let (added, proxy, rescuer) = small_before_giant(&server).await;
    let late = |CutShort { in_hand, error }| {
        assert_eq!(ids(&in_hand), added[..1]);
        assert!(matches!(error, RedisError::Timeout { .. }), "{error}");
    };
    late(rescuer.reclaim(&WORK, PAGES).await.expect_err("the second page is late"));
    late(rescuer.delivered(&WORK, START, PAGES).await.expect_err("the second page is late"));
    proxy.forward();
    let found = rescuer.delivered(&WORK, START, demand(9)).await.expect("found");
    assert_eq!(ids(&found), added);
}

/// As one is that has left: what it had claimed is found, not behind the answer that nobody wants.
#[tokio::test]
async fn a_look_that_was_given_up_is_in_nobodys_way() {
    let server = RedisServer::start();
    let (added, _proxy, rescuer) = small_before_giant(&server).await;
    {
        let look = rescuer.reclaim(&WORK, PAGES);
        let both_are_ours =
            || added.iter().all(|id| pending(&server, *id).is_some_and(|p| p.1 == 2));
        tokio::select! {
            biased;
            () = eventually("both are claimed", both_are_ours) => {}
            _ = look => panic!("the giant takes longer"),
        }
    }
    let found = rescuer.delivered(&WORK, START, demand(1)).await.expect("found at once");
    assert_eq!(ids(&found), added[..1]);
}

/// A queue with small payloads neither times out behind the large ones of another, nor doubts Redis.
#[tokio::test]
async fn the_giant_answer_of_one_queue_fails_no_sweep_of_another() {
    let server = RedisServer::start();
    let min_idle = Duration::from_secs(60);
    let live = idling(&server, min_idle);
    let giants = QueueName::new("giants").expect("a name");
    let giant = live.append(&giants, &entry(&"x".repeat(2_300_000))).await.expect("added");
    let fetched = live.fetch(&giants, demand(1), NO_WAIT).await.expect("fetched");
    live.hand_over(&giants, giant, &fetched[0].raw).await.expect("given back");
    let added = add(&live, 50).await;
    let fetched = live.fetch(&WORK, demand(50), NO_WAIT).await.expect("fetched");
    live.hand_over(&WORK, added[40], &fetched[40].raw).await.expect("given back");
    let proxy = TcpProxy::start(server.port).await;
    // An entry may take one second, and each call another.
    let rescuer = RedisQueue::new(RedisQueueOptions {
        min_idle,
        max_payload: 50_000_000,
        call_timeout: Duration::from_secs(1),
        ..options(behind(&proxy))
    });
    assert!(rescuer.delivered(&WORK, START, demand(1)).await.expect("connected").is_empty());
    assert!(rescuer.delivered(&giants, START, demand(1)).await.expect("connected").is_empty());
    proxy.throttle(1_000_000);
    let (mut large, small) =
        (rescuer.reclaim(&giants, demand(4)), rescuer.reclaim(&WORK, demand(1)));
    let small = tokio::select! {
        biased;
        _ = &mut large => panic!("the small one waits for the giant"),
        small = small => small,
    };
    assert_eq!(ids(&small.expect("at once")), [added[40]]);
    assert_eq!(ids(&large.await.expect("slow")), [giant]);
}

/// However little is asked for: the sweep that comes next is half a second away.
#[tokio::test]
async fn an_orphan_behind_thousands_of_live_entries_is_reached_at_once() {
    let server = RedisServer::start();
    let min_idle = Duration::from_secs(60);
    let live = idling(&server, min_idle);
    let added = futures_util::future::join_all((0..3_000).map(|n| {
        let live = &live;
        async move { live.append(&WORK, &entry(&n.to_string())).await }
    }));
    let added: Vec<EntryId> = added.await.into_iter().map(|id| id.expect("added")).collect();
    let fetched = live.fetch(&WORK, demand(3_000), NO_WAIT).await.expect("fetched");
    assert_eq!(fetched.len(), 3_000);
    for orphan in [700, 2_998] {
        live.hand_over(&WORK, added[orphan], &fetched[orphan].raw).await.expect("given back");
    }
    let rescuer = idling(&server, min_idle);
    for orphan in [700, 2_998] {
        let found = rescuer.reclaim(&WORK, demand(1)).await.expect("reclaimed");
        assert_eq!(ids(&found), [added[orphan]]);
    }
    assert!(rescuer.reclaim(&WORK, demand(1)).await.expect("reclaimed").is_empty());
    // One before the place where the last look stopped.
    live.hand_over(&WORK, added[2_000], &fetched[2_000].raw).await.expect("given back");
    assert_eq!(ids(&rescuer.reclaim(&WORK, demand(1)).await.expect("reclaimed")), [added[2_000]]);
}

#[tokio::test]
async fn what_is_handed_over_is_claimable_at_once_as_if_never_delivered() {
    let server = RedisServer::start();
    let (giver, other) = (queue(&server), queue(&server));
    let added = add(&giver, 3).await;
    let fetched = giver.fetch(&WORK, demand(3), NO_WAIT).await.expect("fetched");
    assert_eq!(pending(&server, added[0]).expect("pending").1, 1);
    assert!(other.reclaim(&WORK, demand(9)).await.expect("reclaimed").is_empty());
    giver.hand_over(&WORK, added[0], &fetched[0].raw).await.expect("handed over");
    let (consumer, _) = pending(&server, added[0]).expect("pending");
    assert_eq!(consumer, "given-back");
    let workers = giver.consumers(&WORK).await.expect("consumers").len() as u64;
    assert_eq!(giver.depth(&WORK).await.expect("depth").consumers, workers);
    let taken = other.reclaim(&WORK, demand(9)).await.expect("reclaimed");
    assert_eq!(ids(&taken), added[..1]);
    assert_eq!(taken[0].raw, fetched[0].raw);
    assert_eq!(pending(&server, added[0]).expect("pending").1, 1, "delivery count unchanged");
}

#[tokio::test]
async fn handing_over_does_nothing_to_the_entry_of_another() {
    let server = RedisServer::start();
    let (zombie, owner) = (idling(&server, NO_WAIT), idling(&server, NO_WAIT));
    let added = add(&zombie, 1).await;
    let fetched = zombie.fetch(&WORK, demand(1), NO_WAIT).await.expect("fetched");
    owner.reclaim(&WORK, demand(1)).await.expect("reclaimed");
    let before = pending(&server, added[0]);
    zombie.hand_over(&WORK, added[0], &fetched[0].raw).await.expect("no error");
    zombie.postpone(&WORK, added[0], LONG).await.expect("no error");
    assert_eq!(pending(&server, added[0]), before);
}

#[tokio::test]
async fn handing_over_adds_again_what_the_stream_has_lost() {
    let server = RedisServer::start();
    for lose in ["XDEL", "FLUSHALL"] {
        let giver = queue(&server);
        let added = add(&giver, 1).await;
        let fetched = giver.fetch(&WORK, demand(1), NO_WAIT).await.expect("fetched");
        match lose {
            "XDEL" => server.run::<redis::Value>(&format!("XDEL {KEY} {}", added[0])),
            all => server.run::<redis::Value>(all),
        };
        giver.hand_over(&WORK, added[0], &fetched[0].raw).await.expect("handed over");
        giver.hand_over(&WORK, added[0], &fetched[0].raw).await.expect("handed over");
        let again = queue(&server).fetch(&WORK, demand(9), NO_WAIT).await.expect("fetched");
        assert!(!again.is_empty(), "{lose}");
        assert_eq!(again[0].raw, fetched[0].raw);
        server.run::<()>("FLUSHALL");
    }
}

/// A server that refuses has added nothing.
#[tokio::test]
async fn what_was_refused_may_be_added_again() {
    let server = RedisServer::start();
    let giver = queue(&server);
    let added = add(&giver, 1).await;
    let fetched = giver.fetch(&WORK, demand(1), NO_WAIT).await.expect("fetched");
    server.run::<redis::Value>(&format!("XDEL {KEY} {}", added[0]));
    server.run::<()>("REPLICAOF 127.0.0.1 1");
    let hand_over = async || giver.hand_over(&WORK, added[0], &fetched[0].raw).await;
    let error = hand_over().await.expect_err("read-only");
    assert!(error.is_transient(), "{error}");
    server.run::<()>("REPLICAOF NO ONE");
    let until = Instant::now() + Duration::from_secs(2);
    while let Err(error) = hand_over().await {
        assert!(error.is_transient() && Instant::now() < until, "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let again = queue(&server).fetch(&WORK, demand(9), NO_WAIT).await.expect("fetched");
    assert_eq!(again.len(), 1);
}

/// The entry is added again at the end of a long way, or is not: nobody can tell.
#[tokio::test]
async fn what_may_have_been_added_again_is_told_to_be_unsure() {
    let server = RedisServer::start();
    let proxy = TcpProxy::start(server.port).await;
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let giver = RedisQueue::new(options(RedisTarget::parse(&url, None, None).expect("a good url")));
    let large = entry(&"x".repeat(4_000_000));
    giver.append(&WORK, &entry("small")).await.expect("appended");
    let fetched = giver.fetch(&WORK, demand(1), Duration::ZERO).await.expect("fetched");
    giver.settle(&WORK, fetched[0].entry).await.expect("gone");
    proxy.throttle(500_000);
    let error = giver.hand_over(&WORK, fetched[0].entry, &large).await.expect_err("too slow");
    assert!(matches!(error, RedisError::Unsure { .. }) && !error.is_transient(), "{error}");
    proxy.refuse();
    let error = giver.hand_over(&WORK, fetched[0].entry, &large).await.expect_err("not sent");
    assert!(error.is_transient(), "{error}");
}

#[tokio::test]
async fn a_postponed_entry_comes_back_on_time() {
    let server = RedisServer::start();
    let queue = idling(&server, Duration::from_secs(30));
    let added = add(&queue, 2).await;
    queue.fetch(&WORK, demand(2), NO_WAIT).await.expect("fetched");
    let remaining = Duration::from_millis(200);
    let since = Instant::now();
    queue.postpone(&WORK, added[0], remaining).await.expect("postponed");
    queue.postpone(&WORK, added[1], Duration::from_secs(90)).await.expect("postponed");
    let taken = loop {
        let taken = queue.reclaim(&WORK, demand(9)).await.expect("reclaimed");
        if !taken.is_empty() {
            break taken;
        }
        assert!(since.elapsed() < Duration::from_secs(10));
    };
    assert_eq!(ids(&taken), added[..1]);
    // Redis counts whole milliseconds.
    assert!(since.elapsed() + Duration::from_millis(2) >= remaining, "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_touch_keeps_what_is_ours_and_steals_nothing_back() {
    let server = RedisServer::start();
    let min_idle = Duration::from_millis(300);
    let (zombie, owner) = (idling(&server, min_idle), idling(&server, min_idle));
    let added = add(&zombie, 3).await;
    zombie.fetch(&WORK, demand(2), NO_WAIT).await.expect("fetched");
    let mut taken = Vec::new();
    let until = Instant::now() + LONG;
    // As long as it takes to idle three times.
    while taken.len() < 3 {
        assert!(Instant::now() < until, "taken in vain: {taken:?}");
        assert_eq!(zombie.touch(&[(WORK.clone(), added[0])]).await.expect("touched"), [true]);
        taken.extend(ids(&owner.reclaim(&WORK, demand(9)).await.expect("reclaimed")));
    }
    assert_eq!(taken, [added[1]; 3], "the untouched one goes, the touched one stays");
    let asked: Vec<_> = added.iter().map(|id| (WORK.clone(), *id)).collect();
    let other = (QueueName::new("nowhere").expect("a name"), added[0]);
    let mut with_other = asked.clone();
    with_other.insert(1, other);
    let answers = zombie.touch(&with_other).await.expect("touched");
    assert_eq!(answers, [true, false, false, false]);
    let (consumer, _) = pending(&server, added[1]).expect("pending");
    assert_ne!(consumer, pending(&server, added[0]).expect("pending").0);
}

#[tokio::test]
async fn touching_many_entries_stays_within_the_limits_of_lua() {
    let server = RedisServer::start();
    let queue = queue(&server);
    let raw = entry("");
    let added: Vec<_> =
        futures_util::future::join_all((0..2500).map(|_| queue.append(&WORK, &raw))).await;
    let added: Vec<_> = added.into_iter().map(|id| (WORK.clone(), id.expect("added"))).collect();
    queue.fetch(&WORK, demand(2500), NO_WAIT).await.expect("fetched");
    let ours = queue.touch(&added).await.expect("touched");
    assert_eq!(ours.iter().filter(|ours| **ours).count(), 2500);
}

#[tokio::test]
async fn reaping_never_drops_what_is_pending() {
    let server = RedisServer::start();
    let (idle, busy, reaper) = (queue(&server), queue(&server), queue(&server));
    let added = add(&busy, 3).await;
    busy.fetch(&WORK, demand(1), NO_WAIT).await.expect("fetched");
    for (queue, id) in [(&idle, added[1]), (&reaper, added[2])] {
        queue.fetch(&WORK, demand(1), NO_WAIT).await.expect("fetched");
        queue.settle(&WORK, id).await.expect("settled");
    }
    assert_eq!(busy.reap_consumers(&WORK, LONG).await.expect("reaped"), 0);
    assert_eq!(reaper.reap_consumers(&WORK, LONG).await.expect("reaped"), 1, "only itself");
    assert_eq!(reaper.reap_consumers(&WORK, NO_WAIT).await.expect("reaped"), 1, "the idle one");
    assert_eq!(queue(&server).depth(&WORK).await.expect("depth").consumers, 1);
    assert!(pending(&server, added[0]).is_some());
    let nowhere = QueueName::new("nowhere").expect("a name");
    assert_eq!(reaper.reap_consumers(&nowhere, NO_WAIT).await.expect("reaped"), 0);
}

#[tokio::test]
async fn killed_connections_are_replaced_again_and_again() {
    let server = RedisServer::start();
    let queue = queue(&server);
    for _ in 0..3 {
        let added = add(&queue, 1).await;
        let fetched = queue.fetch(&WORK, demand(1), LONG).await.expect("fetched");
        assert_eq!(ids(&fetched), added);
        server.run::<u64>("CLIENT KILL TYPE normal");
        queue.settle(&WORK, added[0]).await.expect("a settlement is repeated");
        eventually("only our settling connection is left", || {
            server.run::<String>("CLIENT LIST").lines().count() == 2
        })
        .await;
    }
    let added = add(&queue, 1).await;
    assert_eq!(ids(&queue.fetch(&WORK, demand(1), LONG).await.expect("fetched")), added);
}

#[tokio::test]
async fn a_connection_closed_for_idling_is_replaced_without_an_error() {
    let server = RedisServer::with(&["--timeout", "1"], None);
    let queue = queue(&server);
    add(&queue, 1).await;
    assert_eq!(queue.fetch(&WORK, demand(1), NO_WAIT).await.expect("fetched").len(), 1);
    eventually("both connections idle out", || {
        server.run::<String>("CLIENT LIST").lines().count() == 1
    })
    .await;
    let added = add(&queue, 1).await;
    assert_eq!(ids(&queue.fetch(&WORK, demand(1), NO_WAIT).await.expect("fetched")), added);
}

#[tokio::test]
async fn an_evicting_server_is_refused_with_the_remedy() {
    let server = RedisServer::with(&["--maxmemory-policy", "allkeys-lru"], None);
    let queue = queue(&server);
    let error = queue.append(&WORK, &entry("")).await.expect_err("refused");
    assert!(matches!(error, RedisError::Misconfigured { .. }), "{error}");
    assert!(error.to_string().contains("maxmemory-policy noeviction"), "{error}");
    server.run::<()>("CONFIG SET maxmemory-policy noeviction");
    let until = Instant::now() + LONG;
    while queue.append(&WORK, &entry("")).await.is_err() {
        assert!(Instant::now() < until, "is retried by itself");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_policy_is_seen_although_config_is_forbidden() {
    let server = RedisServer::with(
        &[
            "--maxmemory-policy",
            "volatile-ttl",
            "--user",
            "worker",
            "on",
            ">pw",
            "~*",
            "+@all",
            "-config",
        ],
        None,
    );
    let target = RedisTarget::parse(&server.url(), Some("worker"), Some("pw")).expect("a url");
    let error = RedisQueue::new(options(target)).append(&WORK, &entry("")).await;
    assert!(matches!(error, Err(RedisError::Misconfigured { .. })), "{error:?}");
}

#[tokio::test]
async fn passwords_of_any_characters_work_and_wrong_ones_are_named() {
    let password = "a#/+=@%:? ü";
    let server = RedisServer::with(&["--requirepass", password], Some(password));
    assert!(add(&queue(&server), 1).await.len() == 1);
    for (given, remedy) in [(Some("wrong"), "redis.password_file"), (None, "redis.password_file")] {
        let target = RedisTarget::parse(&server.url(), None, given).expect("a url");
        let error = RedisQueue::new(options(target))
            .append(&WORK, &entry(""))
            .await
            .expect_err("no access");
        assert!(matches!(error, RedisError::Misconfigured { .. }), "{error}");
        assert!(error.to_string().contains(remedy), "{error}");
    }
}

#[tokio::test]
async fn the_byte_budget_holds_with_large_payloads() {
    const MIB: usize = 1024 * 1024;
    let server = RedisServer::start();
    let wait = Duration::from_secs(5);
    let queue = RedisQueue::new(RedisQueueOptions {
        max_payload: MIB,
        call_timeout: wait,
        min_idle: NO_WAIT,
        ..options(server.target())
    });
    let (large, small) = (entry(&"x".repeat(MIB)), entry("x"));
    for raw in [&large, &large, &large, &large, &large, &large, &small, &small, &small, &small] {
        queue.append(&WORK, raw).await.expect("added");
    }
    let budget = Demand { entries: 10, bytes: 3 * MIB };
    for expected in [3, 3, 4] {
        assert_eq!(queue.fetch(&WORK, budget, wait).await.expect("fetched").len(), expected);
    }
    let sizes = async |demand| queue.reclaim(&WORK, demand).await.expect("reclaimed").len();
    assert_eq!(sizes(budget).await, 3);
    assert_eq!(sizes(Demand { entries: 10, bytes: 1 }).await, 1);
    let found = queue.delivered(&WORK, START, budget).await.expect("found");
    assert_eq!(found.len(), 3);
    assert!(queue.delivered(&WORK, found[2].entry, budget).await.expect("found").len() >= 3);
}

#[tokio::test]
async fn hostile_fields_are_told_exactly() {
    let server = RedisServer::start();
    let queue = queue(&server);
    let raw = |fields: &[(&'static [u8], &'static [u8])]| RawEntry {
        fields: fields
            .iter()
            .map(|(n, v)| (Bytes::from_static(n), Bytes::from_static(v)))
            .collect(),
    };
    let hostile = [
        (raw(&[(b"task_id", b"a\0b"), (b"kind", b"k"), (b"payload", b"")]), "task_id"),
        (raw(&[(b"task_id", b"a"), (b"kind", b"\xff\xfe"), (b"payload", b"")]), "kind"),
        (raw(&[(b"\xff\0", b"\xff"), (b"task_id", b"a"), (b"kind", b"k")]), "payload"),
        (raw(&[(b"task_id", b"a"), (b"task_id", b"a")]), "task_id"),
    ];
    for (raw, _) in &hostile {
        queue.append(&WORK, raw).await.expect("added");
    }
    let fetched = queue.fetch(&WORK, demand(9), NO_WAIT).await.expect("fetched");
    for (delivery, (raw, field)) in fetched.iter().zip(&hostile) {
        assert_eq!(&delivery.raw, raw, "byte for byte");
        let refusal = decode(delivery, 100).expect_err("malformed");
        assert_eq!(refusal.reason, MalformedReason::Malformed);
        assert!(refusal.message.contains(field), "{}", refusal.message);
    }
}

#[tokio::test]
async fn an_outage_is_told_at_once_and_overcome() {
    let mut server = RedisServer::start();
    let queue = queue(&server);
    add(&queue, 1).await;
    server.kill();
    let since = Instant::now();
    let mut failures = 0;
    while since.elapsed() < Duration::from_millis(500) {
        let error = queue.append(&WORK, &entry("")).await.expect_err("no server");
        assert!(matches!(error, RedisError::Unavailable { .. }), "{error}");
        failures += 1;
        tokio::task::yield_now().await;
    }
    assert!(failures > 50, "calls during the pause fail at once: {failures}");
    assert!(server.launch(), "the port is still free");
    let back = Instant::now();
    while queue.append(&WORK, &entry("")).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(back.elapsed() < Duration::from_secs(2), "back within the longest pause");
    }
    assert_eq!(queue.fetch(&WORK, demand(9), NO_WAIT).await.expect("fetched").len(), 1);
}

#[tokio::test]
async fn a_server_that_hangs_up_sees_few_attempts() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    let attempts = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&attempts);
    let acceptor = std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if counter.fetch_add(1, Ordering::SeqCst) > 1000 {
                return;
            }
            drop(stream);
        }
    });
    let target =
        RedisTarget::parse(&format!("redis://127.0.0.1:{port}"), None, None).expect("a url");
    let queue = RedisQueue::new(options(target));
    let since = Instant::now();
    while attempts.load(Ordering::SeqCst) < 9 {
        queue.append(&WORK, &entry("")).await.expect_err("no server");
        assert!(since.elapsed() < LONG, "it has stopped to try");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Half of the pauses' sum, which the jitter leaves: 50, 100, 200, 400, 800 and 3 times 1000 ms.
    assert!(since.elapsed() > Duration::from_millis(2_200), "after {:?}", since.elapsed());
    drop(acceptor);
}

#[tokio::test]
async fn a_frozen_server_costs_the_deadline_and_no_more() {
    let server = RedisServer::start();
    let queue = queue(&server);
    let added = add(&queue, 1).await;
    server.stop();
    let since = Instant::now();
    let error = queue.settle(&WORK, added[0]).await.expect_err("no answer");
    assert!(matches!(error, RedisError::Timeout { .. }), "{error}");
    assert!(since.elapsed() < Duration::from_millis(900), "{:?}", since.elapsed());
    for _ in 0..4 {
        queue.settle(&WORK, added[0]).await.expect_err("no answer");
    }
    server.cont();
    let back = Instant::now();
    while queue.settle(&WORK, added[0]).await.is_err() {
        assert!(back.elapsed() < Duration::from_secs(3));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn works_on_a_thread_and_runtime_of_its_own() {
    let server = RedisServer::start();
    let target = server.target();
    let handle = std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let queue = RedisQueue::new(options(target));
            let added = add(&queue, 2).await;
            queue.touch(&[(WORK.clone(), added[0])]).await.expect("touched")
        })
    });
    assert_eq!(handle.join().expect("no panic"), [false]);
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_left_until_it_is_none() {
    let server = RedisServer::start();
    let queue = queue(&server);
    let added = add(&queue, 2).await;
    server.run::<()>("REPLICAOF 127.0.0.1 1");
    for error in [
        queue.settle(&WORK, added[0]).await.expect_err("read-only"),
        queue.append(&WORK, &entry("")).await.expect_err("read-only"),
    ] {
        let away = matches!(error, RedisError::Unavailable { .. } | RedisError::Replica { .. });
        assert!(away, "{error}");
    }
    server.run::<()>("REPLICAOF NO ONE");
    let back = Instant::now();
    while queue.settle(&WORK, added[0]).await.is_err() {
        assert!(back.elapsed() < Duration::from_secs(2));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_sweep_makes_a_missing_group_and_forgets_what_the_stream_has_lost() {
    let server = RedisServer::start();
    let queue = idling(&server, NO_WAIT);
    assert!(queue.reclaim(&WORK, demand(9)).await.expect("made").is_empty());
    let added = add(&queue, 3).await;
    queue.fetch(&WORK, demand(9), NO_WAIT).await.expect("fetched");
    server.run::<u64>(&format!("XDEL {KEY} {}", added[0]));
    assert_eq!(ids(&queue.reclaim(&WORK, demand(9)).await.expect("reclaimed")), added[1..]);
    assert_eq!(pending(&server, added[0]), None);
    // What the sweep runs where Redis 6.2 does not say which entries are lost.
    server.run::<u64>(&format!("XDEL {KEY} {}", added[1]));
    let (consumer, _) = pending(&server, added[1]).expect("pending");
    let gone: u64 = redis::cmd("EVAL")
        .arg(include_str!("../src/queue/redis/forget_deleted.lua"))
        .arg((1, KEY, "qw", consumer, 1000))
        .query(&mut server.connect())
        .expect("the script runs");
    assert_eq!((gone, pending(&server, added[1])), (1, None));
    assert!(pending(&server, added[2]).is_some());
}

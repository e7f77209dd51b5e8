//! Stores that go away, hang up, or answer into the void, and come back.

use std::time::Duration;

use tokio::time::Instant;

use crate::common::{Scene, TcpProxy, Worker, wait_for};

/// A worker that lost a store and got it back pulls again within this.
const BACK_WITHIN: Duration = Duration::from_secs(5);

async fn kill_clients(scene: &Scene) {
    let mut connection = scene.redis_connection().await;
    let _: i64 = redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .arg("SKIPME")
        .arg("yes")
        .query_async(&mut connection)
        .await
        .expect("CLIENT KILL");
}

/// How many commands Redis has processed.
async fn commands(scene: &Scene) -> i64 {
    let mut connection = scene.redis_connection().await;
    let info: String =
        redis::cmd("INFO").arg("stats").query_async(&mut connection).await.expect("INFO");
    let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.expect("a known field").trim().parse().expect("a number")
}

/// The connections on which workers wait for entries.
async fn listening(scene: &Scene) -> Vec<u64> {
    scene.clients("xreadgroup").await
}

/// Enqueues a task and waits until it has succeeded.
async fn runs_within(scene: &Scene, id: &str, limit: Duration) {
    let start = Instant::now();
    scene.task(id, "effect", "").await;
    scene.until_status(id, "succeeded").await;
    assert!(start.elapsed() <= limit, "{id} took {:?}", start.elapsed());
}

#[tokio::test]
async fn scenario_06_reconnected_workers_hear_again() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    for kill in 0..3 {
        wait_for("the worker to listen", async || !listening(&scene).await.is_empty()).await;
        let killed = listening(&scene).await;
        kill_clients(&scene).await;
        // The report's workers were connected again, and heard nothing.
        wait_for("the worker to listen again", async || {
            listening(&scene).await.iter().any(|connection| !killed.contains(connection))
        })
        .await;
        runs_within(&scene, &format!("after-kill-{kill}"), BACK_WITHIN).await;
    }
    assert!(worker.child.try_wait().expect("waitpid").is_none(), "no restart");
    assert!(worker.logged("is away") <= 3, "{}", worker.log());
    worker.terminate().await;
}

#[tokio::test]
async fn scenario_06_redis_away_for_two_leases() {
    let mut scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    runs_within(&scene, "before", BACK_WITHIN).await;
    scene.task("long", "gate", "").await;
    scene.until_journal("long", "start").await;
    let lines_before = worker.log().lines().count();
    scene.redis.kill();
    // Until what was renewed last before the outage is over, and what was renewed by then.
    for _ in 0..2 {
        scene.until_it_outlives_its_lease("long").await;
    }
    let lines = worker.log().lines().count() - lines_before;
    assert!(lines <= 20, "{lines} lines during the outage:\n{}", worker.log());
    scene.redis.restart().await.expect("restart redis");
    runs_within(&scene, "after", BACK_WITHIN).await;
    scene.open_gate();
    let row = scene.until_status("long", "succeeded").await;
    assert_eq!((row.fence, row.attempts, row.crashes), (1, 0, 0), "the ledger kept it alive");
    scene.until_empty().await;
    assert_eq!(worker.logged("redis is away"), 1);
    assert_eq!(worker.logged("redis is back after"), 1);
    assert!(worker.child.try_wait().expect("waitpid").is_none(), "no restart");
    worker.terminate().await;
}

#[tokio::test]
async fn postgres_away_for_a_while_burns_nothing() {
    let mut scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    runs_within(&scene, "before", BACK_WITHIN).await;
    scene.task("running", "gate", "").await;
    scene.until_journal("running", "start").await;
    let lines_before = worker.log().lines().count();
    scene.postgres.kill();
    let (start, commands_before) = (Instant::now(), commands(&scene).await);
    scene.task("meanwhile", "effect", "").await;
    scene.open_gate();
    scene.until_journal("running", "end").await;
    // Of the task whose outcome could not be recorded.
    worker.until_logged("lease ran out unconfirmed").await;
    let lines = worker.log().lines().count() - lines_before;
    assert!(lines <= 20, "{lines} lines during the outage:\n{}", worker.log());
    let asked = commands(&scene).await - commands_before;
    let seconds = 1 + i64::try_from(start.elapsed().as_secs()).expect("a short outage");
    assert!(asked < 50 * seconds, "{asked} commands to redis within {seconds} s");
    scene.postgres.restart().await.expect("restart postgres");
    runs_within(&scene, "after", BACK_WITHIN + Duration::from_secs(2)).await;
    for id in ["meanwhile", "running"] {
        let row = scene.until_status(id, "succeeded").await;
        assert_eq!((row.attempts, row.crashes), (0, 0), "{id}");
    }
    assert_eq!(worker.logged("postgres is away"), 1);
    assert_eq!(worker.logged("postgres is back after"), 1);
    scene.until_empty().await;
    worker.terminate().await;
}

#[tokio::test]
async fn acknowledgements_are_kept_while_redis_is_away() {
    let mut scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("t", "gate", "").await;
    scene.until_journal("t", "start").await;
    scene.redis.kill();
    scene.open_gate();
    scene.until_status("t", "succeeded").await;
    scene.redis.restart().await.expect("restart redis");
    let restarted = Instant::now();
    scene.until_empty().await;
    assert!(restarted.elapsed() < BACK_WITHIN, "after {:?}", restarted.elapsed());
    assert_eq!(scene.journal_count("t", "start"), 1);
    worker.terminate().await;
}

/// Connecting takes several round trips, and may take longer than a call.
#[tokio::test]
async fn a_far_redis_has_more_time_to_connect() {
    let scene = Scene::start().await;
    let proxy = TcpProxy::start(scene.redis.port()).await;
    proxy.delay(Duration::from_millis(150));
    let url = format!("redis://127.0.0.1:{}/", proxy.port());
    scene.write_config_for(&url, &scene.database, "");
    let mut worker = scene.worker("a").await;
    runs_within(&scene, "far", Duration::from_secs(20)).await;
    worker.terminate().await;
}

/// The reply of a read is lost with its connection: the entry was delivered, and nobody knows.
#[tokio::test]
async fn entries_delivered_into_a_broken_connection_are_found_again() {
    let scene = Scene::start().await;
    let proxy = TcpProxy::start(scene.redis.port()).await;
    let url = format!("redis://127.0.0.1:{}/", proxy.port());
    scene.write_config_for(&url, &scene.database, "");
    let mut worker = scene.worker("a").await;
    for n in 0..20 {
        scene.task(&format!("before-{n}"), "effect", "").await;
    }
    scene.until_empty().await;
    proxy.swallow_replies();
    scene.task("t", "effect", "").await;
    wait_for("the entry to be delivered", async || scene.pending().await > 0).await;
    proxy.forward();
    proxy.cut();
    let start = Instant::now();
    scene.until_status("t", "succeeded").await;
    assert!(start.elapsed() < BACK_WITHIN, "found after {:?}", start.elapsed());
    scene.until_empty().await;
    assert_eq!(scene.count("SELECT count(*) FROM effects WHERE task_id = 't'").await, 1);
    worker.terminate().await;
}

/// A connection is killed under load, again and again: nothing is lost, nothing is done twice.
#[tokio::test]
async fn killed_connections_lose_nothing() {
    let scene = Scene::start().await;
    let mut first: Worker = scene.worker("a").await;
    let mut second: Worker = scene.worker("b").await;
    let mut expected = 0;
    for round in 0..10 {
        for n in 0..50 {
            scene.task(&format!("t-{round}-{n}"), "effect", "").await;
            expected += 1;
        }
        kill_clients(&scene).await;
    }
    wait_for("all effects", async || scene.count("SELECT count(*) FROM effects").await >= expected)
        .await;
    scene.until_empty().await;
    let distinct = scene.count("SELECT count(DISTINCT task_id) FROM effects").await;
    assert_eq!((scene.count("SELECT count(*) FROM effects").await, distinct), (expected, expected));
    let burnt = "SELECT count(*) FROM queue_worker.processed_tasks \
                 WHERE attempts > 0 OR crashes > 0 OR status <> 'succeeded'";
    assert_eq!(scene.count(burnt).await, 0);
    first.terminate().await;
    second.terminate().await;
}

/// Longer silent than a lease, and never restarted: the run is cancelled, and repeated.
#[tokio::test]
async fn scenario_22_postgres_silent_beyond_the_lease_burns_nothing() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    scene.task("t", "gate", "").await;
    scene.until_journal("t", "start").await;
    scene.postgres.pause();
    worker.until_logged("lease ran out unconfirmed").await;
    scene.postgres.resume();
    wait_for("the second run", async || scene.journal_count("t", "start") == 2).await;
    scene.open_gate();
    let row = scene.until_status("t", "succeeded").await;
    assert_eq!((row.attempts, row.crashes), (0, 0), "an outage is no crash");
    scene.until_empty().await;
    worker.terminate().await;
}

/// All of Redis is lost while a task runs: it ends, and one that is given back is added again.
#[tokio::test]
async fn what_redis_forgets_goes_on_in_the_ledger() {
    let scene = Scene::start().await;
    let mut first = scene.worker_with("a", &[("QUEUE_WORKER_DRAIN__TIMEOUT", "2s")]).await;
    scene.task("ends", "sleep", "1").await;
    scene.task("cut", "gate", "").await;
    scene.task("fails", "exit", "1").await;
    for id in ["ends", "cut", "fails"] {
        scene.until_journal(id, "start").await;
    }
    let mut connection = scene.redis_connection().await;
    let () = redis::cmd("FLUSHALL").query_async(&mut connection).await.expect("FLUSHALL");
    scene.until_status("ends", "succeeded").await;
    scene.until_status("fails", "failed").await;
    first.terminate().await;
    assert_eq!(scene.row("cut").await.expect("claimed").status, "released");
    assert_eq!(scene.length().await, 1, "added again");
    scene.open_gate();
    let mut second = scene.worker("b").await;
    let row = scene.until_status("cut", "succeeded").await;
    assert_eq!((row.attempts, row.crashes), (0, 0));
    assert_eq!(scene.journal_count("ends", "start"), 1);
    scene.until_empty().await;
    second.terminate().await;
}

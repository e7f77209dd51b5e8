//! Faults again and again while tasks come in: nothing is lost, nothing takes effect twice.
//!
//! The producer repeats what was not confirmed, under the same id, so that entries come twice too.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::common::{STREAM, Scene, Worker, wait_for};

/// How long the producer goes on.
const STORM: Duration = Duration::from_secs(8);

/// A lease as short as the other defaults allow.
const SHORT_LEASE: [(&str, &str); 3] = [
    ("QUEUE_WORKER_LEASE__TTL", "2s"),
    ("QUEUE_WORKER_LEASE__MIN_IDLE", "2s"),
    ("QUEUE_WORKER_LEASE__HEARTBEAT", "500ms"),
];

/// Adds 100 tasks a second until `until`, each until it is confirmed; answers how many.
async fn produce(url: String, until: Instant) -> i64 {
    let client = redis::Client::open(url).expect("a redis url");
    let mut pace = tokio::time::interval(Duration::from_millis(10));
    let (mut connection, mut added) = (None, 0);
    while Instant::now() < until {
        pace.tick().await;
        if connection.is_none() {
            connection = client.get_multiplexed_async_connection().await.ok();
        }
        let Some(open) = &mut connection else { continue };
        let id = format!("t-{added}");
        let fields = [("task_id", id.as_str()), ("kind", "effect"), ("payload", "")];
        let answer: redis::RedisResult<String> =
            redis::cmd("XADD").arg(STREAM).arg("*").arg(&fields).query_async(open).await;
        match answer {
            Ok(_) => added += 1,
            Err(_) => connection = None,
        }
    }
    added
}

/// The producer, and when it ends.
fn start_producing(scene: &Scene) -> (JoinSet<i64>, Instant) {
    let until = Instant::now() + STORM;
    let mut producer = JoinSet::new();
    producer.spawn(produce(scene.redis.url(), until));
    (producer, until)
}

/// Every task that was confirmed has taken effect, once, and nothing is left behind.
async fn assert_all_once(scene: &Scene, mut producer: JoinSet<i64>) {
    let added = producer.join_next().await.expect("one producer").expect("it ended well");
    assert!(added > 100, "only {added} tasks");
    wait_for("all effects", async || scene.count("SELECT count(*) FROM effects").await >= added)
        .await;
    scene.until_empty().await;
    wait_for("the locks to be gone", async || scene.locks().await.is_empty()).await;
    let unlike = "SELECT count(*) FROM (SELECT task_id, count(*) AS times FROM effects GROUP BY 1) e \
                  FULL JOIN queue_worker.processed_tasks t USING (task_id) \
                  WHERE e.times IS DISTINCT FROM 1 OR t.status IS DISTINCT FROM 'succeeded'";
    assert_eq!(scene.count(unlike).await, 0, "succeeded if and only if it took effect, once");
    assert_eq!(scene.letters().await, []);
}

async fn assert_nothing_burnt(scene: &Scene) {
    let burnt = "SELECT count(*) FROM queue_worker.processed_tasks \
                 WHERE attempts > 0 OR crashes > 0";
    assert_eq!(scene.count(burnt).await, 0);
}

async fn two_workers(scene: &Scene) -> [Worker; 2] {
    [scene.worker("a").await, scene.worker("b").await]
}

async fn terminate(workers: [Worker; 2]) {
    for mut worker in workers {
        worker.terminate().await;
    }
}

/// The time between two faults.
async fn lull() {
    tokio::time::sleep(Duration::from_millis(900)).await;
}

#[tokio::test]
async fn redis_restarts_under_load_lose_nothing() {
    let mut scene = Scene::start().await;
    let workers = two_workers(&scene).await;
    let (producer, until) = start_producing(&scene);
    while Instant::now() < until {
        lull().await;
        scene.redis.kill();
        scene.redis.restart().await.expect("restart redis");
    }
    assert_all_once(&scene, producer).await;
    assert_nothing_burnt(&scene).await;
    terminate(workers).await;
}

#[tokio::test]
async fn postgres_restarts_under_load_lose_nothing() {
    let mut scene = Scene::start().await;
    let workers = two_workers(&scene).await;
    let (producer, until) = start_producing(&scene);
    while Instant::now() < until {
        lull().await;
        scene.postgres.kill();
        scene.postgres.restart().await.expect("restart postgres");
    }
    assert_all_once(&scene, producer).await;
    assert_nothing_burnt(&scene).await;
    terminate(workers).await;
}

#[tokio::test]
async fn postgres_connections_cut_under_load_lose_nothing() {
    let scene = Scene::start().await;
    let workers = two_workers(&scene).await;
    let (producer, until) = start_producing(&scene);
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE pid <> pg_backend_pid() AND application_name LIKE 'queue-worker%'";
    let mut cuts = 0;
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(200)).await;
        cuts += scene.count(cut).await;
    }
    assert!(cuts > 20, "only {cuts} connections were cut");
    assert_all_once(&scene, producer).await;
    assert_nothing_burnt(&scene).await;
    terminate(workers).await;
}

#[tokio::test]
async fn workers_killed_under_load_lose_nothing() {
    let scene = Scene::start().await;
    let mut steady = scene.worker_with("steady", &SHORT_LEASE).await;
    let (producer, until) = start_producing(&scene);
    while Instant::now() < until {
        let mut victim = scene.worker_with("victim", &SHORT_LEASE).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        victim.kill().await;
    }
    assert_all_once(&scene, producer).await;
    steady.terminate().await;
}

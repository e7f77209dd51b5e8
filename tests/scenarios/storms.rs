//! Faults again and again while tasks come in: nothing is lost, nothing takes effect twice.
//!
//! The producer repeats what was not confirmed, under the same id, so that entries come twice too.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::common::{STREAM, Scene, Worker, wait_for};

/// How often a server or a worker is killed in a test.
const KILLS: i64 = 8;
/// How often connections are cut.
const CUTS: usize = 30;

/// A lease as short as the other defaults allow.
const SHORT_LEASE: [(&str, &str); 3] = [
    ("QUEUE_WORKER_LEASE__TTL", "2s"),
    ("QUEUE_WORKER_LEASE__MIN_IDLE", "2s"),
    ("QUEUE_WORKER_LEASE__HEARTBEAT", "500ms"),
];

/// A producer at work.
struct Load {
    /// How many tasks were confirmed.
    added: Arc<AtomicI64>,
    over: CancellationToken,
    producer: JoinSet<()>,
}

impl Load {
    fn start(scene: &Scene) -> Self {
        let (added, over) = (Arc::default(), CancellationToken::new());
        let mut producer = JoinSet::new();
        producer.spawn(produce(scene.redis.url(), Arc::clone(&added), over.clone()));
        Self { added, over, producer }
    }

    /// The time between two faults: `tasks` more come in, and one at least takes effect.
    async fn lull(&self, scene: &Scene, tasks: i64) {
        let (done, added) = (effects(scene).await, self.added.load(Ordering::Relaxed));
        wait_for("the load to go on", async || {
            self.added.load(Ordering::Relaxed) >= added + tasks && effects(scene).await > done
        })
        .await;
    }

    /// Ends it; answers how many tasks were confirmed.
    async fn end(mut self) -> i64 {
        self.over.cancel();
        self.producer.join_next().await.expect("one producer").expect("it ended well");
        self.added.load(Ordering::Relaxed)
    }
}

/// Adds 100 tasks a second, each until it is confirmed.
async fn produce(url: String, added: Arc<AtomicI64>, over: CancellationToken) {
    let client = redis::Client::open(url).expect("a redis url");
    let mut pace = tokio::time::interval(Duration::from_millis(10));
    let mut connection = None;
    while !over.is_cancelled() {
        pace.tick().await;
        if connection.is_none() {
            connection = client.get_multiplexed_async_connection().await.ok();
        }
        let Some(open) = &mut connection else { continue };
        let id = format!("t-{}", added.load(Ordering::Relaxed));
        let fields = [("task_id", id.as_str()), ("kind", "effect"), ("payload", "")];
        let answer: redis::RedisResult<String> =
            redis::cmd("XADD").arg(STREAM).arg("*").arg(&fields).query_async(open).await;
        match answer {
            Ok(_) => drop(added.fetch_add(1, Ordering::Relaxed)),
            Err(_) => connection = None,
        }
    }
}

async fn effects(scene: &Scene) -> i64 {
    scene.count("SELECT count(*) FROM effects").await
}

/// Every task that was confirmed has taken effect, once, and nothing is left behind.
async fn assert_all_once(scene: &Scene, load: Load) {
    let added = load.end().await;
    assert!(added > 100, "only {added} tasks");
    wait_for("all effects", async || effects(scene).await >= added).await;
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

#[tokio::test]
async fn redis_restarts_under_load_lose_nothing() {
    let mut scene = Scene::start().await;
    let workers = two_workers(&scene).await;
    let load = Load::start(&scene);
    for _ in 0..KILLS {
        load.lull(&scene, 50).await;
        scene.redis.kill();
        scene.redis.restart().await.expect("restart redis");
    }
    assert_all_once(&scene, load).await;
    assert_nothing_burnt(&scene).await;
    terminate(workers).await;
}

#[tokio::test]
async fn postgres_restarts_under_load_lose_nothing() {
    let mut scene = Scene::start().await;
    let workers = two_workers(&scene).await;
    let load = Load::start(&scene);
    for _ in 0..KILLS {
        load.lull(&scene, 50).await;
        scene.postgres.kill();
        scene.postgres.restart().await.expect("restart postgres");
    }
    assert_all_once(&scene, load).await;
    assert_nothing_burnt(&scene).await;
    terminate(workers).await;
}

#[tokio::test]
async fn postgres_connections_cut_under_load_lose_nothing() {
    let scene = Scene::start().await;
    let workers = two_workers(&scene).await;
    let load = Load::start(&scene);
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE pid <> pg_backend_pid() AND application_name LIKE 'queue-worker%'";
    let mut cuts = 0;
    for _ in 0..CUTS {
        load.lull(&scene, 10).await;
        cuts += scene.count(cut).await;
    }
    assert!(cuts > 20, "only {cuts} connections were cut");
    assert_all_once(&scene, load).await;
    assert_nothing_burnt(&scene).await;
    terminate(workers).await;
}

/// Workers, and how many tasks each has claimed last.
async fn done_by(scene: &Scene) -> impl Iterator<Item = (String, i64)> + use<> {
    let rows: Vec<(String, i64)> = sqlx::query_as(
        "SELECT worker::text, count(*) FROM queue_worker.processed_tasks \
         WHERE worker IS NOT NULL GROUP BY 1",
    )
    .fetch_all(&scene.pool)
    .await
    .expect("read the workers");
    rows.into_iter()
}

#[tokio::test]
async fn workers_killed_under_load_lose_nothing() {
    let scene = Scene::start().await;
    let mut steady = scene.worker_with("steady", &SHORT_LEASE).await;
    let load = Load::start(&scene);
    load.lull(&scene, 1).await;
    let mut known: HashSet<String> = done_by(&scene).await.map(|(worker, _)| worker).collect();
    for kill in 0..KILLS {
        load.lull(&scene, 20).await;
        let mut victim = scene.worker_with("victim", &SHORT_LEASE).await;
        wait_for("the victim to work", async || {
            // Longer each time.
            done_by(&scene).await.any(|(worker, tasks)| tasks > kill && !known.contains(&worker))
        })
        .await;
        victim.kill().await;
        known.extend(done_by(&scene).await.map(|(worker, _)| worker));
    }
    assert_all_once(&scene, load).await;
    steady.terminate().await;
}

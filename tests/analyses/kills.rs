//! Workers that are killed in the middle of their commits.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::common::{Scene, Worker, wait_for};
use crate::gitlog;
use crate::ground::{count, enqueue_all, history, progress, scene, until_analysed};

/// Commits of each of the two histories.
const COMMITS: usize = 2_500;
/// Workers that are killed meanwhile.
const KILLS: u64 = 5;
/// Commits of a task.
const BATCH: usize = 16;
/// Notes each claim of a commit with the worker that has its task then, and how each claim ended.
const NOTES: &str = "\
    CREATE TABLE noted (key bigint, fence bigint, status text, worker uuid); \
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        INSERT INTO public.noted VALUES (NEW.id, NEW.fence, NEW.status, \
            (SELECT worker FROM queue_worker.processed_tasks WHERE task_id = NEW.task_id)); \
        RETURN NULL; \
    END $$; \
    CREATE TRIGGER note AFTER INSERT OR UPDATE ON queue_worker_git.analyses \
        FOR EACH ROW EXECUTE FUNCTION note()";
/// The claims that came to no end, by the worker whose they were.
const CUT: &str = "\
    SELECT worker, count(*) FROM noted n WHERE status = 'running' AND NOT EXISTS \
        (SELECT FROM noted e WHERE e.key = n.key AND e.fence = n.fence AND e.status <> 'running') \
    GROUP BY worker";
/// Time for all of it.
const LIMIT: Duration = Duration::from_secs(300);

#[tokio::test]
async fn commits_of_killed_workers_are_analysed_once_more_and_no_others() {
    let scene = scene(BATCH).await;
    sqlx::raw_sql(NOTES).execute(&scene.pool).await.unwrap();
    let repositories =
        [31, 32].map(|seed| (format!("r{seed}"), history(scene.path(), seed, COMMITS)));
    let total: u64 = repositories.iter().map(|(_, git_dir)| count(git_dir)).sum();
    let mut workers: Vec<Worker> = Vec::new();
    for name in ["a", "b", "c"] {
        workers.push(scene.worker(name).await);
    }
    for (name, git_dir) in &repositories {
        enqueue_all(&scene, name, name, git_dir).await;
    }
    let done = async || {
        let mut done = 0;
        for (name, _) in &repositories {
            done += progress(&scene, name).await.succeeded;
        }
        done
    };
    let (mut logs, mut killed) = (String::new(), Vec::new());
    let (start, mut kills) = (Instant::now(), 0);
    loop {
        assert!(start.elapsed() < LIMIT, "{} of {total} after {LIMIT:?}", done().await);
        let done = done().await;
        if done == total {
            break;
        }
        // Spread over the whole way.
        if kills < KILLS && done >= total * (kills + 1) / (KILLS + 2) {
            let mut victim = workers.remove(0);
            victim.kill().await;
            logs.push_str(&victim.log());
            killed.push(id(&victim));
            kills += 1;
            workers.push(
                scene.worker(["d", "e", "f", "g", "h"][usize::try_from(kills - 1).unwrap()]).await,
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    scene.until_empty().await;
    assert_eq!(kills, KILLS);
    for worker in &mut workers {
        logs.push_str(&worker.log());
        worker.terminate().await;
    }
    let rows: usize = repositories
        .iter()
        .flat_map(|(_, git_dir)| gitlog::rows(git_dir).into_values())
        .map(|rows| rows.len())
        .sum();
    let found = scene.count("SELECT count(*) FROM queue_worker_git.file_changes").await;
    assert_eq!(found, i64::try_from(rows).unwrap());
    let found = scene.count("SELECT count(*) FROM queue_worker_git.commits").await;
    assert_eq!(found, i64::try_from(total).unwrap());
    only_cut_ones_again(&scene, total, &killed).await;
    for complaint in ["index.lock", "cannot lock ref", "Unable to create", "unable to create"] {
        assert!(!logs.contains(complaint), "{complaint}:\n{logs}");
    }
    assert_eq!(scene.letters().await, []);
}

/// The id under which a worker claims tasks.
fn id(worker: &Worker) -> Uuid {
    let log = worker.log();
    let (_, rest) = log.split_once(" starts as ").unwrap();
    rest.split(',').next().unwrap().parse().unwrap()
}

/// Each commit was finished once, and claimed once more for each claim that a kill cut off.
async fn only_cut_ones_again(scene: &Scene, total: u64, killed: &[Uuid]) {
    let total = i64::try_from(total).unwrap();
    let ends: Vec<(String, i64, i64)> = sqlx::query_as(
        "SELECT status, count(*), count(DISTINCT key) FROM noted \
         WHERE status NOT IN ('queued', 'running') GROUP BY 1",
    )
    .fetch_all(&scene.pool)
    .await
    .unwrap();
    assert_eq!(ends, [("succeeded".to_owned(), total, total)]);
    let cut: Vec<(Option<Uuid>, i64)> = sqlx::query_as(CUT).fetch_all(&scene.pool).await.unwrap();
    for (worker, claims) in &cut {
        let was_killed = worker.is_some_and(|worker| killed.contains(&worker));
        assert!(was_killed, "{claims} claims of {worker:?}, who was not killed, came to no end");
    }
    let cut: i64 = cut.iter().map(|(_, claims)| claims).sum();
    assert!(cut > 0, "no kill cut anything off");
    let claims = scene.count("SELECT count(*) FROM noted WHERE status = 'running'").await;
    let attempts = "SELECT sum(attempts)::bigint FROM queue_worker_git.analyses";
    assert_eq!((claims, scene.count(attempts).await), (total + cut, total + cut));
}

/// Stores that go away in the middle cost time and nothing else: no attempt, no commit, no row.
#[tokio::test]
async fn stores_that_go_away_cost_no_attempt() {
    let mut scene = scene(BATCH).await;
    let git_dir = history(scene.path(), 33, 600);
    let total = count(&git_dir);
    let mut worker = scene.worker("a").await;
    enqueue_all(&scene, "all", "r", &git_dir).await;
    let reached = async |scene: &Scene, share: u64| {
        wait_for("some commits", async || progress(scene, "r").await.succeeded >= share).await;
    };
    reached(&scene, total / 8).await;
    scene.postgres.kill();
    scene.postgres.restart().await.unwrap();
    scene.pool = sqlx::PgPool::connect(&scene.database).await.unwrap();
    reached(&scene, total / 2).await;
    scene.redis.kill();
    scene.redis.restart().await.unwrap();
    until_analysed(&scene, "r", total).await;
    scene.until_empty().await;
    let rows: usize = gitlog::rows(&git_dir).values().map(Vec::len).sum();
    let found = scene.count("SELECT count(*) FROM queue_worker_git.file_changes").await;
    assert_eq!(found, i64::try_from(rows).unwrap());
    let burnt = "SELECT count(*) FROM queue_worker.processed_tasks WHERE attempts > 0";
    assert_eq!(scene.count(burnt).await, 0, "{}", worker.log());
    assert_eq!(scene.letters().await, []);
    worker.terminate().await;
}

/// A drain that cuts tasks off leaves no lock, burns no attempt, and others go on at once.
#[tokio::test]
async fn a_drain_in_the_middle_leaves_nothing_held() {
    let scene = scene(64).await;
    let git_dir = history(scene.path(), 34, 900);
    let total = count(&git_dir);
    let hurry = [("QUEUE_WORKER_DRAIN__TIMEOUT", "1ms")];
    let mut first = scene.worker_with("a", &hurry).await;
    enqueue_all(&scene, "all", "r", &git_dir).await;
    wait_for("some commits", async || progress(&scene, "r").await.succeeded > 50).await;
    first.terminate().await;
    let mut redis = scene.redis_connection().await;
    let locks: Vec<String> =
        redis::cmd("KEYS").arg("*lock*:*").query_async(&mut redis).await.unwrap();
    assert_eq!(locks, Vec::<String>::new(), "{}", first.log());
    let running = "SELECT count(*) FROM queue_worker_git.analyses WHERE status = 'running'";
    assert_eq!(scene.count(running).await, 0, "{}", first.log());
    let mut second = scene.worker("b").await;
    until_analysed(&scene, "r", total).await;
    scene.until_empty().await;
    let burnt = "SELECT count(*) FROM queue_worker.processed_tasks WHERE attempts + crashes > 0";
    assert_eq!(scene.count(burnt).await, 0, "{}", second.log());
    second.terminate().await;
}

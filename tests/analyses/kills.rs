//! Workers that are killed in the middle of their commits.

use std::time::Duration;

use tokio::time::Instant;

use crate::common::{Scene, Worker, wait_for};
use crate::gitlog;
use crate::ground::{count, enqueue_all, history, progress, scene, until_analysed};

/// Set, the test runs in its full length: 5,000 commits.
const FULL: &str = "QUEUE_WORKER_TEST_GIT_FULL";
/// Commits of each of the two histories, and in full length.
const COMMITS: (usize, usize) = (750, 2_500);
/// Workers that are killed meanwhile.
const KILLS: u64 = 5;
/// Commits of a task, and tasks of a worker at once (of the scene).
const BATCH: usize = 16;
const CONCURRENCY: u64 = 8;
/// Time for all of it.
const LIMIT: Duration = Duration::from_secs(300);

#[tokio::test]
async fn commits_of_killed_workers_are_analysed_once_more_and_no_others() {
    let scene = scene(BATCH).await;
    let commits = if std::env::var_os(FULL).is_some() { COMMITS.1 } else { COMMITS.0 };
    let repositories =
        [31, 32].map(|seed| (format!("r{seed}"), history(scene.path(), seed, commits)));
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
    let mut logs = String::new();
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
    let again =
        scene.count("SELECT sum(attempts - 1)::bigint FROM queue_worker_git.analyses").await;
    let most = KILLS * CONCURRENCY * BATCH as u64;
    assert!(u64::try_from(again).unwrap() <= most, "{again} analysed again, more than {most}");
    for complaint in ["index.lock", "cannot lock ref", "Unable to create", "unable to create"] {
        assert!(!logs.contains(complaint), "{complaint}:\n{logs}");
    }
    assert_eq!(scene.letters().await, []);
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

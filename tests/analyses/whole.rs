//! Whole histories: what a worker leaves in the database, beside what git says.

use std::collections::BTreeMap;
use std::path::Path;

use queue_worker::handler::git::Payload;
use rustix::process::Signal;
use sqlx::Row;

use crate::common::{Scene, wait_for};
use crate::gitlog;
use crate::ground::{count, enqueue_all, handler, history, progress, scene, until_analysed};
use crate::repository::{all_commits, git, line, said};

/// Commits of the histories.
const COMMITS: usize = 300;

/// Name and address, and how many commits: by git, mailmap applied.
fn shortlog(git_dir: &Path) -> BTreeMap<String, i64> {
    let said = line(git_dir, &["shortlog", "-sne", "--branches", "--tags"]);
    said.lines()
        .map(|line| {
            let (count, who) = line.split_once('\t').unwrap();
            (who.to_owned(), count.trim().parse().unwrap())
        })
        .collect()
}

/// Lines added and deleted by address, mailmap applied, merges left out: by git.
fn numstat(git_dir: &Path) -> BTreeMap<String, (i64, i64)> {
    let arguments = [
        "log",
        "--branches",
        "--tags",
        "--no-merges",
        "--numstat",
        "-M50%",
        "-l1000",
        "--use-mailmap",
        "--format=@%aE",
    ];
    let mut sums: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    let mut who = String::new();
    for line in String::from_utf8_lossy(&said(git_dir, &arguments)).lines() {
        if let Some(email) = line.strip_prefix('@') {
            email.clone_into(&mut who);
            sums.entry(who.clone()).or_default();
        } else if let [added, deleted, _] = line.splitn(3, '\t').collect::<Vec<_>>()[..] {
            let sum = sums.entry(who.clone()).or_default();
            sum.0 += added.parse().unwrap_or(0);
            sum.1 += deleted.parse().unwrap_or(0);
        }
    }
    sums
}

async fn authors(scene: &Scene) -> BTreeMap<String, i64> {
    let rows = sqlx::query(
        "SELECT name, email, sum(commits)::bigint FROM queue_worker_git.author_days GROUP BY 1, 2",
    )
    .fetch_all(&scene.pool)
    .await
    .unwrap();
    rows.iter()
        .map(|row| {
            let (name, email): (String, String) = (row.get(0), row.get(1));
            (format!("{name} <{email}>"), row.get(2))
        })
        .collect()
}

async fn lines(scene: &Scene) -> BTreeMap<String, (i64, i64)> {
    let rows = sqlx::query(
        "SELECT p.email, sum(c.numstat_added)::bigint, sum(c.numstat_deleted)::bigint \
         FROM queue_worker_git.commits c JOIN queue_worker_git.people p ON p.id = c.author_id \
         WHERE c.kind IN ('root', 'normal') GROUP BY 1",
    )
    .fetch_all(&scene.pool)
    .await
    .unwrap();
    rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect()
}

#[tokio::test]
async fn a_whole_history_is_what_git_says() {
    let scene = scene(32).await;
    let git_dir = history(scene.path(), 11, COMMITS);
    let total = count(&git_dir);
    let mut worker = scene.worker("a").await;
    enqueue_all(&scene, "all", "r", &git_dir).await;
    until_analysed(&scene, "r", total).await;
    assert_eq!(authors(&scene).await, shortlog(&git_dir));
    let mut by_git = numstat(&git_dir);
    by_git.retain(|_, (added, deleted)| *added + *deleted > 0);
    let mut ours = lines(&scene).await;
    ours.retain(|_, (added, deleted)| *added + *deleted > 0);
    assert_eq!(ours, by_git);
    let rows: usize = gitlog::rows(&git_dir).values().map(Vec::len).sum();
    let found = scene.count("SELECT count(*) FROM queue_worker_git.file_changes").await;
    assert_eq!(found, i64::try_from(rows).unwrap());
    let lines_of_binary = "SELECT count(*) FROM queue_worker_git.file_changes \
                           WHERE kind IN ('binary', 'unread') AND added IS NOT NULL";
    assert_eq!(scene.count(lines_of_binary).await, 0);
    let uncounted = "SELECT count(*) FROM queue_worker_git.file_changes WHERE added IS NULL";
    assert!(scene.count(uncounted).await > 0);
    let parents: usize = line(&git_dir, &["rev-list", "--parents", "--branches"])
        .lines()
        .map(|line| line.split(' ').count() - 1)
        .sum();
    let found = scene.count("SELECT count(*) FROM queue_worker_git.parents").await;
    assert_eq!(found, i64::try_from(parents).unwrap());
    let shares = "SELECT count(*) FROM (SELECT path, sum(share) AS s FROM \
                  queue_worker_git.ownership GROUP BY path) x WHERE s NOT BETWEEN 0.999 AND 1.001";
    assert_eq!(scene.count(shares).await, 0);
    assert!(scene.count("SELECT count(*) FROM queue_worker_git.hotspots").await > 0);
    assert!(scene.count("SELECT count(*) FROM queue_worker_git.test_ratio").await > 0);
    scene.until_empty().await;
    assert_eq!(scene.letters().await, []);
    worker.terminate().await;
}

/// A second time nothing is done: the tasks have the same ids, and the commits are known.
#[tokio::test]
async fn a_second_time_nothing_is_done() {
    let scene = scene(16).await;
    let git_dir = history(scene.path(), 12, 60);
    let total = count(&git_dir);
    let mut worker = scene.worker("a").await;
    enqueue_all(&scene, "first", "r", &git_dir).await;
    until_analysed(&scene, "r", total).await;
    scene.until_empty().await;
    let tasks = scene.count("SELECT count(*) FROM queue_worker.processed_tasks").await;
    let tip = line(&git_dir, &["rev-parse", "b0"]);
    enqueue_all(&scene, "second", "r", &git_dir).await;
    let one = format!(r#"{{"repo":"r","url":"{}","commit":"{tip}"}}"#, git_dir.display());
    scene.task("one", "commits", &one).await;
    let row = scene.until_status("one", "succeeded").await;
    let said: serde_json::Value = serde_json::from_slice(&row.result.unwrap()).unwrap();
    assert_eq!((&said["known"], &said["analysed"]), (&1.into(), &0.into()));
    scene.until_status("second", "succeeded").await;
    scene.until_empty().await;
    let now = scene.count("SELECT count(*) FROM queue_worker.processed_tasks").await;
    assert_eq!(now, tasks + 2, "the tasks of the second time are those of the first");
    let attempts = scene.count("SELECT max(attempts)::bigint FROM queue_worker_git.analyses").await;
    assert_eq!(attempts, 1);
    worker.terminate().await;
}

/// Refused commits have a name, and neither their neighbours nor their task fail.
#[tokio::test]
async fn a_commit_that_is_gone_has_a_name() {
    let scene = scene(16).await;
    let git_dir = history(scene.path(), 13, 20);
    let tip = line(&git_dir, &["rev-parse", "b0"]);
    let worker = scene.worker("a").await;
    let gone = "1".repeat(40);
    let url = git_dir.display();
    let some = format!(r#"{{"repo":"r","url":"{url}","commits":["{gone}","{tip}"]}}"#);
    scene.task("some", "commits", &some).await;
    let row = scene.until_status("some", "succeeded").await;
    let said: serde_json::Value = serde_json::from_slice(&row.result.unwrap()).unwrap();
    assert_eq!(said["refused"]["COMMIT_GONE"], 1, "{said}");
    let progress = progress(&scene, "r").await;
    assert_eq!((progress.succeeded, progress.refused, progress.open), (1, 1, 0));
    let range = format!(r#"{{"repo":"r","url":"{url}","range":"nowhere..b0"}}"#);
    scene.task("range", "commits", &range).await;
    let row = scene.until_status("range", "failed").await;
    assert!(row.error.unwrap().contains("`range`"));
    let range = format!(r#"{{"repo":"r","url":"{url}","range":"b0~1..b0"}}"#);
    scene.task("odd", "commits", &range).await;
    scene.until_status("odd", "failed").await;
    let range = format!(r#"{{"repo":"r","url":"{url}","range":"b1..b0"}}"#);
    scene.task("good", "commits", &range).await;
    let expected: u64 = line(&git_dir, &["rev-list", "--count", "b1..b0"]).parse().unwrap();
    wait_for("the range", async || {
        crate::ground::progress(&scene, "r").await.succeeded >= expected
    })
    .await;
    drop(worker);
}

fn said_with(git_dir: &Path, arguments: &[&str], input: &str) -> String {
    use std::io::Write;
    let mut command = git(git_dir);
    command.args(arguments).stdin(std::process::Stdio::piped());
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Ten thousand million paths among good commits: a name for one, and all others done.
#[tokio::test]
async fn a_monster_stops_neither_its_neighbours_nor_the_worker() {
    let scene = scene(64).await;
    scene.write_config(&format!("{}commit_timeout = \"2s\"\n", crate::ground::handler(&scene, 64)));
    let git_dir = history(scene.path(), 14, 40);
    let blob = said_with(&git_dir, &["hash-object", "-w", "--stdin"], "x\n");
    let mut entry = format!("100644 blob {blob}");
    for _ in 0..10 {
        let lines: Vec<String> = (0..10).map(|name| format!("{entry}\t{name}\n")).collect();
        entry = format!("040000 tree {}", said_with(&git_dir, &["mktree"], &lines.concat()));
    }
    let tree = entry.rsplit(' ').next().unwrap();
    let bomb = line(&git_dir, &["commit-tree", tree, "-m", "bomb"]);
    said(&git_dir, &["update-ref", "refs/heads/bomb", &bomb]);
    let mut worker = scene.worker("a").await;
    enqueue_all(&scene, "all", "r", &git_dir).await;
    let total = count(&git_dir);
    until_analysed(&scene, "r", total - 1).await;
    wait_for("the bomb", async || progress(&scene, "r").await.refused == 1).await;
    let code = "SELECT count(*) FROM queue_worker_git.analyses WHERE error_code = 'TOO_LARGE'";
    assert_eq!(scene.count(code).await, 1);
    scene.until_empty().await;
    let trouble = "SELECT count(*) FROM queue_worker.processed_tasks WHERE attempts + crashes > 0";
    assert_eq!(scene.count(trouble).await, 0);
    worker.terminate().await;
}

/// However many kinds analyse commits, they share the sessions of their worker; also after a reload.
#[tokio::test]
async fn kinds_share_their_sessions() {
    let scene = scene(32).await;
    let first = handler(&scene, 32);
    let second = first.replace("[handler.commits]", "[handler.others]");
    scene.write_config(&format!("{first}{second}"));
    let git_dir = history(scene.path(), 12, 30);
    let mut worker = scene.worker("a").await;
    let commits = all_commits(&git_dir);
    let url = git_dir.to_str().unwrap();
    // Each connection shows what it was last used for.
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'queue-worker' \
                    AND query LIKE '%queue_worker_git%'";
    let run = async |name: &str, kind: &str| {
        // The second time it only looks.
        for id in [name.to_owned(), format!("{name}-again")] {
            scene.task(&id, kind, &Payload::of_commits(name, url, &commits)).await;
            scene.until_status(&id, "succeeded").await;
        }
        assert_eq!(scene.count(sessions).await, 1, "{name}");
    };
    run("r1", "commits").await;
    run("r2", "others").await;
    worker.signal(Signal::HUP);
    worker.until_logged("reloaded").await;
    run("r3", "others").await;
    worker.terminate().await;
}

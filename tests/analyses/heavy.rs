//! Commits that are heavy, though none is refused: what of them waits for Postgres is bounded.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use queue_worker::handler::git::{ObjectId, Payload};
use tokio::time::Instant;

use crate::bombs::{children, said_with};
use crate::ground::scene;
use crate::repository::{git, line};

/// Paths that each of the commits changes, as a power of ten.
const DEPTH: u32 = 4;
/// Commits of the task: all of their changes together are more than a gigabyte.
const COMMITS: usize = 200;
/// Resident memory of the worker, in bytes.
const MOST: u64 = 512 * 1024 * 1024;
/// Children that did nothing for so long have nothing to do.
const STILL: Duration = Duration::from_secs(2);
/// Each write takes longer than all of that, and gives up only then.
const SLOW: &str = "\
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
        $$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$; \
    CREATE TRIGGER slow BEFORE INSERT ON queue_worker_git.file_changes \
        FOR EACH STATEMENT EXECUTE FUNCTION slow()";
/// Time until then.
const LIMIT: Duration = Duration::from_secs(90);

/// The one who writes is held up; the engine goes on until the room is used up, and no further.
#[tokio::test]
async fn what_waits_for_postgres_is_bounded_in_bytes() {
    let scene = scene(COMMITS).await;
    let git_dir = scene.path().join("heavy.git");
    assert!(
        git(scene.path()).args(["init", "-q", "--bare"]).arg(&git_dir).status().unwrap().success()
    );
    let commits = alternating(&git_dir, DEPTH, COMMITS);
    sqlx::raw_sql(SLOW).execute(&scene.pool).await.unwrap();
    let mut worker = scene.worker("a").await;
    let parent = worker.child.id().unwrap();
    let mirrors = scene.path().join("mirrors");
    let payload = Payload::of_commits("heavy", git_dir.to_str().unwrap(), &commits);
    scene.task("t", "commits", &payload).await;
    let started = Instant::now();
    let (mut used, mut since, mut peak) = (0, started, 0);
    while used == 0 || since.elapsed() < STILL {
        assert!(started.elapsed() < LIMIT, "the engine goes on and on");
        peak = peak.max(memory(parent));
        let now: u64 = children(parent, &mirrors)
            .iter()
            .filter(|(_, command, _)| command.contains("diff-tree"))
            .map(|(pid, _, _)| processor_time(*pid))
            .sum();
        if now != used {
            (used, since) = (now, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(peak < MOST, "{} MiB", peak >> 20);
    worker.kill().await;
}

/// A line of so many commits, each of which changes all of the `10^depth` gitlinks of its tree, under
/// long names: git reads no content for them.
fn alternating(folder: &Path, depth: u32, commits: usize) -> Vec<ObjectId> {
    let trees = ["1", "2"].map(|digit| {
        let mut entry = format!("160000 commit {}", digit.repeat(40));
        for _ in 0..depth {
            let mut tree = String::new();
            for name in 0..10 {
                writeln!(tree, "{entry}\t{name}{}", "-".repeat(39)).unwrap();
            }
            entry = format!("040000 tree {}", said_with(folder, &["mktree", "--missing"], &tree));
        }
        entry.rsplit(' ').next().unwrap().to_owned()
    });
    let mut made: Vec<ObjectId> = Vec::with_capacity(commits);
    for n in 0..commits {
        let mut arguments =
            vec!["commit-tree".to_owned(), trees[n % 2].clone(), "-m".into(), "x".into()];
        if let Some(parent) = made.last() {
            arguments.extend(["-p".to_owned(), parent.to_string()]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        made.push(line(folder, &arguments).parse().unwrap());
    }
    let tip = made.last().unwrap().to_string();
    line(folder, &["update-ref", "refs/heads/main", &tip]);
    made
}

/// Resident memory of a process, in bytes.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Clock ticks that a process has used; none once it has ended.
fn processor_time(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

//! Git children that die of memory. What their limit explains is a result with a name; what it does
//! not explain is tried again, and in the end a dead letter with its evidence.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use queue_worker::handler::git::{ObjectId, Payload};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use crate::bombs::{children, tree_bomb};
use crate::common::{Letter, Scene, Worker};
use crate::ground::{handler, history, progress, scene};
use crate::repository::{all_commits, import};
use crate::said::say;

/// Commits that are analysed beside the one that cannot be.
const NEIGHBOURS: usize = 8;
/// How often a task is tried.
const ATTEMPTS: i32 = 3;
/// Children that try a commit, each once: the one of the batch, one of its own, one for paths only.
const STEPS: usize = 3;
/// Nothing but a bomb makes a child that large.
const FAT: u64 = 48 * 1024 * 1024;

/// A child that is that large for so long was seen so by the worker.
const SEEN: Duration = Duration::from_millis(200);

/// A scene whose tasks are tried so often, with more keys for the handler.
async fn scene_with(keys: &str) -> Scene {
    let scene = scene(16).await;
    let handler = handler(&scene, 16);
    let tries = format!("max_attempts = {ATTEMPTS}\nbackoff_base = \"50ms\"\n");
    scene.write_config(&format!("{handler}{tries}{keys}"));
    scene
}

/// A history with a commit of `10^depth` paths in it, and a task of that commit and some neighbours.
fn bombed(scene: &Scene, depth: u32) -> (PathBuf, ObjectId, String) {
    let git_dir = history(scene.path(), 51, 30);
    let mut commits = all_commits(&git_dir)[..NEIGHBOURS].to_vec();
    let bomb = tree_bomb(&git_dir, depth);
    commits.insert(NEIGHBOURS / 2, bomb);
    crate::repository::said(&git_dir, &["update-ref", "refs/heads/bomb", &bomb.to_string()]);
    let payload = Payload::of_commits("r51", git_dir.to_str().unwrap(), &commits);
    (git_dir, bomb, payload)
}

/// What the worker did before, it still does.
async fn still_works(scene: &Scene, worker: &mut Worker, git_dir: &Path) {
    let payload = Payload::of_commits("after", git_dir.to_str().unwrap(), &all_commits(git_dir));
    scene.task("after", "commits", &payload).await;
    scene.until_status("after", "succeeded").await;
    assert!(worker.child.try_wait().unwrap().is_none());
    worker.terminate().await;
}

/// The only dead letter, as a person is shown it.
async fn shown(scene: &Scene) -> (Letter, String) {
    let letter = scene.letters().await.pop().unwrap();
    assert_eq!(scene.letters_without_bytes().await, 1);
    let id = letter.id.to_string();
    (letter, say(scene, &["dead", "show", &id]).await.good().text())
}

/// The limit of a child explains its death: all steps were taken, and the commit has a name.
#[tokio::test]
async fn a_child_that_dies_of_its_limit_costs_one_commit_and_no_task() {
    let scene = scene_with("memory_max = \"64MiB\"\n").await;
    let (_, bomb, payload) = bombed(&scene, 6);
    let mut worker = scene.worker("a").await;
    scene.task("t", "commits", &payload).await;
    let row = scene.until_status("t", "succeeded").await;
    assert_eq!((row.attempts, row.crashes), (0, 0));
    let result: serde_json::Value = serde_json::from_slice(&row.result.unwrap()).unwrap();
    assert_eq!(result["analysed"], NEIGHBOURS);
    assert_eq!(result["refused"], serde_json::json!({"TOO_LARGE": 1}));
    let refused = ["git", "report", "r51", "--view", "refused", "--format", "json"];
    let refused = say(&scene, &refused).await.good().json()["refused"].take();
    assert_eq!(refused[0]["commit"], bomb.to_string(), "{refused}");
    let detail = refused[0]["detail"].as_str().unwrap();
    for part in ["git diff-tree ended with exit 128", "may have 64 MiB", "emory", "paths only"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    assert_eq!(scene.letters().await, []);
    let elsewhere = history(scene.path(), 52, 10);
    still_works(&scene, &mut worker, &elsewhere).await;
}

/// Nothing that the worker knows explains a SIGKILL, which is how the kernel ends the largest when
/// memory runs out.
#[tokio::test]
async fn a_child_that_is_killed_at_each_attempt_ends_in_the_dead_letters() {
    let scene = scene_with("memory_max = \"1GiB\"\n").await;
    let (_, bomb, payload) = bombed(&scene, 7);
    let mut worker = scene.worker("a").await;
    scene.task("t", "commits", &payload).await;
    let parent = worker.child.id().unwrap();
    let mirrors = scene.path().join("mirrors");
    let mut killed = HashSet::new();
    let mut fat_since = HashMap::new();
    let out_of_memory = async {
        loop {
            for (pid, command, peak) in children(parent, &mirrors) {
                let is_fat = command.contains("diff-tree") && peak >= FAT;
                // The worker is to have seen it, too.
                let is_seen =
                    is_fat && fat_since.entry(pid).or_insert_with(Instant::now).elapsed() >= SEEN;
                if is_seen && killed.insert(pid) {
                    // It may have ended meanwhile, and then the count says so.
                    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let row = tokio::select! {
        row = scene.until_status("t", "failed") => row,
        () = out_of_memory => unreachable!("it kills for ever"),
    };
    // Only the first time its neighbours are asked about in the same child, and then it once more.
    assert_eq!(killed.len(), STEPS * usize::try_from(ATTEMPTS).unwrap() + 1);
    assert_eq!((row.attempts, row.crashes), (ATTEMPTS, 0));
    let (letter, text) = shown(&scene).await;
    assert_eq!((letter.task_id.as_deref(), &*letter.reason), (Some("t"), "failed"));
    assert_eq!((letter.attempts, letter.payload), (ATTEMPTS, Some(payload.into_bytes())));
    let bomb = bomb.to_string();
    let parts = [
        "1 of 9 commits",
        &bomb,
        "git diff-tree ended with signal SIGKILL, was seen with",
        "MiB of memory and may have 1024 MiB",
        "paths only; before that: git diff-tree ended with signal SIGKILL",
    ];
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
    let done = progress(&scene, "r51").await;
    assert_eq!((done.succeeded, done.refused), (NEIGHBOURS as u64, 0));
    assert_eq!((done.open, done.abandoned), (1, 1));
    let elsewhere = history(scene.path(), 52, 10);
    still_works(&scene, &mut worker, &elsewhere).await;
}

/// The child that reads commit objects has no steps to take, and whom it dies of cannot be told: so
/// none of the commits has a name afterwards, and the task is to be tried again.
#[tokio::test]
async fn a_reader_that_is_killed_at_each_attempt_ends_in_the_dead_letters() {
    let wrapper = tempfile::tempdir().unwrap();
    let program = wrapper.path().join("git");
    let script = "#!/bin/sh\n\
                  case \"$*\" in *--batch-command*) kill -KILL $$ ;; esac\n\
                  exec git \"$@\"\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let scene = scene_with(&format!("program = \"{}\"\n", program.display())).await;
    let git_dir = history(scene.path(), 53, 30);
    let commits = &all_commits(&git_dir)[..NEIGHBOURS];
    let mut worker = scene.worker("a").await;
    scene.task("t", "commits", &Payload::of_commits("r", git_dir.to_str().unwrap(), commits)).await;
    let row = scene.until_status("t", "failed").await;
    assert_eq!((row.attempts, row.crashes), (ATTEMPTS, 0));
    let (letter, text) = shown(&scene).await;
    assert_eq!((&*letter.reason, letter.attempts), ("failed", ATTEMPTS));
    // Between the two it may say what was seen of its memory, if it lived for long enough.
    let death = ["8 of 8 commits", "git cat-file ended with signal SIGKILL, ", "may have 128 MiB"];
    assert!(death.iter().all(|part| text.contains(part)), "{text}");
    let done = progress(&scene, "r").await;
    assert_eq!((done.succeeded, done.refused, done.open), (0, 0, NEIGHBOURS as u64));
    // Once git lives, so do the commits.
    fs::write(&program, "#!/bin/sh\nexec git \"$@\"\n").unwrap();
    let id = letter.id.to_string();
    say(&scene, &["dead", "requeue", &id]).await.good();
    scene.until_status("t", "succeeded").await;
    assert_eq!(progress(&scene, "r").await.succeeded, NEIGHBOURS as u64);
    worker.terminate().await;
}

/// A fetch has no way to ask for less, so its limit explains nothing about a single commit.
#[tokio::test]
async fn a_fetch_that_dies_of_memory_ends_in_the_dead_letters() {
    let scene = scene_with("fetch_memory_max = \"64MiB\"\n").await;
    let size = 100_000_000;
    let mut stream = format!(
        "commit refs/heads/main\ncommitter C <c@x> 1 +0000\ndata 0\n\n\
         M 100644 inline blob\ndata {size}\n"
    )
    .into_bytes();
    stream.resize(stream.len() + size, b'x');
    stream.push(b'\n');
    let git_dir = import(&scene.path().join("big.git"), &stream);
    let mut worker = scene.worker("a").await;
    let payload = Payload::of_commits("big", git_dir.to_str().unwrap(), &all_commits(&git_dir));
    scene.task("t", "commits", &payload).await;
    let row = scene.until_status("t", "failed").await;
    assert_eq!((row.attempts, row.crashes), (ATTEMPTS, 0));
    let (letter, text) = shown(&scene).await;
    assert_eq!((&*letter.reason, letter.attempts), ("failed", ATTEMPTS));
    let commit = all_commits(&git_dir)[0].to_string();
    let parts = [
        &*commit,
        "the fetch failed: out of memory, of which each program here may have 64 MiB",
        "fatal: ",
    ];
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(progress(&scene, "big").await.refused, 0);
    let elsewhere = history(scene.path(), 52, 10);
    still_works(&scene, &mut worker, &elsewhere).await;
}

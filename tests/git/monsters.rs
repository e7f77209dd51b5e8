//! Commits that are too large, among good ones: each has a named outcome, its neighbours are done,
//! and no child takes more memory than it may.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use queue_worker::handler::git::{
    Analysed, Engine as _, FileKind, Flags, GitEngine, GitOptions, GitVersion, ObjectId, Outcome,
    Profile, Refusal,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::bombs::{children, tree_bomb};
use crate::invented;
use crate::repository::{all_commits, id, import, outcomes, unlocked};

/// What a child may have resident at most, in bytes.
const PEAK: u64 = 128 * 1024 * 1024;
/// More commits than the engine has under way between its children and whoever takes results.
const UNDER_WAY: usize = 200;

/// A history that ends with a commit of one blob of `lines` empty lines.
fn with_newlines(lines: usize) -> Vec<u8> {
    let mut stream = invented::history(5, 30);
    let header = format!(
        "commit refs/heads/monster\ncommitter C <c@x> 1 +0000\ndata 0\n\nfrom :30\n\
         M 100644 inline empty-lines\ndata {lines}\n"
    );
    stream.extend_from_slice(header.as_bytes());
    stream.resize(stream.len() + lines, b'\n');
    stream.push(b'\n');
    stream
}

/// Those of this process.
fn own_children(folder: &Path) -> Vec<(i32, String, u64)> {
    children(std::process::id(), folder)
}

/// The outcomes of commits, and the most memory that a child had meanwhile.
async fn watched(
    engine: &GitEngine,
    folder: &Path,
    commits: &[ObjectId],
) -> (HashMap<ObjectId, Outcome>, u64) {
    let mut peak = 0;
    let mirror = unlocked(folder);
    let mut work = std::pin::pin!(outcomes(engine, &mirror, commits));
    let found = loop {
        tokio::select! {
            found = &mut work => break found,
            () = tokio::time::sleep(Duration::from_millis(5)) => {
                peak = own_children(folder).iter().map(|(_, _, peak)| *peak).chain([peak]).max().unwrap();
            }
        }
    };
    (found, peak)
}

async fn engine(threshold: u64, change: impl FnOnce(&mut GitOptions)) -> GitEngine {
    let mut options = GitOptions::new("/nonexistent");
    change(&mut options);
    let profile = Profile { big_file_threshold: threshold, ..Profile::new(GitVersion::MINIMUM) };
    GitEngine::with_profile(&options, profile).await.unwrap()
}

fn neighbours_are_done(found: &HashMap<ObjectId, Outcome>, monsters: &[ObjectId]) {
    for (id, outcome) in found.iter().filter(|(id, _)| !monsters.contains(id)) {
        let analysis = outcome.analysis().unwrap_or_else(|| panic!("{id}: {outcome:?}"));
        assert!(!analysis.flags.contains(Flags::TRUNCATED), "{id}");
    }
}

#[tokio::test]
async fn a_blob_of_empty_lines_is_not_looked_into() {
    let folder = tempfile::tempdir().unwrap();
    let repository = import(&folder.path().join("r.git"), &with_newlines(50_000_000));
    let monster = id(&repository, "monster");
    let commits = all_commits(&repository);
    let engine = engine(16 << 20, |_| {}).await;
    let (found, peak) = watched(&engine, &repository, &commits).await;
    neighbours_are_done(&found, &[monster]);
    let analysis = found[&monster].analysis().unwrap();
    assert!(analysis.flags.contains(Flags::BIG_FILES_UNREAD));
    let change = analysis.changes.iter().find(|it| it.path == b"empty-lines").unwrap();
    assert_eq!((change.kind, change.added), (FileKind::Unread, None));
    assert_eq!(change.new_size, Some(50_000_000));
    assert!(peak <= PEAK, "a child had {peak} bytes");
    engine.close_idle().await;
}

/// With a larger threshold git tries, and has not the memory.
#[tokio::test]
async fn lines_that_take_too_much_memory_are_not_counted() {
    let folder = tempfile::tempdir().unwrap();
    let repository = import(&folder.path().join("r.git"), &with_newlines(50_000_000));
    let monster = id(&repository, "monster");
    let commits = all_commits(&repository);
    let engine = engine(1 << 30, |_| {}).await;
    let (found, peak) = watched(&engine, &repository, &commits).await;
    neighbours_are_done(&found, &[monster]);
    let analysis = found[&monster].analysis().unwrap();
    assert!(analysis.flags.contains(Flags::TRUNCATED));
    let change = analysis.changes.iter().find(|it| it.path == b"empty-lines").unwrap();
    assert_eq!((change.kind, change.added), (FileKind::Unread, None));
    assert_eq!((analysis.totals.added, analysis.totals.deleted), (0, 0));
    assert!(peak <= PEAK, "a child had {peak} bytes");
    engine.close_idle().await;
}

#[tokio::test]
async fn a_bomb_of_trees_is_too_large() {
    let folder = tempfile::tempdir().unwrap();
    let repository = import(&folder.path().join("r.git"), &invented::history(5, 30));
    let monsters = [tree_bomb(&repository, 10), tree_bomb(&repository, 6)];
    let mut commits = all_commits(&repository);
    commits.insert(3, monsters[0]);
    commits.insert(9, monsters[1]);
    let engine = engine(16 << 20, |_| {}).await;
    let (found, peak) = watched(&engine, &repository, &commits).await;
    neighbours_are_done(&found, &monsters);
    for monster in &monsters {
        assert_eq!(found[monster].refusal(), Some(Refusal::TooLarge), "{:?}", found[monster]);
    }
    assert!(peak <= PEAK, "a child had {peak} bytes");
    engine.close_idle().await;
}

#[tokio::test]
async fn the_limits_on_a_result_hold() {
    let folder = tempfile::tempdir().unwrap();
    let repository = import(&folder.path().join("r.git"), &invented::history(5, 30));
    let monster = tree_bomb(&repository, 2);
    let mut commits = all_commits(&repository);
    commits.insert(3, monster);
    for limit in ["files", "output"] {
        let engine = engine(16 << 20, |options| match limit {
            "files" => options.engine.files = 99,
            _ => options.engine.output = 8000,
        });
        let engine = engine.await;
        let (found, _) = watched(&engine, &repository, &commits).await;
        neighbours_are_done(&found, &[monster]);
        assert_eq!(found[&monster].refusal(), Some(Refusal::TooLarge), "{:?}", found[&monster]);
        engine.close_idle().await;
    }
}

#[tokio::test]
async fn a_child_killed_by_somebody_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let repository = import(&folder.path().join("r.git"), &invented::history(6, 600));
    let commits = all_commits(&repository);
    let engine = engine(16 << 20, |_| {}).await;
    let mirror = unlocked(&repository);
    let (sender, mut receiver) = mpsc::channel(1);
    let work = async {
        engine.analyse(&mirror, &commits, &sender).await;
        drop(sender);
    };
    let killing = async {
        let (mut found, mut killed, mut next) = (HashMap::new(), 0, 1);
        while let Some(Analysed { id, outcome, .. }) = receiver.recv().await {
            found.insert(id, outcome);
            if found.len() < next {
                continue;
            }
            let differ = own_children(&repository)
                .into_iter()
                .find(|(_, command, _)| command.contains("diff-tree"));
            let pid = differ.and_then(|(pid, ..)| Pid::from_raw(pid));
            if pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok()) {
                killed += 1;
                // Beyond all that is under way: a commit that loses all of its children would fail.
                next = found.len() + UNDER_WAY;
            }
        }
        (found, killed)
    };
    let ((), (found, killed)) = tokio::join!(work, killing);
    assert!(killed >= 2, "it was over before {killed} could be killed");
    assert_eq!(found.len(), commits.len());
    neighbours_are_done(&found, &[]);
    engine.close_idle().await;
    none_is_left(&repository).await;
}

/// Waits until no child works in `folder` any more: they were killed, and need a moment for that.
async fn none_is_left(folder: &Path) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !own_children(folder).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", own_children(folder));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_batch_that_nobody_waits_for_leaves_nothing_running() {
    let folder = tempfile::tempdir().unwrap();
    let repository = import(&folder.path().join("r.git"), &invented::history(6, 600));
    let commits = all_commits(&repository);
    let engine = engine(16 << 20, |_| {}).await;
    let mirror = unlocked(&repository);
    let (sender, mut receiver) = mpsc::channel(1);
    tokio::select! {
        () = engine.analyse(&mirror, &commits, &sender) => panic!("nobody took the results"),
        first = receiver.recv() => assert!(first.is_some()),
    }
    none_is_left(&repository).await;
    let taken = async {
        receiver.recv().await.unwrap();
        drop(receiver);
    };
    tokio::join!(engine.analyse(&mirror, &commits, &sender), taken);
    none_is_left(&repository).await;
}

//! Ranges and whole repositories, where something is wrong with the mirror.

use std::fs;
use std::path::PathBuf;

use queue_worker::domain::FailureClass;
use queue_worker::handler::git::Payload;

use crate::batches::Ground;
use crate::ground::{commit_mailmap, count};
use crate::repository::{damage, line};

const ENTRIES: &str = "SELECT count(*) FROM queue_worker_git.mailmap_entries";

/// The one mirror of the ground.
fn mirror(ground: &Ground) -> PathBuf {
    let folders = fs::read_dir(ground.scene.path().join("mirrors")).unwrap().flatten();
    folders.map(|entry| entry.path().join("mirror.git")).find(|path| path.exists()).unwrap()
}

fn all(ground: &Ground) -> String {
    Payload::of_all("r", ground.git_dir.to_str().unwrap())
}

#[tokio::test]
async fn a_damaged_mirror_is_cloned_anew_once() {
    let ground = Ground::new(60).await;
    let url = ground.git_dir.display();
    let range = format!(r#"{{"repo":"r","url":"{url}","range":"b1..b0"}}"#);
    let total = count(&ground.git_dir);
    let ranged: u64 = line(&ground.git_dir, &["rev-list", "--count", "b1..b0"]).parse().unwrap();
    assert_eq!(ground.run(&all(&ground)).await.unwrap()["commits"], total);
    let mark = mirror(&ground).join("queue-worker.json");
    let first = fs::read(&mark).unwrap();
    // Nothing is new, so that the fetch sees nothing of it.
    damage(&mirror(&ground));
    assert_eq!(ground.run(&all(&ground)).await.unwrap()["commits"], total);
    assert_ne!(fs::read(&mark).unwrap(), first);
    assert_eq!(ground.run(&range).await.unwrap()["commits"], ranged);
    // A second time it is the source that is to blame.
    damage(&mirror(&ground));
    let failure = ground.run(&all(&ground)).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::ForGood, "{failure:?}");
    assert_eq!(failure.status.as_deref(), Some("REPO_CORRUPT"), "{failure:?}");
}

#[tokio::test]
async fn a_mailmap_that_cannot_be_read_stops_nothing() {
    let ground = Ground::new(30).await;
    ground.run(&all(&ground)).await.unwrap();
    assert_eq!(ground.scene.count(ENTRIES).await, 4);
    // Too long: the one before it stays.
    let entry = "Long <long@example.com> <longer@example.com>\n";
    commit_mailmap(&ground.git_dir, &entry.repeat(17 * 1024 * 1024 / entry.len()));
    let said = ground.run(&all(&ground)).await.unwrap();
    assert_eq!(said["commits"], count(&ground.git_dir));
    assert_eq!(ground.scene.count(ENTRIES).await, 4);
    // Damaged: the same.
    commit_mailmap(&ground.git_dir, entry);
    let object = line(&ground.git_dir, &["rev-parse", "b0:.mailmap"]);
    ground.run(&all(&ground)).await.unwrap();
    assert_eq!(ground.scene.count(ENTRIES).await, 1);
    let loose = mirror(&ground).join("objects").join(&object[..2]).join(&object[2..]);
    fs::remove_file(&loose).unwrap();
    fs::write(&loose, "no object").unwrap();
    let said = ground.run(&all(&ground)).await.unwrap();
    assert_eq!(said["commits"], count(&ground.git_dir));
    assert_eq!(ground.scene.count(ENTRIES).await, 1);
    // Gone: then there is none.
    let tree = line(&ground.git_dir, &["rev-parse", "b1^{tree}"]);
    let last = line(&ground.git_dir, &["commit-tree", &tree, "-p", "b0", "-m", "without"]);
    line(&ground.git_dir, &["update-ref", "refs/heads/b0", &last]);
    ground.run(&all(&ground)).await.unwrap();
    assert_eq!(ground.scene.count(ENTRIES).await, 0);
}

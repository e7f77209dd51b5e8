//! Commits that were refused although they are there, and what failed or lost tasks leave behind.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use queue_worker::handler::git::{ObjectId, Payload};

use crate::batches::{Fields, Ground};
use crate::common::{STREAM, Scene, wait_for};
use crate::ground::{count, handler, history, place, progress, results, scene};
use crate::repository::{all_commits, id, line, said};
use crate::said::say;

/// A commit upon the default branch that no ref reaches yet.
fn new_commit(git_dir: &Path) -> ObjectId {
    let parent = id(git_dir, "refs/heads/b0");
    let tree = format!("{parent}^{{tree}}");
    let arguments = ["commit-tree", &tree, "-p", &parent.to_string(), "-m", "new"];
    line(git_dir, &arguments).parse().unwrap()
}

/// A copy of a repository, whole or only its newest commits.
fn copy(git_dir: &Path, name: &str, depth: Option<u32>) -> PathBuf {
    let target = git_dir.with_file_name(name);
    let url = format!("file://{}", git_dir.display());
    let depth = depth.map(|depth| format!("--depth={depth}"));
    let mut arguments = vec!["clone", "--quiet", "--mirror"];
    arguments.extend(depth.as_deref());
    arguments.extend([&*url, target.to_str().unwrap()]);
    said(git_dir, &arguments);
    target
}

fn of_field<'a>(fields: &'a Fields, name: &str) -> &'a [u8] {
    &fields.iter().find(|(field, _)| field == name).unwrap().1
}

/// Lets the scene's workers use a git that is killed where it has this argument, and try once.
fn killing(scene: &Scene, argument: &str) {
    let program = scene.path().join("git");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *\"{argument}\"*) kill -KILL $$ ;; esac\nexec git \"$@\"\n"
    );
    let new = scene.path().join("git.new");
    fs::write(&new, script).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&new, &program).unwrap();
    let more = format!("max_attempts = 1\nprogram = \"{}\"\n", program.display());
    scene.write_config(&format!("{}{more}", handler(scene, 16)));
}

async fn attempts(scene: &Scene, commit: ObjectId) -> i32 {
    sqlx::query_scalar("SELECT attempts FROM queue_worker_git.analyses WHERE oid = $1")
        .bind(commit.as_bytes())
        .fetch_one(&scene.pool)
        .await
        .unwrap()
}

/// A task may name a commit before the server that is asked has it, or under a wrong URL; once a
/// mirror lists what was refused so, it is analysed, and once only.
#[tokio::test]
async fn what_is_there_later_is_analysed_then() {
    let scene = scene(16).await;
    let git_dir = history(scene.path(), 61, 40);
    let elsewhere = history(scene.path(), 62, 5);
    let early = copy(&git_dir, "early.git", None);
    let new = new_commit(&early);
    let old = all_commits(&git_dir);
    let mut worker = scene.worker("a").await;
    let named = [
        ("hook", &git_dir, vec![new, old[0]]),
        ("wrong", &elsewhere, old[1..20].to_vec()),
        ("away", &git_dir.with_file_name("away.git"), old[20..25].to_vec()),
    ];
    for (task, url, commits) in named {
        let payload = Payload::of_commits("r61", url.to_str().unwrap(), &commits);
        scene.task(task, "commits", &payload).await;
        scene.until_status(task, "succeeded").await;
    }
    let refused = progress(&scene, "r61").await;
    assert_eq!((refused.succeeded, refused.refused), (1, 25));

    said(&early, &["update-ref", "refs/heads/b0", &new.to_string()]);
    said(&git_dir, &["fetch", "--quiet", early.to_str().unwrap(), "refs/heads/b0:refs/heads/b0"]);
    let path = git_dir.to_str().unwrap();
    let total = count(&git_dir);
    let analyse = ["git", "analyse", path, "--name", "r61", "--json"];
    let end = say(&scene, &analyse).await.good().json();
    assert_eq!((&end["analysed"], &end["refused"]), (&total.into(), &0.into()), "{end}");
    assert_eq!((attempts(&scene, new).await, attempts(&scene, old[30]).await), (2, 1));
    let again = say(&scene, &analyse).await.good().json();
    assert_eq!((&again["analysed"], &again["tasks"]), (&total.into(), &0.into()), "{again}");
    assert_eq!(attempts(&scene, new).await, 2);
    worker.terminate().await;
}

/// The task that opens commits again may be cut off after each of its steps: what it adds when it is
/// delivered again is the same.
#[tokio::test]
async fn a_fan_out_that_is_cut_off_opens_what_it_had_opened() {
    let ground = Ground::new(40).await;
    let commits = all_commits(&ground.git_dir);
    let elsewhere = history(ground.scene.path(), 62, 5);
    let wrong = Payload::of_commits("r", elsewhere.to_str().unwrap(), &commits[..20]);
    ground.run(&ground.payload(&commits[20..])).await.unwrap();
    ground.run(&wrong).await.unwrap();
    let asked = ground.asked();
    let place = place(&ground.scene, "r").await.unwrap();
    let all = Payload::of_all("r", ground.git_dir.to_str().unwrap());

    // Nothing was added yet.
    let listed: Vec<ObjectId> = commits.iter().rev().copied().collect();
    let opened = ground.results.disprove(place, &listed, &HashSet::new(), "t").await.unwrap();
    assert_eq!(opened.len(), 20);
    let first = ground.run(&all).await.unwrap();
    let again: usize = 20_usize.div_ceil(16);
    assert_eq!(first["tasks"].as_u64(), Some(again as u64), "{first}");
    let entries = ground.added(again as u64).await;

    // All was added, and nothing noted.
    sqlx::query("UPDATE queue_worker_git.analyses SET task_id = 't' WHERE status = 'queued'")
        .execute(&ground.scene.pool)
        .await
        .unwrap();
    let second = ground.run(&all).await.unwrap();
    assert_eq!(second["ids"], first["ids"]);
    assert_eq!(ground.added(again as u64).await, entries);

    for fields in &entries {
        let payload = std::str::from_utf8(of_field(fields, "payload")).unwrap();
        ground.run(payload).await.unwrap();
        assert_eq!(ground.run(payload).await.unwrap()["analysed"], 0);
    }
    assert_eq!(ground.asked(), asked + 20);
    let expected = i64::try_from(commits.len()).unwrap();
    assert_eq!(ground.statuses().await, HashMap::from([("succeeded".to_owned(), expected)]));
    assert_eq!(ground.run(&all).await.unwrap()["tasks"], 0);
}

/// Only a mirror that has the parents shows that a commit is no end of a shallow clone.
#[tokio::test]
async fn the_end_of_a_shallow_clone_is_opened_where_there_is_more() {
    let ground = Ground::new(30).await;
    let shallow = copy(&ground.git_dir, "shallow.git", Some(2));
    let all = |git_dir: &Path| Payload::of_all("r", git_dir.to_str().unwrap());
    let run_all = async |git_dir: &Path| {
        let said = ground.run(&all(git_dir)).await.unwrap();
        for fields in ground.added(said["tasks"].as_u64().unwrap()).await {
            let payload = std::str::from_utf8(of_field(&fields, "payload")).unwrap();
            ground.run(payload).await.unwrap();
        }
        said
    };
    run_all(&shallow).await;
    let ends = ground.statuses().await["failed"];
    assert!(ends > 0);
    let said = run_all(&shallow).await;
    assert_eq!((&said["tasks"], said["known"] == said["commits"]), (&0.into(), true));
    assert_eq!(ground.statuses().await["failed"], ends);
    run_all(&ground.git_dir).await;
    let total = i64::try_from(count(&ground.git_dir)).unwrap();
    assert_eq!(ground.statuses().await, HashMap::from([("succeeded".to_owned(), total)]));
}

/// What old tasks have left over, which nobody knows any more, is waited for by nobody, and is tried
/// again on request.
#[tokio::test]
async fn what_forgotten_tasks_left_is_not_waited_for() {
    let scene = scene(16).await;
    let git_dir = history(scene.path(), 63, 30);
    let total = count(&git_dir);
    let mut worker = scene.worker("a").await;
    let path = git_dir.to_str().unwrap();
    say(&scene, &["git", "analyse", path]).await.good();
    // Commits of a branch that is no more; their tasks were pruned, or never were in the stream.
    let statement = "INSERT INTO queue_worker_git.analyses \
            (repository_id, profile_id, oid, status, task_id, queued_at) \
        SELECT repository_id, profile_id, decode(k.oid, 'hex'), k.status, 'gone', \
            now() - interval '1 day' \
        FROM (SELECT DISTINCT repository_id, profile_id FROM queue_worker_git.analyses) a, \
            (VALUES (repeat('1', 40), 'queued'), (repeat('2', 40), 'running'), \
                (repeat('3', 40), 'released')) AS k (oid, status)";
    sqlx::query(statement).execute(&scene.pool).await.unwrap();
    for more in [&[][..], &["--range", "b0"]] {
        let arguments = [&["git", "analyse", path, "--json"], more].concat();
        let end = say(&scene, &arguments).await.good().json();
        assert_eq!((&end["analysed"], &end["abandoned"]), (&total.into(), &0.into()), "{end}");
    }
    assert_eq!(progress(&scene, "r63").await.abandoned, 2);
    let end = say(&scene, &["git", "retry", "r63", "--json"]).await.good().json();
    assert_eq!((&end["commits"], &end["refused"]), (&3.into(), &3.into()));
    let end = progress(&scene, "r63").await;
    assert_eq!((end.succeeded, end.refused, end.open), (total, 3, 0));
    worker.terminate().await;
}

/// What failed tasks have left over is tried again, and that is waited for.
#[tokio::test]
async fn what_failed_tasks_left_can_be_tried_again() {
    let scene = scene(16).await;
    killing(&scene, "--batch-command");
    let git_dir = history(scene.path(), 66, 30);
    let total = count(&git_dir);
    let mut worker = scene.worker("a").await;
    let path = git_dir.to_str().unwrap();
    let end = say(&scene, &["git", "analyse", path, "--json"]).await;
    assert_eq!((end.code, &end.json()["abandoned"]), (Some(1), &total.into()), "{end:?}");
    let end = say(&scene, &["git", "analyse", path]).await;
    assert_eq!(end.code, Some(1));
    assert!(end.text().contains("git retry r66"), "{end:?}");
    // Once git lives, so do the commits.
    killing(&scene, "no argument");
    let end = say(&scene, &["git", "retry", "r66", "--json"]).await.good().json();
    assert_eq!((&end["commits"], &end["refused"]), (&total.into(), &0.into()));
    let done = progress(&scene, "r66").await;
    assert_eq!((done.succeeded, done.open), (total, 0));
    say(&scene, &["git", "analyse", path]).await.good();
    worker.terminate().await;
}

/// What was kept without lines, because something killed what counts them, is counted on request.
#[tokio::test]
async fn what_has_no_lines_can_be_counted_again() {
    let scene = scene(16).await;
    killing(&scene, "--numstat");
    let git_dir = history(scene.path(), 67, 12);
    let total = count(&git_dir);
    let mut worker = scene.worker("a").await;
    let path = git_dir.to_str().unwrap();
    let rows = "SELECT count(*) FROM queue_worker_git.file_changes";
    let lines = "SELECT COALESCE(sum(added), 0)::bigint FROM queue_worker_git.file_changes";
    say(&scene, &["git", "analyse", path]).await.good();
    let (before, none) = (scene.count(rows).await, scene.count(lines).await);
    assert!(before > 0 && none == 0, "{before} rows, {none} lines");
    killing(&scene, "no argument");
    assert_eq!(say(&scene, &["git", "retry", "r67", "--json"]).await.good().json()["commits"], 0);
    let truncated = ["git", "retry", "r67", "--truncated", "--json"];
    assert_eq!(say(&scene, &truncated).await.good().json()["commits"], total);
    assert_eq!(progress(&scene, "r67").await.succeeded, total);
    assert!(scene.count(lines).await > 0);
    assert_eq!(say(&scene, &truncated).await.good().json()["commits"], 0);
    worker.terminate().await;
}

/// Commits whose tasks wait in the stream are not given a second one.
#[tokio::test]
async fn what_waits_in_the_stream_is_not_lost() {
    let scene = scene(16).await;
    let git_dir = history(scene.path(), 64, 30);
    let total = count(&git_dir);
    let mut worker = scene.worker("a").await;
    let path = git_dir.to_str().unwrap();
    let middle = all_commits(&git_dir)[20].to_string();
    say(&scene, &["git", "analyse", path, "--range", &middle]).await.good();
    worker.terminate().await;
    let oid = ObjectId::from_bytes(&[7; 20]).unwrap();
    let (results, place) = (results(&scene), place(&scene, "r64").await.unwrap());
    let entry = scene.task("waits", "commits", &Payload::of_commits("r64", path, &[oid])).await;
    results.queue(place, &[(oid, "waits")]).await.unwrap();
    // Long ago, but not before its entry.
    let aged = "UPDATE queue_worker_git.analyses SET queued_at = to_timestamp($1::bigint) \
                WHERE task_id = 'waits'";
    let seconds = entry.split('-').next().unwrap().parse::<i64>().unwrap() / 1000;
    sqlx::query(aged).bind(seconds).execute(&scene.pool).await.unwrap();
    let retry = ["git", "retry", "r64", "--no-wait", "--json"];
    assert_eq!(say(&scene, &retry).await.good().json()["commits"], 0);
    let mut worker = scene.worker("a").await;
    scene.until_status("waits", "succeeded").await;
    let end = say(&scene, &["git", "analyse", path, "--json"]).await.good().json();
    assert_eq!((&end["analysed"], &end["refused"]), (&total.into(), &1.into()));
    worker.terminate().await;
}

/// A task that Redis lost before a worker saw it ends the waiting.
#[tokio::test]
async fn a_lost_task_is_not_waited_for() {
    let scene = scene(16).await;
    let git_dir = history(scene.path(), 65, 10);
    let arguments = ["git", "analyse", git_dir.to_str().unwrap()];
    let mut command = scene.command(arguments);
    let waiting = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("the entry", async || scene.length().await == 1).await;
    let mut redis = scene.redis_connection().await;
    let _: () = redis::cmd("DEL").arg(STREAM).query_async(&mut redis).await.unwrap();
    let end = waiting.wait_with_output().await.unwrap();
    assert_eq!(end.status.code(), Some(1));
    let complaint = String::from_utf8(end.stderr).unwrap();
    assert!(complaint.contains("lost"), "{complaint}");
}

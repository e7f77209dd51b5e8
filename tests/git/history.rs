//! Long histories: every row of every commit is what `git log` says.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use queue_worker::handler::git::{
    Analysis, FileChange, FileKind, Mirror, ObjectFormat, ObjectId, Totals,
};

use crate::gitlog::{self, Header, Row};
use crate::invented;
use crate::repository::{engine, git, import, outcomes, own_history, said};

/// Commits of the invented history.
const INVENTED: usize = 3000;
/// What each child may have had resident at most, in bytes.
const PEAK: u64 = 128 * 1024 * 1024;

fn row(change: &FileChange) -> Row {
    let zero = "0".repeat(40);
    let oid = |oid: Option<ObjectId>| oid.map_or(zero.clone(), |oid| oid.to_string());
    let lines = |lines: Option<u64>| lines.map_or("-".to_owned(), |lines| lines.to_string());
    let score = change.similarity.map(|score| format!("{score:03}")).unwrap_or_default();
    Row {
        modes: format!("{:06o} {:06o}", change.old_mode, change.new_mode),
        oids: format!("{} {}", oid(change.old_oid), oid(change.new_oid)),
        status: format!("{}{score}", change.status.letter()),
        path: change.path.clone(),
        old_path: change.old_path.clone(),
        added: lines(change.added),
        deleted: lines(change.deleted),
    }
}

fn header(it: &Analysis) -> Header {
    let parents: Vec<String> = it.parents.iter().map(ToString::to_string).collect();
    let date = |epoch: Option<i64>| epoch.map(|epoch| epoch.to_string()).unwrap_or_default();
    let mut trailers = String::new();
    for trailer in &it.trailers {
        writeln!(trailers, "{}: {}", trailer.key, trailer.value).unwrap();
    }
    vec![
        it.id.to_string(),
        it.tree.to_string(),
        parents.join(" "),
        it.author.name.clone(),
        it.author.email.clone(),
        date(it.author.when.epoch),
        it.committer.name.clone(),
        it.committer.email.clone(),
        date(it.committer.when.epoch),
        it.message.subject.clone(),
        it.message.body.clone(),
        trailers,
    ]
}

/// Compares every commit; returns how many rows there were.
async fn compare(git_dir: &Path) -> usize {
    let engine = engine().await;
    let mirror = Mirror::unlocked(git_dir, ObjectFormat::Sha1);
    let (rows, headers) = (gitlog::rows(git_dir), gitlog::headers(git_dir));
    let combined = gitlog::combined(git_dir);
    let mut ids: Vec<ObjectId> = rows.keys().map(|id| id.parse().unwrap()).collect();
    ids.sort();
    let mut compared = 0;
    for batch in ids.chunks(1000) {
        let outcomes = outcomes(&engine, &mirror, batch).await;
        for (id, outcome) in outcomes {
            let analysis = outcome.analysis().unwrap_or_else(|| panic!("{id}: {outcome:?}"));
            let found: Vec<Row> = analysis.changes.iter().map(row).collect();
            assert_eq!(found, rows[&id.to_string()], "rows of {id}");
            let mut expected = headers[&id.to_string()].clone();
            let body = expected[10].trim_ascii_end().len();
            expected[10].truncate(body);
            // Git keeps the carriage returns of the lines that it joins.
            expected[11] = expected[11].replace('\r', "");
            assert_eq!(header(analysis), expected, "header of {id}");
            assert_eq!(analysis.totals, Totals::of(&analysis.changes));
            let extra = (analysis.parents.len() > 1).then(|| combined[&id.to_string()]);
            assert_eq!(analysis.merge_extra_files, extra, "{id}");
            compared += found.len();
        }
    }
    assert!(engine.peak_memory() <= PEAK, "a child had {} bytes", engine.peak_memory());
    engine.close_idle().await;
    compared
}

#[tokio::test]
async fn an_invented_history_is_counted_as_git_does() {
    let folder = tempfile::tempdir().unwrap();
    let git_dir = import(&folder.path().join("r.git"), &invented::history(7, INVENTED));
    let rows = compare(&git_dir).await;
    assert!(rows > 2 * INVENTED, "only {rows} rows");
}

/// The project's own history, where the tests run in a clone of it.
#[tokio::test]
async fn the_projects_own_history_is_counted_as_git_does() {
    let Some(git_dir) = own_history() else { return };
    assert!(compare(&git_dir).await > 0);
}

/// Sizes and kinds, which `git log` does not tell.
#[tokio::test]
async fn sizes_and_kinds_are_those_of_the_objects() {
    let folder = tempfile::tempdir().unwrap();
    let git_dir = import(&folder.path().join("r.git"), &invented::history(8, 300));
    let engine = engine().await;
    let mirror = Mirror::unlocked(&git_dir, ObjectFormat::Sha1);
    let ids: Vec<ObjectId> = gitlog::rows(&git_dir).keys().map(|id| id.parse().unwrap()).collect();
    let mut kinds = std::collections::HashSet::new();
    for (id, outcome) in outcomes(&engine, &mirror, &ids).await {
        for change in &outcome.analysis().unwrap().changes {
            kinds.insert(change.kind);
            let Some(new) = change.new_oid.filter(|_| change.kind != FileKind::Gitlink) else {
                continue;
            };
            let content =
                git(&git_dir).args(["cat-file", "blob", &new.to_string()]).output().unwrap();
            assert_eq!(change.new_size, Some(content.stdout.len() as u64), "{id}");
            let is_pointer = content.stdout.starts_with(b"version https://git-lfs");
            assert_eq!(change.kind == FileKind::Lfs, is_pointer, "{id}");
        }
    }
    let all =
        [FileKind::Text, FileKind::Binary, FileKind::Symlink, FileKind::Gitlink, FileKind::Lfs];
    assert_eq!(kinds, all.into());
    engine.close_idle().await;
}

/// One batch after another and several at once: nothing depends on who asked before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let git_dir = import(&folder.path().join("r.git"), &invented::history(9, 200));
    let engine = engine().await;
    let mirror = Mirror::unlocked(&git_dir, ObjectFormat::Sha1);
    let ids: Vec<ObjectId> = gitlog::rows(&git_dir).keys().map(|id| id.parse().unwrap()).collect();
    let whole = outcomes(&engine, &mirror, &ids).await;
    let mut parts = Vec::new();
    for part in ids.chunks(50) {
        parts.push(outcomes(&engine, &mirror, part));
    }
    let parts =
        tokio::time::timeout(Duration::from_secs(60), futures_util::future::join_all(parts));
    for part in parts.await.unwrap() {
        for (id, outcome) in part {
            assert_eq!(outcome, whole[&id]);
        }
    }
    engine.close_idle().await;
}

/// Neither configuration, HEAD, replacements, grafts nor the way objects are stored changes a result.
#[tokio::test]
async fn nothing_but_the_commit_decides() {
    let folder = tempfile::tempdir().unwrap();
    let stream = invented::history(10, 200);
    let plain = import(&folder.path().join("plain.git"), &stream);
    let odd = import(&folder.path().join("odd.git"), &stream);
    for (key, value) in [
        ("diff.algorithm", "histogram"),
        ("diff.renames", "false"),
        ("diff.renameLimit", "1"),
        ("diff.context", "0"),
        ("diff.orderFile", "/dev/null"),
        ("diff.ignoreSubmodules", "all"),
        ("core.bigFileThreshold", "10"),
        ("core.attributesFile", "/etc/passwd"),
        ("core.quotePath", "false"),
        ("log.showRoot", "false"),
        ("color.ui", "always"),
    ] {
        said(&odd, &["config", key, value]);
    }
    let ids: Vec<ObjectId> = gitlog::rows(&plain).keys().map(|id| id.parse().unwrap()).collect();
    said(&odd, &["repack", "-q", "-a", "-d", "-f"]);
    said(&odd, &["commit-graph", "write", "--reachable", "--changed-paths", "--no-progress"]);
    said(&odd, &["symbolic-ref", "HEAD", "refs/heads/b2"]);
    let (replaced, other) = (ids[0].to_string(), ids[1].to_string());
    said(&odd, &["replace", &replaced, &other]);
    let grafts = ids[2..9].iter().map(|id| format!("{id}\n")).collect::<Vec<_>>().concat();
    std::fs::create_dir_all(odd.join("info")).unwrap();
    std::fs::write(odd.join("info/grafts"), grafts).unwrap();
    let engine = engine().await;
    let expected = outcomes(&engine, &Mirror::unlocked(&plain, ObjectFormat::Sha1), &ids).await;
    let found = outcomes(&engine, &Mirror::unlocked(&odd, ObjectFormat::Sha1), &ids).await;
    for id in &ids {
        assert!(expected[id].analysis().is_some());
        assert_eq!(found[id], expected[id], "{id}");
    }
    engine.close_idle().await;
}

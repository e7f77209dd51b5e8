//! Odd repositories: what the engine says of each commit is what git says.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use queue_worker::handler::git::{
    Analysis, CommitKind, FileChange, FileKind, Flags, GitMirrors, Mirrors as _, Outcome,
    Selection, analyse,
};
use serde::Deserialize;
use tokio::sync::mpsc;

use crate::mirrors::{options, source};
use crate::repository::{all_commits, analysis, engine, id, outcomes, unlocked};

#[derive(Debug, Deserialize)]
pub(crate) struct Expected {
    pub(crate) case: String,
    pub(crate) oid: String,
    parents: usize,
    author: String,
    files: Option<Vec<ExpectedFile>>,
    pub(crate) refused: Option<String>,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
struct ExpectedFile {
    path: String,
    from: Option<String>,
    status: String,
    modes: String,
    added: Option<u64>,
    deleted: Option<u64>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

impl ExpectedFile {
    fn of(change: &FileChange) -> Self {
        let score = change.similarity.map(|score| format!("{score:03}")).unwrap_or_default();
        Self {
            path: hex(&change.path),
            from: change.old_path.as_deref().map(hex),
            status: format!("{}{score}", change.status.letter()),
            modes: format!("{:06o} {:06o}", change.old_mode, change.new_mode),
            added: change.added,
            deleted: change.deleted,
        }
    }
}

/// Builds the zoo below `folder`.
pub(crate) fn build(folder: &Path) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/git/zoo.sh");
    let output = Command::new("sh").arg(script).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn expected() -> Vec<Expected> {
    include_str!("zoo.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn every_animal_is_described_as_git_does() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    let engine = engine().await;
    // All cases of a repository are one batch, so that a bad one has neighbours.
    let mut cases: HashMap<String, Vec<Expected>> = HashMap::new();
    for case in expected() {
        let repository = case.case.split_once(':').unwrap().0.to_owned();
        cases.entry(repository).or_default().push(case);
    }
    let mut compared = 0;
    for (repository, cases) in &cases {
        let path = folder.path().join(repository);
        let mirror = unlocked(&path);
        let ids: Vec<_> = cases.iter().map(|case| case.oid.parse().unwrap()).collect();
        let outcomes = outcomes(&engine, &mirror, &ids).await;
        for (case, id) in cases.iter().zip(&ids) {
            compare(case, &outcomes[id]);
            compared += 1;
        }
    }
    assert_eq!(compared, 38);
    for ran in ["PWNED-external", "PWNED-textconv", "PWNED-fsmonitor"] {
        assert!(!folder.path().join(ran).exists(), "{ran}: a program of the repository was run");
    }
    engine.close_idle().await;
}

fn compare(case: &Expected, outcome: &Outcome) {
    let name = &case.case;
    if let Some(refused) = &case.refused {
        let said = outcome.refusal().map(|refusal| refusal.to_string());
        assert_eq!(said.as_ref(), Some(refused), "{name}: {outcome:?}");
        return;
    }
    let Outcome::Analysed(analysis) = outcome else { panic!("{name}: {outcome:?}") };
    assert_eq!(analysis.parents.len(), case.parents, "{name}");
    let author = analysis.author.raw.escape_ascii().to_string();
    assert_eq!(author, case.author, "{name}");
    let files: Vec<_> = analysis.changes.iter().map(ExpectedFile::of).collect();
    assert_eq!(&files, case.files.as_ref().unwrap(), "{name}");
}

/// The same through mirrors: what is hostile or left behind in a source stays there.
#[tokio::test]
async fn the_zoo_can_be_mirrored() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    let engine = engine().await;
    let mirrors = GitMirrors::new(&options(folder.path())).await.unwrap();
    for case in expected() {
        let repository = case.case.split_once(':').unwrap().0;
        let source = source(&folder.path().join(repository));
        let (sender, mut receiver) = mpsc::channel(1);
        analyse(&mirrors, &engine, &source, &[case.oid.parse().unwrap()], &sender).await;
        compare(&case, &receiver.recv().await.unwrap().outcome);
    }
    let dash = mirrors.open(&source(&folder.path().join("dash.git")), &[]).await.unwrap();
    assert_eq!(mirrors.list(&dash, &Selection::All).await.unwrap().len(), 5);
    let ran = |path: &Path| {
        let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
        names
            .filter_map(|name| name.into_string().ok())
            .find(|it| it.contains("PWN") || it == "pwn")
    };
    assert_eq!((ran(folder.path()), ran(dash.git_dir())), (None, None));
    engine.close_idle().await;
}

#[tokio::test]
async fn what_is_odd_is_said() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    let engine = engine().await;
    let analysis = async |repository: &str, revision: &str| -> Analysis {
        let path = folder.path().join(repository);
        analysis(&engine, &unlocked(&path), id(&path, revision)).await
    };
    let latin = analysis("enc", "HEAD").await;
    assert_eq!((&*latin.author.name, &*latin.message.subject), ("René D", "été"));
    assert_eq!(latin.encoding.as_deref(), Some("ISO-8859-1"));
    assert_eq!(latin.flags, Flags::empty());

    let kinds = [("clean", CommitKind::Merge), ("octopus", CommitKind::Octopus)];
    for (tag, kind) in kinds {
        assert_eq!(analysis("merge", tag).await.kind(), kind, "{tag}");
    }
    for (tag, extra) in [("clean", 0), ("evil", 1), ("octopus", 0), ("oursm", 0)] {
        assert_eq!(analysis("merge", tag).await.merge_extra_files, Some(extra), "{tag}");
    }
    assert_eq!(analysis("rename", "exact").await.merge_extra_files, None);
    let twice = analysis("merge", "dupparent").await;
    assert_eq!(twice.parents[0], twice.parents[1]);

    for (tag, kind, lines) in
        [("add", FileKind::Gitlink, (1, 0)), ("del", FileKind::Gitlink, (0, 1))]
    {
        let link = analysis("sub", tag).await;
        assert_eq!(link.changes[0].kind, kind);
        let totals = (link.totals.numstat_added, link.totals.numstat_deleted);
        assert_eq!((totals, link.totals.added, link.totals.gitlinks), (lines, 0, 1));
        assert_eq!((link.changes[0].old_size, link.changes[0].new_size), (None, None));
    }
    let symlink = analysis("rename", "typechange").await;
    assert_eq!((symlink.changes[0].kind, symlink.totals.mode_changes), (FileKind::Symlink, 1));

    let binary = analysis("bin", "mod").await;
    let of = |path: &[u8]| binary.changes.iter().find(|change| change.path == path).unwrap();
    assert_eq!((of(b"early").kind, of(b"early").new_size), (FileKind::Binary, Some(4)));
    assert_eq!((of(b"late").kind, of(b"t.dat").kind), (FileKind::Text, FileKind::Text));
    assert_eq!((binary.totals.binary, binary.totals.added, binary.totals.deleted), (1, 2, 1));

    for (tag, epoch, zone) in [
        ("t2050", Some(2_540_000_000), Some(0)),
        ("t2120", Some(4_733_510_400), Some(-7_841_317)),
        ("tz3407", Some(1_516_956_202), Some(-2047)),
        ("nodate", None, None),
        ("halfhour", Some(1_700_000_000), Some(345)),
    ] {
        let dated = analysis("time", tag).await;
        let when = dated.author.when;
        assert_eq!((when.epoch, when.zone_minutes), (epoch, zone), "{tag}");
        assert_eq!(dated.flags.contains(Flags::DATE_INVALID), epoch.is_none(), "{tag}");
    }
    engine.close_idle().await;
}

#[tokio::test]
async fn what_is_no_commit_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    let engine = engine().await;
    let path = folder.path().join("full");
    let commits = all_commits(&path);
    let mut ids =
        vec!["1".repeat(40).parse().unwrap(), id(&path, "HEAD^{tree}"), id(&path, "HEAD:f1")];
    ids.extend(&commits);
    ids.extend(&commits);
    let outcomes = outcomes(&engine, &unlocked(&path), &ids).await;
    for id in &ids[..3] {
        assert_eq!(outcomes[id].refusal().unwrap().as_str(), "COMMIT_GONE");
    }
    for id in &commits {
        assert!(outcomes[id].analysis().is_some());
    }
    engine.close_idle().await;
}

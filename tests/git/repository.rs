//! Repositories for the tests, and the engine over them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use queue_worker::handler::git::{
    Analysed, Analysis, Engine, GitEngine, GitOptions, Mirror, ObjectFormat, ObjectId, Outcome,
};
use tokio::sync::mpsc;

/// A git command that nothing on this machine influences, run in `folder`.
pub(crate) fn git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GIT_")) {
        command.env_remove(name);
    }
    command
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_AUTHOR_NAME", "A U Thor")
        .env("GIT_AUTHOR_EMAIL", "a@example.com")
        .env("GIT_COMMITTER_NAME", "C O Mitter")
        .env("GIT_COMMITTER_EMAIL", "c@example.com")
        .env("TZ", "UTC")
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    command
}

/// What a git command prints; it must succeed.
pub(crate) fn said(folder: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = git(folder).args(arguments).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?} in {}: {complaint}", folder.display());
    output.stdout
}

/// The same as one line of text.
pub(crate) fn line(folder: &Path, arguments: &[&str]) -> String {
    String::from_utf8(said(folder, arguments)).unwrap().trim_end().to_owned()
}

/// The id that a revision names.
pub(crate) fn id(folder: &Path, revision: &str) -> ObjectId {
    line(folder, &["--no-replace-objects", "rev-parse", revision]).parse().unwrap()
}

/// The ids of all commits that refs reach, in git's order.
pub(crate) fn all_commits(folder: &Path) -> Vec<ObjectId> {
    line(folder, &["rev-list", "--all"]).lines().map(|id| id.parse().unwrap()).collect()
}

/// A repository without a lock: the folder itself if it is bare, else its `.git`.
pub(crate) fn unlocked(folder: &Path) -> Mirror {
    let inner = folder.join(".git");
    let git_dir = if inner.exists() { inner } else { folder.to_owned() };
    Mirror::unlocked(git_dir, ObjectFormat::Sha1)
}

/// An engine with the default limits.
pub(crate) async fn engine() -> GitEngine {
    GitEngine::new(&GitOptions::new("/nonexistent")).await.unwrap()
}

/// The outcome of each commit, of which there must be exactly one.
pub(crate) async fn outcomes(
    engine: &GitEngine,
    mirror: &Mirror,
    commits: &[ObjectId],
) -> HashMap<ObjectId, Outcome> {
    let (sender, mut receiver) = mpsc::channel(16);
    let mut outcomes = HashMap::new();
    let analyse = async {
        engine.analyse(mirror, commits, &sender).await;
        drop(sender);
    };
    let collect = async {
        while let Some(Analysed { id, outcome, .. }) = receiver.recv().await {
            assert!(outcomes.insert(id, outcome).is_none(), "{id} has two outcomes");
        }
    };
    tokio::join!(analyse, collect);
    for id in commits {
        assert!(outcomes.contains_key(id), "{id} has no outcome");
    }
    outcomes
}

/// The analysis of one commit.
pub(crate) async fn analysis(engine: &GitEngine, mirror: &Mirror, commit: ObjectId) -> Analysis {
    let outcome = outcomes(engine, mirror, &[commit]).await.remove(&commit).unwrap();
    match outcome {
        Outcome::Analysed(analysis) => *analysis,
        other => panic!("{commit}: {other:?}"),
    }
}

/// Loads a history that is written as `git fast-import` reads it into a new bare repository.
pub(crate) fn import(folder: &Path, stream: &[u8]) -> PathBuf {
    import_as(ObjectFormat::Sha1, folder, stream)
}

/// The same, with ids of any format.
pub(crate) fn import_as(format: ObjectFormat, folder: &Path, stream: &[u8]) -> PathBuf {
    use std::io::Write;
    std::fs::create_dir_all(folder).unwrap();
    let format = format!("--object-format={}", format.as_str());
    said(folder, &["init", "-q", "--bare", "-b", "main", &format, "."]);
    let mut child =
        git(folder).args(["fast-import", "--quiet"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stream).unwrap();
    assert!(child.wait().unwrap().success(), "git fast-import failed");
    folder.to_owned()
}

/// The project's own history, where the tests run in a clone of it that is whole: not in a folder of
/// somebody else's repository, and neither shallow nor partial.
pub(crate) fn own_history() -> Option<PathBuf> {
    let mut command = git(Path::new(env!("CARGO_MANIFEST_DIR")));
    command.args(["rev-parse", "--path-format=absolute", "--git-common-dir", "--show-toplevel"]);
    command.arg("--show-object-format");
    let output = command.output().ok().filter(|output| output.status.success())?;
    let output = String::from_utf8(output.stdout).unwrap();
    let [git_dir, top, "sha1"] = output.lines().collect::<Vec<_>>()[..] else { return None };
    let is_ours = std::fs::canonicalize(top).ok()?
        == std::fs::canonicalize(env!("CARGO_MANIFEST_DIR")).ok()?;
    let git_dir = PathBuf::from(git_dir);
    let mut packs = std::fs::read_dir(git_dir.join("objects/pack")).ok()?.flatten();
    let is_partial = packs.any(|pack| pack.path().extension().is_some_and(|it| it == "promisor"));
    (is_ours && !is_partial && !git_dir.join("shallow").exists()).then_some(git_dir)
}

/// Overwrites the middle of every pack.
pub(crate) fn damage(git_dir: &Path) {
    use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
    for entry in std::fs::read_dir(git_dir.join("objects/pack")).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "pack") {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            let size = file.metadata().unwrap().len();
            file.write_all_at(&vec![0x55; usize::try_from(size / 4).unwrap()], size / 3).unwrap();
        }
    }
}

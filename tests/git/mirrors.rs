//! Mirrors: several users at once, killed programs, damage, force pushes, room.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use queue_worker::handler::git::{
    Analysed, GitEngine, GitMirrors, GitOptions, Mirror, MirrorError, Mirrors, ObjectId, Outcome,
    Refusal, Selection, Source, SourcePolicy, analyse,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::invented;
use crate::repository::{all_commits, damage, engine, git, id, import, line, said};

/// Mirrors below `root`, local sources allowed.
pub(crate) fn options(root: &Path) -> GitOptions {
    let mut options = GitOptions::new(root.join("mirrors"));
    options.sources.protocols = ["file", "ssh", "http", "https"].map(str::to_owned).into();
    options.mirrors.free = 0;
    options
}

pub(crate) fn policy() -> SourcePolicy {
    options(Path::new("/nonexistent")).sources
}

pub(crate) fn source(path: &Path) -> Source {
    Source::new("r", path.to_str().unwrap(), &policy()).unwrap()
}

/// A bare repository with a short history.
pub(crate) fn origin(root: &Path) -> PathBuf {
    import(&root.join("origin.git"), &invented::history(3, 40))
}

/// The outcomes of commits through mirrors and engine.
pub(crate) async fn outcomes(
    mirrors: &GitMirrors,
    source: &Source,
    ids: &[ObjectId],
) -> Vec<Outcome> {
    let engine = engine().await;
    let found = outcomes_by(&engine, mirrors, source, ids).await;
    engine.close_idle().await;
    found
}

/// The same by an engine whose children may wait for more.
async fn outcomes_by(
    engine: &GitEngine,
    mirrors: &GitMirrors,
    source: &Source,
    ids: &[ObjectId],
) -> Vec<Outcome> {
    let (sender, mut receiver) = mpsc::channel(1000);
    analyse(mirrors, engine, source, ids, &sender).await;
    drop(sender);
    let mut found = Vec::new();
    while let Some(Analysed { id, outcome, .. }) = receiver.recv().await {
        found.push((id, outcome));
    }
    assert_eq!(found.len(), ids.len());
    ids.iter().map(|id| found.iter().find(|(other, _)| other == id).unwrap().1.clone()).collect()
}

/// What lies in the one folder below the mirrors, apart from the locks.
pub(crate) fn folder(root: &Path) -> (PathBuf, Vec<String>) {
    let mirrors = fs::read_dir(root.join("mirrors")).unwrap();
    let folder = mirrors.map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    let names = fs::read_dir(&folder).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.strip_suffix(".git").is_some());
    (folder, names)
}

/// Nothing but the whole mirror is there, without a lock file in it.
pub(crate) fn assert_tidy(root: &Path) {
    let (folder, names) = folder(root);
    assert_eq!(names, ["mirror.git"]);
    let mut folders = vec![folder.join("mirror.git")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let is_left = name.strip_suffix(".lock").is_some() || name.starts_with("tmp_");
            assert!(!is_left, "{name}");
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_openers_share_one_clone() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let commits = all_commits(&origin);
    let mut openers = Vec::new();
    for _ in 0..4 {
        // Each as a process of its own would have them.
        let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
        let (source, wanted) = (source(&origin), commits[..3].to_vec());
        openers.push(async move { mirrors.open(&source, &wanted).await.unwrap() });
    }
    let opened: Vec<Mirror> = join_all(openers).await;
    let generations: std::collections::HashSet<_> =
        opened.iter().map(|mirror| mirror.generation().to_owned()).collect();
    assert_eq!(generations.len(), 1);
    assert_tidy(root.path());
    drop(opened);
    // Refreshing together, while others read, is no race either.
    said(&origin, &["update-ref", "refs/heads/new", &commits[0].to_string()]);
    let mirrors = Arc::new(GitMirrors::new(&options(root.path())).await.unwrap());
    let refresh = async |_| {
        let mirror = mirrors.refresh(&source(&origin)).await.unwrap();
        assert_eq!(mirrors.resolve(&mirror, "new").await.unwrap(), Some(commits[0]));
    };
    join_all((0..4).map(refresh)).await;
    assert_tidy(root.path());
}

#[tokio::test]
async fn the_whole_way_gives_every_outcome() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let commits = all_commits(&origin);
    let mut ids = commits.clone();
    ids.push("1".repeat(40).parse().unwrap());
    ids.push(id(&origin, "b0^{tree}"));
    let found = outcomes(&mirrors, &source(&origin), &ids).await;
    for outcome in &found[..commits.len()] {
        assert!(outcome.analysis().is_some(), "{outcome:?}");
    }
    for outcome in &found[commits.len()..] {
        assert_eq!(outcome.refusal(), Some(Refusal::CommitGone), "{outcome:?}");
    }
    // What was missing is fetched, also if no branch reaches it.
    let tree = line(&origin, &["rev-parse", "b0^{tree}"]);
    let parent = commits[0].to_string();
    let unreached: ObjectId =
        line(&origin, &["commit-tree", &tree, "-p", &parent, "-m", "unreached"]).parse().unwrap();
    said(&origin, &["update-ref", "refs/heads/later", &commits[1].to_string()]);
    let found = outcomes(&mirrors, &source(&origin), &[unreached]).await;
    assert!(found[0].analysis().is_some(), "{found:?}");
    let mirror = mirrors.open(&source(&origin), &[unreached]).await.unwrap();
    let pins = said(mirror.git_dir(), &["for-each-ref", "refs/qw/pin"]);
    assert!(String::from_utf8(pins).unwrap().contains(&unreached.to_string()));
    assert_eq!(mirrors.resolve(&mirror, "later").await.unwrap(), Some(commits[1]));
    mirror.unpin(&[unreached, commits[0]]).unwrap();
    assert_eq!(said(mirror.git_dir(), &["for-each-ref", "refs/qw/pin"]), b"");
}

#[tokio::test]
async fn leftovers_of_killed_programs_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let git_dir = mirrors.open(&source(&origin), &[]).await.unwrap().git_dir().to_owned();
    for name in
        ["HEAD.lock", "config.lock", "packed-refs.lock", "shallow.lock", "refs/qw/heads/b0.lock"]
    {
        fs::write(git_dir.join(name), "").unwrap();
    }
    fs::write(git_dir.join("objects/pack/tmp_pack_abc"), "half").unwrap();
    fs::create_dir(git_dir.parent().unwrap().join(format!("new-{}.git", "1".repeat(32)))).unwrap();
    let first = id(&origin, "b0~1").to_string();
    said(&origin, &["update-ref", "refs/heads/b0", &first]);
    // A folder where a branch was, and the other way around.
    said(&origin, &["update-ref", "-d", "refs/heads/b1"]);
    said(&origin, &["update-ref", "refs/heads/b1/deeper", &first]);
    let mirror = mirrors.refresh(&source(&origin)).await.unwrap();
    assert_eq!(mirrors.resolve(&mirror, "b0").await.unwrap().unwrap().to_string(), first);
    assert_eq!(mirrors.resolve(&mirror, "b1/deeper").await.unwrap().unwrap().to_string(), first);
    assert_tidy(root.path());
    drop(mirror);
    // Without its mark it is not whole.
    fs::remove_file(git_dir.join("queue-worker.json")).unwrap();
    let again = GitMirrors::new(&options(root.path())).await.unwrap();
    assert!(again.open(&source(&origin), &[]).await.is_ok());
    assert_tidy(root.path());
}

#[tokio::test]
async fn a_mirror_of_many_packs_is_repacked() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let git_dir = mirrors.open(&source(&origin), &[]).await.unwrap().git_dir().to_owned();
    let packs = || {
        let names = fs::read_dir(git_dir.join("objects/pack")).unwrap();
        names
            .filter(|it| it.as_ref().unwrap().path().extension().is_some_and(|it| it == "pack"))
            .count()
    };
    let objects = line(&git_dir, &["rev-list", "--objects", "--no-object-names", "--all"]);
    for object in objects.lines().take(60) {
        let mut pack = git(&git_dir);
        pack.args(["pack-objects", "-q", "objects/pack/pack"]).stdin(std::process::Stdio::piped());
        let mut pack = pack.stdout(std::process::Stdio::null()).spawn().unwrap();
        std::io::Write::write_all(&mut pack.stdin.take().unwrap(), object.as_bytes()).unwrap();
        assert!(pack.wait().unwrap().success());
    }
    assert!(packs() > 50, "{} packs", packs());
    let mirror = mirrors.refresh(&source(&origin)).await.unwrap();
    assert!(packs() < 10, "{} packs", packs());
    assert_eq!(said(mirror.git_dir(), &["fsck", "--connectivity-only"]), b"");
    drop(mirror);
    let commits = all_commits(&origin);
    for outcome in outcomes(&mirrors, &source(&origin), &commits).await {
        assert!(outcome.analysis().is_some(), "{outcome:?}");
    }
    assert_tidy(root.path());
}

#[tokio::test]
async fn a_damaged_mirror_is_cloned_anew_once() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let commits = all_commits(&origin);
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
    let first = mirror.generation().to_owned();
    damage(mirror.git_dir());
    drop(mirror);
    let found = outcomes(&mirrors, &source(&origin), &commits).await;
    for outcome in found {
        assert!(outcome.analysis().is_some(), "{outcome:?}");
    }
    let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
    assert_ne!(mirror.generation(), first);
    // The second time it is given up, for those that are concerned.
    damage(mirror.git_dir());
    let second = mirror.generation().to_owned();
    drop(mirror);
    let found = outcomes(&mirrors, &source(&origin), &commits).await;
    let refusals: Vec<Refusal> = found.iter().filter_map(Outcome::refusal).collect();
    assert!(!refusals.is_empty(), "the damage was not noticed");
    assert!(refusals.iter().all(|it| *it == Refusal::RepoCorrupt), "{refusals:?}");
    let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
    assert_eq!(mirror.generation(), second);
}

/// Processes that have a file below `root` mapped.
fn readers(root: &Path) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let root = root.to_str().unwrap();
    let reads = |path: &PathBuf| {
        fs::read_to_string(path.join("maps")).is_ok_and(|maps| maps.contains(root))
    };
    processes.filter(reads).collect()
}

/// The children of an engine see whatever happens to their mirror while they wait for more of it, and
/// let go of it in time, or the disk would get nothing back of one that was evicted.
#[tokio::test]
async fn children_that_wait_see_every_change_of_their_mirror() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let mut options = options(root.path());
    let mirrors = GitMirrors::new(&options).await.unwrap();
    let (engine, source) = (engine().await, source(&origin));
    let all_analysed = async |mirrors: &GitMirrors, source: &Source| {
        let commits = all_commits(&origin);
        for outcome in outcomes_by(&engine, mirrors, source, &commits).await {
            assert!(outcome.analysis().is_some(), "{outcome:?}");
        }
    };
    all_analysed(&mirrors, &source).await;
    let mirror = mirrors.open(&source, &[]).await.unwrap();
    let (git_dir, first) = (mirror.git_dir().to_owned(), mirror.generation().to_owned());
    drop(mirror);
    assert!(!readers(&git_dir).is_empty(), "no child waits for more");
    // A fetch.
    let tree = line(&origin, &["rev-parse", "b0^{tree}"]);
    let new = line(&origin, &["commit-tree", &tree, "-p", "b0", "-m", "new"]);
    said(&origin, &["update-ref", "refs/heads/b0", &new]);
    all_analysed(&mirrors, &source).await;
    // A repack.
    said(&git_dir, &["repack", "-q", "-a", "-d"]);
    all_analysed(&mirrors, &source).await;
    // Damage, and a new clone.
    damage(&git_dir);
    engine.close_idle().await;
    all_analysed(&mirrors, &source).await;
    let mirror = mirrors.open(&source, &[]).await.unwrap();
    assert_ne!(mirror.generation(), first);
    let second = mirror.generation().to_owned();
    drop(mirror);
    // An eviction.
    options.mirrors.total = 1;
    let greedy = GitMirrors::new(&options).await.unwrap();
    let other = Source::new("s", origin.to_str().unwrap(), &policy()).unwrap();
    drop(greedy.open(&other, &[]).await.unwrap());
    assert!(!git_dir.exists(), "it was not evicted");
    all_analysed(&mirrors, &source).await;
    let mirror = mirrors.open(&source, &[]).await.unwrap();
    assert_ne!(mirror.generation(), second);
    drop(mirror);
    assert!(!readers(root.path()).is_empty(), "no child waits for more");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !readers(root.path()).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", readers(root.path()));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A large mirror needs no more room for a fetch than a small one, and nobody has to go for it.
#[tokio::test]
async fn a_fetch_asks_for_little_room() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let disk = rustix::fs::statvfs(root.path()).unwrap();
    let free = disk.f_bavail * disk.f_frsize;
    let mut options = options(root.path());
    options.mirrors.total = u64::MAX;
    options.mirrors.free = free / 2;
    let mirrors = GitMirrors::new(&options).await.unwrap();
    let other = Source::new("s", origin.to_str().unwrap(), &policy()).unwrap();
    let other = mirrors.open(&other, &[]).await.unwrap().git_dir().to_owned();
    let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
    fs::write(mirror.git_dir().with_file_name("size"), free.to_string()).unwrap();
    drop(mirror);
    mirrors.refresh(&source(&origin)).await.unwrap();
    assert!(other.exists());
}

/// However little room there is, a mirror is of use to whoever has just cloned it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_evicts_what_was_just_cloned() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let mut options = options(root.path());
    options.mirrors.total = 1;
    let mirrors = GitMirrors::new(&options).await.unwrap();
    let open = async |name: &str| {
        let source = Source::new(name, origin.to_str().unwrap(), &policy()).unwrap();
        mirrors.open(&source, &[]).await.map(|mirror| assert!(mirror.git_dir().exists()))
    };
    for opened in join_all(["a", "b", "c", "d", "e", "f"].map(open)).await {
        opened.unwrap();
    }
}

/// What cannot be told because of damage is called damage, and nothing else.
#[tokio::test]
async fn a_damaged_mirror_is_called_so() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
    damage(mirror.git_dir());
    let listed = mirrors.list(&mirror, &Selection::All).await.unwrap_err();
    assert!(matches!(listed, MirrorError::Corrupt(_)), "{listed}");
    // Not even the names that are there can be resolved, and others are not there.
    fs::remove_dir_all(mirror.git_dir().join("objects/pack")).unwrap();
    let lost = mirrors.resolve(&mirror, "b0").await.unwrap_err();
    assert!(matches!(lost, MirrorError::Corrupt(_)), "{lost}");
    for unknown in ["b", "nothing"] {
        assert_eq!(mirrors.resolve(&mirror, unknown).await.unwrap(), None, "{unknown}");
    }
}

#[tokio::test]
async fn what_a_force_push_takes_away_stays_pinned() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let lost = id(&origin, "b0");
    let kept = id(&origin, "b1");
    mirrors.open(&source(&origin), &[]).await.unwrap();
    said(&origin, &["update-ref", "refs/heads/b0", &format!("{lost}~3")]);
    for branch in ["b2", "b3"] {
        said(&origin, &["update-ref", "-d", &format!("refs/heads/{branch}")]);
    }
    said(&origin, &["repack", "-q", "-a", "-d"]);
    said(&origin, &["prune", "--expire=now"]);
    let mirror = mirrors.refresh(&source(&origin)).await.unwrap();
    said(mirror.git_dir(), &["repack", "-q", "-a", "-d"]);
    said(mirror.git_dir(), &["prune", "--expire=now"]);
    let pins = line(mirror.git_dir(), &["for-each-ref", "--format=%(refname)", "refs/qw/pin"]);
    assert!(!pins.contains(&kept.to_string()), "{pins}");
    drop(mirror);
    let gone = git(&origin).args(["cat-file", "-e", &lost.to_string()]).status().unwrap();
    assert!(!gone.success() || pins.is_empty(), "the source still has it");
    let found = outcomes(&mirrors, &source(&origin), &[lost]).await;
    assert!(found[0].analysis().is_some(), "{found:?}");
}

#[tokio::test]
async fn mirrors_make_room_for_each_other() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let mut options = options(root.path());
    options.mirrors.total = 1;
    let mirrors = GitMirrors::new(&options).await.unwrap();
    let (first, second) =
        (source(&origin), Source::new("s", origin.to_str().unwrap(), &policy()).unwrap());
    let mirror = mirrors.open(&first, &[]).await.unwrap();
    let used = mirrors.open(&second, &[]).await.unwrap();
    assert!(mirror.git_dir().exists(), "it is in use");
    let (first_dir, second_dir) = (mirror.git_dir().to_owned(), used.git_dir().to_owned());
    drop((mirror, used));
    let mirror = mirrors.refresh(&first).await.unwrap();
    assert!(!second_dir.exists(), "nobody used it");
    assert_eq!(mirror.git_dir(), first_dir);
    drop(mirror);
    options.mirrors.free = u64::MAX / 4;
    let mirrors = GitMirrors::new(&options).await.unwrap();
    let refused = mirrors.refresh(&first).await.unwrap_err();
    assert!(matches!(refused, MirrorError::NoRoom(_)) && refused.is_transient(), "{refused}");
}

//! What is damaged, here or at the source, and what only looks so.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use queue_worker::handler::git::{
    GitMirrors, GitOptions, MirrorError, Mirrors, ObjectId, Outcome, Refusal, Source,
};

use crate::mirrors::{assert_tidy, options, origin, outcomes, policy, source};
use crate::repository::{id, import, line, said};

/// So few objects that git keeps each in a file of its own; the tree is long enough for deltas.
fn small_origin(folder: &Path) -> PathBuf {
    let mut stream = String::new();
    for number in 0..3 {
        let (head, text) = ("commit refs/heads/main\ncommitter A <a@x>", number / 2);
        writeln!(stream, "{head} {number} +0000\ndata 0\n").unwrap();
        for file in 0..20 {
            writeln!(stream, "M 100644 inline file-{file}\ndata <<E\n{file} {text}\nE").unwrap();
        }
    }
    stream += "tag v1\nfrom refs/heads/main\ntagger A <a@x> 1 +0000\ndata 0\n\n";
    import(folder, stream.as_bytes())
}

/// One more commit upon `main`.
fn commit(origin: &Path) -> ObjectId {
    let tip = line(origin, &["rev-parse", "main"]);
    let blob = line(origin, &["hash-object", "-w", "--stdin"]);
    let old = line(origin, &["ls-tree", "main"]);
    let tree = origin.join("tree");
    let name = old.lines().count();
    fs::write(&tree, format!("{old}\n100644 blob {blob}\tnew-{name}\n")).unwrap();
    let input = fs::File::open(&tree).unwrap();
    let made = crate::repository::git(origin).arg("mktree").stdin(input).output().unwrap();
    let tree = String::from_utf8(made.stdout).unwrap();
    let new = line(origin, &["commit-tree", tree.trim(), "-p", &tip, "-m", "new"]);
    said(origin, &["update-ref", "refs/heads/main", &new]);
    new.parse().unwrap()
}

/// The file of a loose object.
fn file_of(git_dir: &Path, id: ObjectId) -> PathBuf {
    let id = id.to_string();
    git_dir.join("objects").join(&id[..2]).join(&id[2..])
}

/// Writes over a quarter of a file, from `at` on.
fn spoil(path: &Path, at: impl Fn(usize) -> usize) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    let mut bytes = fs::read(path).unwrap();
    let (start, most) = (at(bytes.len()), (bytes.len() / 4).max(4));
    bytes[start..].iter_mut().take(most).for_each(|byte| *byte = 0x55);
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_mirror_with_a_damaged_object_is_cloned_anew() {
    let root = tempfile::tempdir().unwrap();
    let origin = small_origin(&root.path().join("origin.git"));
    for (what, way) in [
        ("main", "head"),
        ("main", "middle"),
        ("main^{tree}", "head"),
        ("main^{tree}", "middle"),
        ("main^{tree}", "gone"),
        ("v1", "head"),
        ("v1", "gone"),
    ] {
        let root = root.path().join(format!("{what} {way}"));
        let mirrors = GitMirrors::new(&options(&root)).await.unwrap();
        let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
        let first = mirror.generation().to_owned();
        let file = file_of(mirror.git_dir(), id(&origin, what));
        match way {
            "head" => spoil(&file, |_| 0),
            "middle" => spoil(&file, |length| length / 3),
            _ => fs::remove_file(&file).unwrap(),
        }
        drop(mirror);
        let new = commit(&origin);
        let mirror = mirrors.refresh(&source(&origin)).await.unwrap();
        assert_ne!(mirror.generation(), first, "{what} {way}");
        assert_eq!(mirrors.resolve(&mirror, "main").await.unwrap(), Some(new), "{what} {way}");
        drop(mirror);
        assert_tidy(&root);
    }
}

/// The damage is mended first: it may be in the way of the fetch.
#[tokio::test]
async fn what_is_missing_is_found_in_spite_of_damage() {
    let root = tempfile::tempdir().unwrap();
    let origin = small_origin(&root.path().join("origin.git"));
    let old = id(&origin, "main");
    let mirrors = GitMirrors::new(&options(root.path())).await.unwrap();
    let mirror = mirrors.open(&source(&origin), &[]).await.unwrap();
    spoil(&file_of(mirror.git_dir(), id(&origin, "main^{tree}")), |_| 0);
    drop(mirror);
    let wanted = [old, commit(&origin), "1".repeat(40).parse().unwrap()];
    let found = outcomes(&mirrors, &source(&origin), &wanted).await;
    assert!(found[0].analysis().is_some() && found[1].analysis().is_some(), "{found:?}");
    assert_eq!(found[2].refusal(), Some(Refusal::CommitGone));
}

/// Before the source stands an ssh of our own, which counts its calls in `calls` and does `script`
/// before it serves `served.git`.
fn behind_ssh(root: &Path, script: &str) -> (GitOptions, Source) {
    let mut options = options(root);
    let ssh = root.join("ssh");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = -G ] && exit 1\nfor command; do :; done\ncd '{}'\n\
         echo >>calls\ncalls=$(wc -l <calls)\n{script}\nexec sh -c \"$command\"\n",
        root.display()
    );
    fs::write(&ssh, script).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o700)).unwrap();
    options.access.ssh_command = Some(ssh.to_str().unwrap().to_owned());
    let url = format!("ssh://host{}", root.join("served.git").display());
    (options, Source::new("r", &url, &policy()).unwrap())
}

#[tokio::test]
async fn a_source_is_damaged_when_it_says_so_twice() {
    for (calls, expected) in [(2, None), (1000, Some(Refusal::RepoCorrupt))] {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let whole = small_origin(&root.join("whole.git"));
        let damaged = small_origin(&root.join("damaged.git"));
        fs::remove_file(file_of(&damaged, id(&damaged, "main:file-1"))).unwrap();
        let script = format!(
            "[ $calls -le {calls} ] && name=damaged || name=whole\nln -sfn $name.git served.git"
        );
        let (options, source) = behind_ssh(root, &script);
        let mirrors = GitMirrors::new(&options).await.unwrap();
        let found = outcomes(&mirrors, &source, &[id(&whole, "main")]).await;
        assert_eq!(found[0].refusal(), expected, "{found:?}");
        assert_eq!(found[0].analysis().is_some(), expected.is_none(), "{found:?}");
    }
}

/// Git's server speaks of corruption whenever its packing ends early.
#[tokio::test]
async fn a_server_whose_packing_ends_early_is_asked_again_later() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let origin = small_origin(&root.join("served.git"));
    fs::write(root.join("pack"), "#!/bin/sh\n\"$@\" | head -c 100\nexit 1\n").unwrap();
    fs::set_permissions(root.join("pack"), fs::Permissions::from_mode(0o700)).unwrap();
    let script =
        "[ -e pack ] && exec git -c uploadpack.packObjectsHook=./pack upload-pack served.git";
    let (options, source) = behind_ssh(root, &script.replace("./pack", "\"$PWD\"/pack"));
    let mirrors = GitMirrors::new(&options).await.unwrap();
    let wanted = [id(&origin, "main")];
    let found = outcomes(&mirrors, &source, &wanted).await;
    assert!(matches!(found[0], Outcome::Failed { .. }), "{found:?}");
    fs::remove_file(root.join("pack")).unwrap();
    let found = outcomes(&mirrors, &source, &wanted).await;
    assert!(found[0].analysis().is_some(), "{found:?}");
}

/// A pack that came whole does not say why a later fetch failed.
#[tokio::test]
async fn a_large_pack_explains_only_its_own_fetch() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let mut options = options(root.path());
    let mirrors = GitMirrors::new(&options).await.unwrap();
    drop(mirrors.open(&source(&origin), &[]).await.unwrap());
    options.mirrors.repository = 1000;
    let mirrors = GitMirrors::new(&options).await.unwrap();
    fs::rename(&origin, root.path().join("away")).unwrap();
    let refused = mirrors.refresh(&source(&origin)).await.unwrap_err();
    assert!(matches!(refused, MirrorError::Unreadable(_)), "{refused}");
}

//! Removes what killed programs left in a mirror.
//!
//! Only under the exclusive lock, which lasts until every program that changes the mirror has ended:
//! so every lock file and every temporary file found then is a leftover, whatever its age. Also what
//! could make git do or read something else is removed, though nobody should have put it there.

use std::fs;
use std::io;
use std::path::Path;

/// Folders below `refs` that are looked through; each is a branch's, and some seconds are enough for
/// them. A lock file in the rest stays, and whoever stumbles over it says where.
const MAX_FOLDERS: usize = 100_000;
/// What is never part of a mirror of ours.
const FOREIGN: [&str; 8] = [
    "hooks",
    "info/attributes",
    "info/grafts",
    "objects/info/alternates",
    "objects/info/http-alternates",
    "index",
    "FETCH_HEAD",
    "config.worktree",
];
/// Leftovers by their whole names.
const LEFT: [&str; 4] = ["packed-refs.new", "gc.pid", "gc.log", "objects/maintenance.lock"];

/// Removes the leftovers in `git_dir` and says how many there were.
pub(super) fn sweep(git_dir: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for name in FOREIGN.iter().chain(&LEFT) {
        removed += remove(&git_dir.join(name))?;
    }
    removed += remove_where(git_dir, is_lock)?;
    removed += remove_where(&git_dir.join("info"), is_lock)?;
    removed += remove_where(&git_dir.join("objects/info"), is_lock)?;
    removed += remove_where(&git_dir.join("objects/info/commit-graphs"), is_lock)?;
    removed += packs(&git_dir.join("objects/pack"))?;
    removed += loose(&git_dir.join("objects"))?;
    removed += refs(&git_dir.join("refs"), MAX_FOLDERS)?;
    Ok(removed)
}

fn is_lock(name: &str) -> bool {
    name.strip_suffix(".lock").is_some()
}

/// Temporary packs, the marks that keep a pack for a fetch, and packs without an index.
fn packs(folder: &Path) -> io::Result<usize> {
    let is_temporary = |name: &str| {
        let marks = [".keep", ".lock"].iter().any(|end| name.ends_with(end));
        marks || name.starts_with("tmp_") || name.starts_with(".tmp-")
    };
    let removed = remove_where(folder, is_temporary)?;
    let halves = remove_where(folder, |name| {
        name.strip_suffix(".pack").is_some_and(|stem| !folder.join(format!("{stem}.idx")).exists())
            || name
                .strip_suffix(".idx")
                .is_some_and(|stem| !folder.join(format!("{stem}.pack")).exists())
    })?;
    Ok(removed + halves)
}

/// Temporary loose objects, and those that a crash left empty.
fn loose(objects: &Path) -> io::Result<usize> {
    let mut removed = remove_where(objects, |name| name.starts_with("tmp_objdir-"))?;
    for entry in entries(objects)? {
        let name = entry.file_name();
        let is_fan = name.len() == 2 && entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_fan {
            let folder = entry.path();
            removed += remove_where(&folder, |name| {
                name.starts_with("tmp_obj_") || is_empty(&folder.join(name))
            })?;
        }
    }
    Ok(removed)
}

/// Locks of refs, and refs that a crash left empty, in up to so many folders.
fn refs(root: &Path, most: usize) -> io::Result<usize> {
    let mut removed = 0;
    let mut folders = vec![root.to_owned()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        seen += 1;
        if seen > most {
            tracing::warn!(refs = %root.display(), most, "more folders of refs than are swept");
            break;
        }
        removed += remove_where(&folder, |name| is_lock(name) || is_empty(&folder.join(name)))?;
        for entry in entries(&folder)? {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    Ok(removed)
}

fn is_empty(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0)
}

fn remove_where(folder: &Path, condition: impl Fn(&str) -> bool) -> io::Result<usize> {
    let mut removed = 0;
    for entry in entries(folder)? {
        if entry.file_name().to_str().is_some_and(&condition) {
            removed += remove(&entry.path())?;
        }
    }
    Ok(removed)
}

fn entries(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Removes a file, a link or a folder; 1 if there was one.
fn remove(path: &Path) -> io::Result<usize> {
    let result = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => Ok(1),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_folders_are_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..10 {
            let branch = folder.path().join(format!("heads/{number}"));
            fs::create_dir_all(&branch).unwrap();
            fs::write(branch.join("main.lock"), "").unwrap();
        }
        assert_eq!(refs(folder.path(), 7).unwrap(), 5);
        assert_eq!(refs(folder.path(), 12).unwrap(), 5);
        assert_eq!(refs(folder.path(), 12).unwrap(), 0);
    }

    #[test]
    fn leftovers_go_and_the_rest_stays() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let leftovers = [
            "index.lock",
            "HEAD.lock",
            "shallow.lock",
            "packed-refs.new",
            "gc.pid",
            "hooks/post-checkout",
            "info/attributes",
            "info/attributes.lock",
            "objects/info/commit-graph.lock",
            "objects/info/commit-graphs/commit-graph-chain.lock",
            "objects/pack/tmp_pack_abc",
            "objects/pack/.tmp-7-pack-x.pack",
            "objects/pack/pack-1.keep",
            "objects/pack/pack-2.pack",
            "objects/pack/pack-3.idx",
            "objects/pack/multi-pack-index.lock",
            "objects/ab/tmp_obj_x",
            "objects/tmp_objdir-incoming/x",
            "refs/qw/heads/main.lock",
        ];
        for name in leftovers {
            write(name, "x");
        }
        write("objects/ab/0123", "");
        write("refs/qw/heads/empty", "");
        let kept = [
            "HEAD",
            "config",
            "packed-refs",
            "shallow",
            "objects/ab/4567",
            "objects/pack/pack-1.pack",
            "objects/pack/pack-1.idx",
            "refs/qw/heads/main",
        ];
        for name in kept {
            write(name, "x");
        }
        assert_eq!(sweep(folder.path()).unwrap(), leftovers.len() + 2);
        assert_eq!(sweep(folder.path()).unwrap(), 0);
        for name in kept {
            assert!(folder.path().join(name).exists(), "{name}");
        }
        for name in leftovers {
            assert!(!folder.path().join(name).exists(), "{name}");
        }
    }
}

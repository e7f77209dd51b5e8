//! Whose repository a source on this disk is.
//!
//! Another user could have made one for us to trip over, and may not mean us to read it. Git itself
//! asks this of what it fetches from only in some versions, so it is asked here, each time. The
//! repository is looked for where git-upload-pack(1) looks for it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::error::MirrorError;
use crate::telemetry::escaped;

/// What git tries to append to a path, in its order.
const SUFFIXES: [&str; 4] = ["/.git", "", ".git/.git", ".git"];
/// Bytes of the longest file that stands for a repository elsewhere.
const MAX_LINK: u64 = 8 * 1024;

/// Refuses the repository at `path` if it is neither `user`'s nor trusted. One that is not there is for
/// git to refuse.
pub(super) fn check(path: &Path, trusted: &[PathBuf], user: u32) -> Result<(), MirrorError> {
    let unreadable = |error: io::Error| {
        MirrorError::Unreadable(format!("whose {} is cannot be seen: {error}", shown(path)))
    };
    for part in parts(path).map_err(unreadable)? {
        let owner = fs::metadata(&part).map_err(unreadable)?.uid();
        if owner != user && !is_trusted(&part, trusted) && !is_trusted(path, trusted) {
            return Err(MirrorError::Unreadable(format!(
                "{} belongs to another user (uid {owner}); name it in trusted_paths",
                shown(&part)
            )));
        }
    }
    Ok(())
}

/// A task names it, so it may hold anything.
fn shown(path: &Path) -> String {
    escaped(&path.to_string_lossy())
}

/// All that git could take for the repository, and what it leads to: git looks closer at each, so none
/// of them must lead it to somebody else's.
fn parts(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut parts = Vec::new();
    // Git appends to the path without the slashes at its end.
    let path = path.as_os_str().as_bytes();
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(path.len().min(1), |at| at + 1);
    for suffix in SUFFIXES {
        let part = PathBuf::from(OsString::from_vec([&path[..end], suffix.as_bytes()].concat()));
        if part.is_file() {
            parts.push(linked(&part)?);
            parts.push(part);
        } else if fs::symlink_metadata(part.join("HEAD")).is_ok() {
            parts.push(part);
        }
    }
    Ok(parts)
}

/// The repository that a file stands for, as in `gitdir: PATH`.
fn linked(file: &Path) -> io::Result<PathBuf> {
    let mut text = Vec::new();
    fs::File::open(file)?.take(MAX_LINK).read_to_end(&mut text)?;
    let link = text.strip_prefix(b"gitdir: ").unwrap_or_default().trim_ascii_end();
    let folder = file.parent().unwrap_or(Path::new("/"));
    Ok(folder.join(OsString::from_vec(link.to_vec())))
}

/// By its path, by `*`, or by `FOLDER/*` for all below a folder, as in safe.directory of git-config(1).
fn is_trusted(path: &Path, trusted: &[PathBuf]) -> bool {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let path = real(path);
    trusted.iter().any(|trusted| {
        let above = trusted.parent().filter(|_| trusted.ends_with("*"));
        let is_below = |above| path != real(above) && path.starts_with(real(above));
        trusted.as_os_str() == "*" || real(trusted) == path || above.is_some_and(is_below)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn repository(path: &Path) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    }

    #[test]
    fn only_our_own_and_trusted_ones_pass() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        repository(&folder.join("bare.git"));
        repository(&folder.join("tree/.git"));
        fs::create_dir(folder.join("linked")).unwrap();
        fs::write(folder.join("linked/.git"), "gitdir: ../bare.git\n").unwrap();
        for name in
            ["bare.git", "bare", "bare/", "bare//", "tree", "tree/.git/", "tree/.git", "linked"]
        {
            let path = folder.join(name);
            assert_eq!(check(&path, &[], us()), Ok(()), "{name}");
            let refused = check(&path, &["/elsewhere".into()], us() + 1);
            assert!(matches!(refused, Err(MirrorError::Unreadable(_))), "{name}: {refused:?}");
            for trusted in [path.clone(), folder.join("*"), "*".into()] {
                assert_eq!(check(&path, &[trusted], us() + 1), Ok(()), "{name}");
            }
        }
        // The tree is what an operator names, and the repository in it is what git names.
        let inner = [folder.join("tree/.git")];
        assert_eq!(check(&folder.join("tree"), &inner, us() + 1), Ok(()));
        assert!(check(&folder.join("bare.git"), &[folder.join("bare.git/*")], us() + 1).is_err());
        assert_eq!(check(&folder.join("nothing"), &[], us() + 1), Ok(()));
    }

    #[test]
    fn a_file_that_names_anothers_repository_is_no_way_around() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        repository(&folder.join("theirs"));
        let owner = Some(rustix::process::Uid::from_raw(65534));
        rustix::fs::chown(folder.join("theirs"), owner, None).unwrap();
        fs::create_dir(folder.join("linked")).unwrap();
        fs::write(folder.join("linked/.git"), "gitdir: ../theirs").unwrap();
        assert!(check(&folder.join("linked"), &[], us()).is_err());
        std::os::unix::fs::symlink("theirs", folder.join("link")).unwrap();
        assert!(check(&folder.join("link"), &[], us()).is_err());
        // What only looks like a repository of ours does not hide theirs.
        repository(&folder.join("decoy"));
        std::os::unix::fs::symlink("../decoy", folder.join("theirs/.git")).unwrap();
        assert!(check(&folder.join("theirs"), &[], us()).is_err());
    }
}

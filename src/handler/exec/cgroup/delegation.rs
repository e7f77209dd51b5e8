//! Where our part of the cgroup tree begins, if somebody gave us one. Reads only.
//!
//! systemd marks a cgroup that it delegates with an extended attribute. Without one (before version
//! 251 for processes without privileges) a boundary counts that only delegation makes: a cgroup that
//! we may write to below one that we may not. Being root proves nothing, so then the mark decides.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, access, getxattr};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The marks of systemd: one for everybody to read, one for the privileged, which is older.
const MARKS: [&str; 2] = ["user.delegate", "trusted.delegate"];

/// Why programs run without cgroups of their own.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// No version 2 of the hierarchy, or our place in it cannot be seen from here.
    #[error("no cgroup v2 hierarchy with this process is mounted")]
    NoHierarchy,
    /// The cgroup belongs to whoever made it.
    #[error("{0} is not delegated")]
    NotDelegated(PathBuf),
    /// It is ours and cannot be changed.
    #[error("{0} is delegated but cannot be written: {1}")]
    ReadOnly(PathBuf, io::Error),
    /// Somebody else is there, whom we will not move.
    #[error("{0} holds other processes: {1}")]
    Occupied(PathBuf, String),
    /// The place where we are has the name of the place where tasks go.
    #[error("the worker's own cgroup {0} has the name that is kept for tasks")]
    NameTaken(PathBuf),
    /// A step failed that should not.
    #[error("failed to {what} {}: {source}", path.display())]
    Failed {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Unavailable {
    /// What to do about it, as an imperative.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::NoHierarchy => "use unified cgroups, and mount them if this is a container",
            Self::NotDelegated(_) => "set Delegate=yes in the unit",
            Self::ReadOnly(..) => {
                "remove ProtectControlGroups= from the unit, or mount the hierarchy writable if this \
                 is a container"
            }
            Self::Occupied(..) => "start the worker as the only process of its unit",
            Self::NameTaken(_) => "choose another DelegateSubgroup=",
            Self::Failed { .. } => "correct it and restart the worker",
        }
    }
}

/// A part of the tree that is ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Delegation {
    /// The cgroup that was delegated.
    pub(super) root: PathBuf,
    /// Where the process is: there, or one below.
    pub(super) own: PathBuf,
}

/// The part that is delegated to a process, `self` or its id; it may hold others besides.
pub(super) fn find(process: &str) -> Result<Delegation, Unavailable> {
    let read = |path: String| std::fs::read_to_string(path).ok();
    let (mount, own) = read("/proc/self/mountinfo".to_owned())
        .zip(read(format!("/proc/{process}/cgroup")))
        .and_then(|(mounts, cgroup)| locate(&mounts, &cgroup))
        .ok_or(Unavailable::NoHierarchy)?;
    let above = own.parent().filter(|_| own != mount && is_subgroup(&own));
    let candidates = [Some(own.as_path()), above];
    let root = candidates.into_iter().flatten().find(|dir| is_delegated(dir, &mount));
    let root = root.ok_or_else(|| Unavailable::NotDelegated(own.clone()))?.to_owned();
    match writable(&root) {
        Ok(()) => Ok(Delegation { root, own }),
        Err(error) => Err(Unavailable::ReadOnly(root, error.into())),
    }
}

/// The mount point of cgroup v2 and, below it, the cgroup of the process, from its two files in
/// `/proc`: see proc_pid_mountinfo(5) and cgroups(7).
fn locate(mounts: &str, cgroup: &str) -> Option<(PathBuf, PathBuf)> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    let path = Path::new(path);
    // Outside of our namespace, or removed while somebody is still inside.
    let is_visible = path.components().all(|part| part != Component::ParentDir)
        && !path.as_os_str().to_str()?.ends_with(" (deleted)");
    let mounts = mounts.lines().filter_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup2 ").then(|| (unescape(root), unescape(point)))
    });
    let mut places = mounts.filter_map(|(root, point)| {
        Some((point.clone(), point.join(path.strip_prefix(root).ok()?)))
    });
    // A joined empty path would end in a slash.
    let tidy = |path: PathBuf| path.components().collect::<PathBuf>();
    places.next().filter(|_| is_visible).map(|(point, own)| (tidy(point), tidy(own)))
}

/// Undoes the octal escapes of mountinfo for space, tab, newline and backslash.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = escaped.filter(|_| *first == b'\\') {
            bytes.push(byte);
            rest = &after[3..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    OsString::from_vec(bytes).into()
}

/// Whether a cgroup is a part of a unit and not a unit itself, as DelegateSubgroup= makes them: a
/// user's own systemd has units right below what was delegated to *it*.
fn is_subgroup(dir: &Path) -> bool {
    let is_unit = |dir: &Path| {
        let kind = dir.extension().and_then(|kind| kind.to_str());
        matches!(kind, Some("service" | "scope" | "slice"))
    };
    !is_unit(dir) && dir.parent().is_some_and(is_unit)
}

fn is_delegated(dir: &Path, mount: &Path) -> bool {
    let is_marked = MARKS.iter().any(|mark| {
        let mut value = [0; 1];
        getxattr(dir, *mark, &mut value).is_ok() && value == *b"1"
    });
    let above = dir.parent().filter(|_| dir != mount);
    let is_boundary = || {
        !geteuid().is_root()
            && writable(dir).is_ok()
            && above.is_some_and(|above| writable(above).is_err())
    };
    is_marked || is_boundary()
}

/// Whether we may make cgroups there, move processes and enable controllers.
fn writable(dir: &Path) -> Result<(), Errno> {
    access(dir, Access::WRITE_OK)?;
    access(dir.join("cgroup.procs"), Access::WRITE_OK)?;
    access(dir.join("cgroup.subtree_control"), Access::WRITE_OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn own(mounts: &str, cgroup: &str) -> Option<PathBuf> {
        locate(mounts, cgroup).map(|(_, own)| own)
    }

    #[test]
    fn our_place_is_found_in_every_layout() {
        let service = "0::/system.slice/queue-worker.service\n";
        let found = own(UNIFIED, service).unwrap();
        assert_eq!(found, Path::new("/sys/fs/cgroup/system.slice/queue-worker.service"));
        let found = own(HYBRID, "1:cpu:/\n0::/a\n").unwrap();
        assert_eq!(found, Path::new("/sys/fs/cgroup/unified/a"));
        assert_eq!(own(UNIFIED, "0::/\n").unwrap(), Path::new("/sys/fs/cgroup"));
        let part = "30 23 0:26 /lxc /mnt/with\\040space rw - cgroup2 none rw\n";
        assert_eq!(own(part, "0::/lxc/a\n").unwrap(), Path::new("/mnt/with space/a"));
        assert_eq!(own(part, "0::/lxc\n").unwrap(), Path::new("/mnt/with space"));
    }

    #[test]
    fn a_place_that_cannot_be_seen_is_none() {
        assert_eq!(own(UNIFIED, "4:memory:/x\n"), None, "version 1 only");
        assert_eq!(own(UNIFIED, "0::/../outside\n"), None);
        assert_eq!(own(UNIFIED, "0::/gone (deleted)\n"), None);
        assert_eq!(own("30 23 0:26 /other /mnt rw - cgroup2 none rw\n", "0::/a\n"), None);
        assert_eq!(own("nonsense\n", "0::/a\n"), None);
    }

    #[test]
    fn only_a_part_of_a_unit_looks_above_itself() {
        for (dir, expected) in [
            ("/c/system.slice/queue-worker.service/worker", true),
            ("/c/user@1000.service/init.scope", false),
            ("/c/user@1000.service/queue-worker.service", false),
            ("/c/system.slice/queue-worker.service", false),
            ("/c/supervisor", false),
        ] {
            assert_eq!(is_subgroup(Path::new(dir)), expected, "{dir}");
        }
    }
}

//! The user that Postgres runs as, since it refuses to be root.
//!
//! An ordinary user runs it as itself. Root runs it as `postgres` if that user exists, else as
//! `nobody`, and gives it the folders that it needs. No rights of existing folders are loosened:
//! a folder that the user cannot enter is an error that names it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use super::error::PrivateServerError;

/// A user other than root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Account {
    /// The user to switch to; nothing when this process is not root and so needs no switch.
    pub(super) fn for_postgres() -> Result<Option<Self>, PrivateServerError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let path = Path::new("/etc/passwd");
        let passwd = fs::read_to_string(path).map_err(PrivateServerError::file("read", path))?;
        Self::named("postgres", &passwd)
            .or_else(|| Self::named("nobody", &passwd))
            .map(Some)
            .ok_or(PrivateServerError::NoAccount)
    }

    fn named(name: &str, passwd: &str) -> Option<Self> {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            if fields.next() != Some(name) {
                return None;
            }
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            (uid != 0).then(|| Self { name: name.to_owned(), uid, gid })
        })
    }

    /// Makes the user the owner of a file or folder.
    pub(super) fn give(&self, path: &Path) -> Result<(), PrivateServerError> {
        chown(path, Some(self.uid), Some(self.gid))
            .map_err(PrivateServerError::file("change the owner of", path))
    }

    /// Fails with the first folder on the way to `path` (itself included) that keeps the user out.
    pub(super) fn check_entry(&self, path: &Path) -> Result<(), PrivateServerError> {
        let mut folders: Vec<&Path> = path.ancestors().collect();
        folders.reverse();
        self.check_folders(&folders)
    }

    fn check_folders(&self, folders: &[&Path]) -> Result<(), PrivateServerError> {
        for folder in folders {
            let meta = fs::metadata(folder).map_err(PrivateServerError::file("look at", folder))?;
            let bit = if meta.uid() == self.uid {
                0o100
            } else if meta.gid() == self.gid {
                0o010
            } else {
                0o001
            };
            if meta.permissions().mode() & bit == 0 {
                return Err(PrivateServerError::FolderClosed {
                    path: folder.to_path_buf(),
                    account: self.name.clone(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
        toor:x:0:0:root:/root:/bin/bash\n\
        nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n\
        postgres:x:103:106:PostgreSQL:/var/lib/postgresql:/bin/bash\n";

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let found = Account::named("postgres", PASSWD).unwrap();
        assert_eq!((found.uid, found.gid), (103, 106));
        assert_eq!(Account::named("post", PASSWD), None);
    }

    #[test]
    fn a_second_root_is_not_taken() {
        assert_eq!(Account::named("toor", PASSWD), None);
    }

    #[test]
    fn a_closed_folder_is_named() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let stranger = Account { name: "stranger".to_owned(), uid: 4_000_000, gid: 4_000_000 };
        // Not the whole way: a builder's temporary folder may be closed itself.
        let folders = [root.path(), &*inner];
        let refusal = stranger.check_folders(&folders).unwrap_err();
        assert!(
            matches!(&refusal, PrivateServerError::FolderClosed { path, .. } if path == root.path()),
            "{refusal}"
        );
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o711)).unwrap();
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o711)).unwrap();
        stranger.check_folders(&folders).unwrap();
    }
}

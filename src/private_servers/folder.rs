//! The folder of one server: a given one that stays, or a temporary one that goes with the server.
//!
//! A temporary folder lies where the server's user can reach it, which the private TMPDIR of root
//! may not be.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::account::Account;
use super::error::PrivateServerError;

/// Where a server keeps its files.
#[derive(Debug)]
pub(super) enum Folder {
    /// Given by the caller; stays.
    Given(PathBuf),
    /// Made for this server; removed with it.
    Temporary(TempDir),
}

impl Folder {
    /// Takes or makes the folder. `account` is who must be able to enter it, if not ourselves.
    pub(super) fn open(
        given: Option<&Path>,
        account: Option<&Account>,
    ) -> Result<Self, PrivateServerError> {
        let Some(given) = given else {
            return temporary(account).map(Self::Temporary);
        };
        fs::create_dir_all(given).map_err(PrivateServerError::file("create", given))?;
        let path = fs::canonicalize(given).map_err(PrivateServerError::file("resolve", given))?;
        if let Some(account) = account {
            account.check_entry(&path)?;
        }
        Ok(Self::Given(path))
    }

    /// The absolute path.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Given(path) => path,
            Self::Temporary(folder) => folder.path(),
        }
    }

    /// Whether it goes with the server.
    pub(super) fn is_temporary(&self) -> bool {
        matches!(self, Self::Temporary(_))
    }
}

/// A new folder below the first temporary folder that `account` can enter.
pub(super) fn temporary(account: Option<&Account>) -> Result<TempDir, PrivateServerError> {
    let parent = temporary_parent(account)?;
    let mode = if account.is_some() { 0o711 } else { 0o700 };
    tempfile::Builder::new()
        .prefix("qw-")
        .permissions(fs::Permissions::from_mode(mode))
        .tempdir_in(&parent)
        .map_err(PrivateServerError::file("create a folder in", &parent))
}

/// The temporary folder of the environment, or the system's if `account` cannot enter that one.
pub(super) fn temporary_parent(account: Option<&Account>) -> Result<PathBuf, PrivateServerError> {
    let preferred = env::temp_dir();
    let preferred =
        fs::canonicalize(&preferred).map_err(PrivateServerError::file("resolve", &preferred))?;
    let Some(account) = account else { return Ok(preferred) };
    let refusal = match account.check_entry(&preferred) {
        Ok(()) => return Ok(preferred),
        Err(refusal) => refusal,
    };
    ["/tmp", "/var/tmp"]
        .into_iter()
        .map(PathBuf::from)
        .find(|folder| account.check_entry(folder).is_ok())
        .ok_or(refusal)
}

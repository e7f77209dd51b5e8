//! Where the server programs are: in PATH, or where Debian hides those of Postgres.
//!
//! Debian keeps `initdb` and `postgres` out of PATH, in `/usr/lib/postgresql/VERSION/bin`; the
//! newest version there is taken. Both programs must come from the same folder.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::PrivateServerError;

/// Debian's folder with one subfolder for each version of Postgres.
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";

/// The Redis server program; Valkey serves as well.
pub(super) fn redis_server() -> Result<PathBuf, PrivateServerError> {
    let path = env::var_os("PATH").unwrap_or_default();
    in_path("redis-server", &path).or_else(|| in_path("valkey-server", &path)).ok_or(
        PrivateServerError::ProgramMissing { program: "redis-server", package: "redis-server" },
    )
}

/// The folder that holds `initdb` and `postgres` of one version.
pub(super) fn postgres_folder() -> Result<PathBuf, PrivateServerError> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .find(|folder| has_postgres(folder))
        .or_else(|| newest_postgres(Path::new(DEBIAN_POSTGRES)))
        .ok_or(PrivateServerError::ProgramMissing { program: "postgres", package: "postgresql" })
}

/// A program on PATH, such as `setpriv`.
pub(crate) fn optional(name: &str) -> Option<PathBuf> {
    in_path(name, &env::var_os("PATH").unwrap_or_default())
}

fn in_path(name: &str, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path).map(|folder| folder.join(name)).find(|file| is_executable(file))
}

fn has_postgres(folder: &Path) -> bool {
    is_executable(&folder.join("initdb")) && is_executable(&folder.join("postgres"))
}

/// The `bin` folder of the highest version below `root`.
fn newest_postgres(root: &Path) -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(root)
        .ok()?
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, folder)| has_postgres(folder))
        .collect();
    versions.sort();
    versions.pop().map(|(_, folder)| folder)
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(folder: &Path, name: &str) {
        fs::create_dir_all(folder).unwrap();
        let file = folder.join(name);
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn the_newest_complete_version_is_taken_by_number() {
        let root = tempfile::tempdir().unwrap();
        for version in ["9", "15", "17"] {
            install(&root.path().join(version).join("bin"), "postgres");
        }
        for version in ["9", "15"] {
            install(&root.path().join(version).join("bin"), "initdb");
        }
        assert_eq!(newest_postgres(root.path()), Some(root.path().join("15/bin")));
    }

    #[test]
    fn a_file_that_cannot_be_executed_is_passed_over() {
        let root = tempfile::tempdir().unwrap();
        let (first, second) = (root.path().join("a"), root.path().join("b"));
        fs::create_dir_all(&first).unwrap();
        fs::write(first.join("tool"), "").unwrap();
        install(&second, "tool");
        let path = env::join_paths([&first, &second]).unwrap();
        assert_eq!(in_path("tool", &path), Some(second.join("tool")));
        assert_eq!(in_path("absent", &path), None);
    }
}

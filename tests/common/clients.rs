//! Redis clients of other languages, installed once into the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

const REDIS_PY: &str = "redis==5.2.1";
const NODE_REDIS: &str = "redis@5.8.2";

/// The directory that holds redis-py, for `PYTHONPATH`.
pub fn redis_py() -> PathBuf {
    installed(REDIS_PY, "redis", |home| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"])
            .arg(home)
            .arg(REDIS_PY);
        pip
    })
}

/// The directory whose `node_modules` holds node-redis; `None` without Node and npm.
pub fn node_redis() -> Option<PathBuf> {
    let there = |program| Command::new(program).arg("--version").output().is_ok();
    if !there("node") || !there("npm") {
        return None;
    }
    Some(installed(NODE_REDIS, "node_modules/redis", |home| {
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--no-save", "--prefix"])
            .arg(home)
            .arg(NODE_REDIS);
        npm
    }))
}

/// Installed beside and renamed, so that tests that run at the same time do not see half of it.
fn installed(name: &str, proof: &str, install: impl FnOnce(&Path) -> Command) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let home = target.join(name);
    if home.join(proof).is_dir() {
        return home;
    }
    let fresh = tempfile::tempdir_in(target).expect("a directory");
    let mut command = install(fresh.path());
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "this test needs {name}: {command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    if std::fs::rename(fresh.path(), &home).is_err() {
        assert!(home.join(proof).is_dir(), "{name} is not where it was installed");
    }
    home
}

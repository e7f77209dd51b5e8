//! The environment of a child, and where its program lies.
//!
//! A child sees a short list of the daemon's variables and what was meant for it, and nothing else:
//! the daemon's own environment may hold the passwords of its stores.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::Access;
use tokio::process::Command;
use tokio::time::Instant;

use super::options::ExecOptions;
use crate::handler::Run;

/// The daemon's variables that a child sees, where they are set.
pub const INHERITED: [&str; 5] = ["PATH", "HOME", "LANG", "TZ", "USER"];

/// A program that was found is looked for anew after this.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Where programs are looked for when there is no `PATH` at all.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What does not change from run to run, in the order in which it is applied.
pub(super) fn base(options: &ExecOptions) -> Vec<(OsString, OsString)> {
    let inherited =
        INHERITED.iter().filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)));
    let given = options.environment.iter().map(|(name, value)| (name.into(), value.into()));
    inherited
        .chain(given)
        .filter(|(name, _)| !options.scrub.iter().any(|scrubbed| name == scrubbed.as_str()))
        .collect()
}

/// Adds what tells the child about its run.
pub(super) fn describe(command: &mut Command, run: &Run) {
    command
        .env("QUEUE_WORKER_TASK_ID", run.task.id.as_str())
        .env("QUEUE_WORKER_KIND", run.task.kind.as_str())
        .env("QUEUE_WORKER_QUEUE", run.task.queue.as_str())
        .env("QUEUE_WORKER_ATTEMPT", run.attempt.to_string())
        .env("QUEUE_WORKER_FENCE", run.fence.to_string())
        .env("QUEUE_WORKER_DEADLINE_MS", run.deadline_ms.to_string());
    // It comes from outside as it is; a NUL in it would make every spawn fail.
    if let Some(parent) = run.task.traceparent.as_ref().filter(|text| !text.contains('\0')) {
        command.env("TRACEPARENT", parent);
    }
}

/// A program that is started again and again.
///
/// Where it was found is kept for a second, as long as it can be executed: a search asks the kernel
/// about each folder of `PATH`. So a program that is installed later is found at the next run, and
/// one that shadows another a second later.
#[derive(Default)]
pub(super) struct Lookup {
    found: Mutex<Option<(Instant, PathBuf)>>,
}

impl Lookup {
    /// As [`find_program`]; always to be asked for the same program.
    pub(super) fn find(
        &self,
        program: &str,
        working_dir: Option<&Path>,
        environment: &[(OsString, OsString)],
    ) -> Option<PathBuf> {
        // Whatever is in there was put there whole.
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, path)) = &*found
            && since.elapsed() < LOOK_AGAIN
            && is_executable(path)
        {
            return Some(path.clone());
        }
        *found = find_program(program, working_dir, environment).map(|it| (Instant::now(), it));
        found.as_ref().map(|(_, path)| path.clone())
    }
}

/// The file to execute, as execvp(3) would find it; `None` when there is none that we may execute.
pub(in crate::handler) fn find_program(
    program: &str,
    working_dir: Option<&Path>,
    environment: &[(OsString, OsString)],
) -> Option<PathBuf> {
    if program.contains('/') {
        let path = working_dir.map_or_else(|| program.into(), |dir| dir.join(program));
        // Absolute, since the child changes its directory before it executes the program.
        let path = std::path::absolute(path).ok()?;
        return is_executable(&path).then_some(path);
    }
    let path = environment.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value);
    let path = path.map_or(OsStr::new(DEFAULT_PATH), OsString::as_os_str);
    path.as_bytes()
        .split(|byte| *byte == b':')
        // An empty element means the current directory, from where nothing is ever run.
        .filter(|dir| !dir.is_empty())
        .map(|dir| Path::new(OsStr::from_bytes(dir)).join(program))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn install(path: &Path) {
        std::fs::write(path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_is_found_where_it_is_now() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        for dir in [&first, &second] {
            std::fs::create_dir(dir).unwrap();
        }
        let path = std::env::join_paths([&first, &second]).unwrap();
        let environment = [(OsString::from("PATH"), path)];
        let lookup = Lookup::default();
        let find = || lookup.find("resize", None, &environment);
        assert_eq!(find(), None);
        install(&second.join("resize"));
        assert_eq!(find(), Some(second.join("resize")), "installed since the last look");
        install(&first.join("resize"));
        tokio::time::advance(LOOK_AGAIN).await;
        assert_eq!(find(), Some(first.join("resize")), "another goes before it");
        std::fs::remove_file(first.join("resize")).unwrap();
        assert_eq!(find(), Some(second.join("resize")), "and is gone again");
        std::fs::remove_file(second.join("resize")).unwrap();
        assert_eq!(find(), None);
    }
}

//! The git program of this node, and the environment that its children get.
//!
//! A child sees nothing of the daemon's environment but `PATH`, no configuration of the system or of
//! a user, and no attributes; whatever a repository says about programs to be run is switched off.
//! What it may do is set here once, for every command.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use thiserror::Error;
use tokio::process::Command;

use super::oid::ObjectFormat;
use super::version::GitVersion;
use crate::handler::exec::environment::find_program;

/// `git --version` answers within this time.
const VERSION_PATIENCE: Duration = Duration::from_secs(10);
/// Where programs are looked for when there is no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Git cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProgramError {
    /// There is no such program.
    #[error("the program {0} was not found or is not executable; install git")]
    Missing(String),
    /// It does not say its version.
    #[error("{0} does not say its version: {1}")]
    Silent(String, String),
    /// It is too old.
    #[error("git {0} is too old; install {min} or newer", min = GitVersion::MINIMUM)]
    TooOld(GitVersion),
}

/// A git program that can be used.
#[derive(Debug, Clone)]
pub(super) struct Program {
    path: PathBuf,
    search_path: OsString,
    version: GitVersion,
}

impl Program {
    /// Finds it and asks for its version.
    pub(super) async fn detect(name: &Path) -> Result<Self, ProgramError> {
        let search_path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        let shown = name.display().to_string();
        let environment = [("PATH".into(), search_path.clone())];
        let path = find_program(&shown, None, &environment)
            .ok_or_else(|| ProgramError::Missing(shown.clone()))?;
        let silent = |why: String| ProgramError::Silent(shown.clone(), why);
        let mut command = Command::new(&path);
        command.env_clear().env("PATH", &search_path).arg("--version");
        command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(VERSION_PATIENCE, command.output()).await;
        let output = output.map_err(|_| silent("no answer".to_owned()))?;
        let output = output.map_err(|error| silent(error.to_string()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let version = GitVersion::parse(&said).ok_or_else(|| silent(format!("{:?}", &*said)))?;
        if version < GitVersion::MINIMUM {
            return Err(ProgramError::TooOld(version));
        }
        Ok(Self { path, search_path, version })
    }

    pub(super) fn version(&self) -> GitVersion {
        self.version
    }

    /// The same program, asked for no more than a version can do.
    #[cfg(test)]
    pub(super) fn with_version(self, version: GitVersion) -> Self {
        Self { version, ..self }
    }

    /// A command for `git_dir` that talks to nobody: `config` is set above every file.
    pub(super) fn command(
        &self,
        git_dir: &Path,
        format: ObjectFormat,
        config: &[(&str, String)],
    ) -> Command {
        let mut command = self.bare_command(config);
        // No discovery, and no question of who owns the directory.
        command.arg("--git-dir").arg(git_dir);
        if self.version.has_attr_source() {
            command.env("GIT_ATTR_SOURCE", format.empty_tree());
        }
        command
    }

    /// A command that concerns no repository.
    pub(super) fn bare_command(&self, config: &[(&str, String)]) -> Command {
        let mut command = Command::new(&self.path);
        command.env_clear().env("PATH", &self.search_path).envs(ENVIRONMENT).current_dir("/");
        let config = CONFIG
            .iter()
            .map(|(key, value)| (*key, (*value).to_owned()))
            .chain(config.iter().cloned());
        let mut count = 0_u32;
        for (number, (key, value)) in (0_u32..).zip(config) {
            command.env(format!("GIT_CONFIG_KEY_{number}"), key);
            command.env(format!("GIT_CONFIG_VALUE_{number}"), value);
            count = number + 1;
        }
        command.env("GIT_CONFIG_COUNT", count.to_string());
        command.arg("--no-replace-objects");
        command
    }
}

/// What every child sees. See git(1) for the variables.
const ENVIRONMENT: [(&str, &str); 18] = [
    ("HOME", "/nonexistent"),
    ("XDG_CONFIG_HOME", "/nonexistent"),
    ("LC_ALL", "C"),
    ("TZ", "UTC"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_SYSTEM", "/dev/null"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_ASKPASS", "false"),
    ("SSH_ASKPASS", "false"),
    // Nothing at all, until a fetch says otherwise.
    ("GIT_ALLOW_PROTOCOL", ""),
    ("GIT_PROTOCOL_FROM_USER", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    // A repository with a work tree is not read from there.
    ("GIT_IMPLICIT_WORK_TREE", "0"),
    ("GIT_DEFAULT_REF_FORMAT", "files"),
];

/// What is set above every file of a repository. See git-config(1).
const CONFIG: [(&str, &str); 11] = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.attributesFile", "/dev/null"),
    ("core.pager", "cat"),
    ("submodule.recurse", "false"),
    ("diff.ignoreSubmodules", "none"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("protocol.version", "2"),
    // What is mapped of packs counts as memory, and by itself it would be all of them.
    ("core.packedGitWindowSize", "32m"),
    ("core.packedGitLimit", "1g"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_no_git_is_refused() {
        let missing = Program::detect(Path::new("/nonexistent/git")).await;
        assert!(matches!(missing, Err(ProgramError::Missing(_))), "{missing:?}");
        let silent = Program::detect(Path::new("true")).await;
        assert!(matches!(silent, Err(ProgramError::Silent(..))), "{silent:?}");
        let git = Program::detect(Path::new("git")).await.unwrap();
        assert!(git.version() >= GitVersion::MINIMUM && git.path.is_absolute());
    }
}

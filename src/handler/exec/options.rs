//! What to run for a kind, and within which bounds. Checked by nobody until a run begins.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::cgroup::Limits;

/// What to run for a kind, and within which bounds.
#[derive(Clone)]
pub struct ExecOptions {
    /// The program and its arguments. A program without a slash is looked for in the child's PATH;
    /// a relative path starts at the working directory.
    pub command: Vec<String>,
    /// Where it runs; absent: where the daemon runs.
    pub working_dir: Option<PathBuf>,
    /// Variables besides [`super::INHERITED`], over which they win.
    pub environment: BTreeMap<String, String>,
    /// Names of variables that no child may see, be they inherited or given.
    pub scrub: Vec<String>,
    /// Bytes of standard output kept as the result; the rest is read and thrown away.
    pub result_cap: usize,
    /// Bytes kept of the end of standard error.
    pub stderr_cap: usize,
    /// From SIGTERM to SIGKILL.
    pub kill_after: Duration,
    /// What one run may use, where it has a cgroup that enforces it.
    pub limits: Limits,
}

impl ExecOptions {
    /// The defaults for a command: 64 KiB of result, 16 KiB of standard error, 5 s to end.
    pub fn new<S: Into<String>>(command: impl IntoIterator<Item = S>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            working_dir: None,
            environment: BTreeMap::new(),
            scrub: Vec::new(),
            result_cap: 64 * 1024,
            stderr_cap: 16 * 1024,
            kill_after: Duration::from_secs(5),
            limits: Limits::default(),
        }
    }
}

impl fmt::Debug for ExecOptions {
    /// Without the values of variables, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecOptions")
            .field("command", &self.command)
            .field("working_dir", &self.working_dir)
            .field("environment", &self.environment.keys())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

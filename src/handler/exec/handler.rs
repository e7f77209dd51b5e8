//! The handler: from a run to a command, and from its end to a result or a failure.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::process::Command;

use super::cgroup::Cgroups;
use super::environment::{self, Lookup};
use super::execution::{Ended, Execution};
use super::options::ExecOptions;
use super::status;
use crate::domain::Failure;
use crate::handler::{ExternalHandler, Run};

/// The handler for kinds with a command.
///
/// Starting a program blocks the thread until the kernel has loaded it, some 0.3 ms: on a runtime
/// with twice as many threads as processors (see [`crate::handler::native::on`]) that costs nothing, on one
/// with fewer it was measured to cost a quarter of the programs per second.
pub struct ExecHandler {
    options: ExecOptions,
    environment: Vec<(OsString, OsString)>,
    lookup: Lookup,
    cgroups: Option<Arc<Cgroups>>,
}

impl fmt::Debug for ExecHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExecHandler").field(&self.options).finish()
    }
}

impl ExecHandler {
    /// A handler that reads the daemon's environment now, and nothing of it later.
    pub fn new(options: ExecOptions) -> Self {
        let environment = environment::base(&options);
        Self { options, environment, lookup: Lookup::default(), cgroups: None }
    }

    /// The same handler, with a cgroup for each of its runs where there is a tree for them.
    #[must_use]
    pub fn in_cgroups(mut self, cgroups: Option<Arc<Cgroups>>) -> Self {
        self.cgroups = cgroups;
        self
    }

    fn program(&self) -> &str {
        self.options.command.first().map_or("", String::as_str)
    }

    fn command(&self, run: &Run) -> Result<Command, Failure> {
        let working_dir = self.options.working_dir.as_deref();
        if let Some(dir) = working_dir.filter(|dir| !dir.is_dir()) {
            return Err(not_started(format!(
                "the working directory {} does not exist; create it or correct `working_dir`",
                dir.display()
            )));
        }
        let program = self.program();
        let path = self.lookup.find(program, working_dir, &self.environment);
        let path = path.ok_or_else(|| {
            not_started(format!(
                "the program `{program}` was not found or is not executable; install it or add it \
                 to the unit's path (on NixOS: services.queue-worker.extraPackages)"
            ))
        })?;
        let mut command = Command::new(path);
        command.as_std_mut().env_clear();
        command.arg0(program).args(self.options.command.iter().skip(1));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        environment::describe(&mut command, run);
        if let Some(dir) = working_dir {
            command.current_dir(dir);
        }
        Ok(command)
    }
}

#[async_trait]
impl ExternalHandler for ExecHandler {
    /// A run that was cancelled is a failure even if the program then exits with 0: ending well on
    /// SIGTERM does not say that the work is done.
    async fn run(&self, run: Run) -> Result<Option<Bytes>, Failure> {
        let command = self.command(&run)?;
        let started = Execution::start(command, &self.options, &run, self.cgroups.as_ref());
        let mut execution = started.map_err(|error| {
            not_started(format!("the program `{}` could not be started: {error}", self.program()))
        })?;
        let ended = execution.supervise(&run.cancel, self.options.kill_after).await;
        let evidence = execution.evidence();
        let (result, tail) = execution.finish().await;
        let program = self.program();
        let failure = match ended {
            Ended::Itself(status) if status.success() => return Ok(result),
            Ended::Itself(status) => {
                let failure = status::failure(program, status);
                let limits = &self.options.limits;
                status::explain(failure, &evidence, limits, run.task.kind.as_str())
            }
            Ended::Cancelled(status) => Failure::retry(match status.map(status::name) {
                Some(status) => format!("`{program}` was cancelled and ended with {status}"),
                None => format!("`{program}` was cancelled and did not end"),
            })
            .with_status("cancelled"),
            Ended::Unknown(error) => {
                Failure::retry(format!("`{program}` could not be waited for: {error}"))
            }
        };
        Err(failure.with_tail(tail))
    }
}

fn not_started(message: String) -> Failure {
    Failure::retry(message).with_status("not started")
}

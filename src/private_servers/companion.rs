//! A program of ours that runs beside the private servers: a worker that `dev`, a drill or a test
//! starts, signals and waits for.
//!
//! Like the servers it leads its own process group, so that Ctrl-C reaches only the program that
//! started it, and the kernel ends it when that one dies.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use rustix::process::Signal;

use super::error::PrivateServerError;
use super::process::{Launch, Output, POLL, ServerProcess};

/// Where a companion's output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompanionOutput {
    /// Where that of this process goes.
    Inherit,
    /// To the end of this file.
    Log(PathBuf),
}

/// A running program, or one that has ended. Dropping it kills the process (SIGKILL).
#[derive(Debug)]
pub struct Companion {
    process: ServerProcess,
}

impl Companion {
    /// Starts `program` in the current folder, with this process's environment and no input.
    pub fn start(
        program: &Path,
        arguments: &[&str],
        output: &CompanionOutput,
    ) -> Result<Self, PrivateServerError> {
        let process = ServerProcess::spawn(&Launch {
            server: "the program",
            program,
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            folder: Path::new("."),
            output: match output {
                CompanionOutput::Inherit => Output::Inherit,
                CompanionOutput::Log(path) => Output::Log(path),
            },
            account: None,
            death_signal: "TERM",
        })?;
        Ok(Self { process })
    }

    /// The process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Whether it runs (a paused one does).
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// Asks it to end (SIGTERM) and returns at once; see [`Self::wait`].
    pub fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Sends any signal to the process alone.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// SIGKILL to it and its children, as systemd does to a unit, and waits until they are gone.
    /// To kill the process alone, send `Signal::KILL` with [`Self::signal`].
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Freezes it and its children (SIGSTOP).
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Thaws them (SIGCONT).
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Waits until it has ended, without a limit: the caller sets one. Safe to cancel.
    pub async fn wait(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.process.status() {
                return status;
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

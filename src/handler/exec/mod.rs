//! Runs a task as a program: payload on standard input, result on standard output.
//!
//! The program is executed directly, never through a shell. Exit status 0 is success, 65 (EX_DATAERR
//! of sysexits.h) a failure for good, 75 (EX_TEMPFAIL) and everything else a failure worth another
//! attempt. Standard error goes to the log line by line, and its end is kept as evidence.
//!
//! A program runs in a process group of its own, with an environment that holds nothing of the
//! daemon's but [`INHERITED`]. When its run is over, in whatever way, no process of it is left: not
//! the group, not a child that left the group, not one that was forked twice.

mod environment;
mod leader;
mod output;
mod procfs;
mod reaper;
mod status;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::process::{ChildStderr, ChildStdout, Command};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

pub use environment::INHERITED;
use leader::Leader;
use output::{Head, Log, Origin};
pub use reaper::{Swept, become_reaper, sweep};

use super::{ExternalHandler, Run};
use crate::domain::Failure;

/// After the program's end, what it has written is read within this time; whoever still holds its
/// pipes then is a leftover.
const PIPE_PATIENCE: Duration = Duration::from_millis(100);
/// How often a cancelled group is asked whether it is empty, once its leader has ended.
const GROUP_PAUSE: Duration = Duration::from_millis(10);

/// What to run for a kind, and within which bounds.
#[derive(Debug, Clone)]
pub struct ExecOptions {
    /// The program and its arguments. A program without a slash is looked for in the child's PATH;
    /// a relative path starts at the working directory.
    pub command: Vec<String>,
    /// Where it runs; absent: where the daemon runs.
    pub working_dir: Option<PathBuf>,
    /// Variables besides [`INHERITED`], over which they win.
    pub environment: BTreeMap<String, String>,
    /// Names of variables that no child may see, be they inherited or given.
    pub scrub: Vec<String>,
    /// Bytes of standard output kept as the result; the rest is read and thrown away.
    pub result_cap: usize,
    /// Bytes kept of the end of standard error.
    pub stderr_cap: usize,
    /// From SIGTERM to SIGKILL.
    pub kill_after: Duration,
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
        }
    }
}

/// The handler for kinds with a command.
#[derive(Debug)]
pub struct ExecHandler {
    options: ExecOptions,
    environment: Vec<(OsString, OsString)>,
}

impl ExecHandler {
    /// A handler that reads the daemon's environment now, and nothing of it later.
    pub fn new(options: ExecOptions) -> Self {
        let environment = environment::base(&options);
        Self { options, environment }
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
        let path = environment::find_program(program, working_dir, &self.environment);
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
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    fn start(&self, run: &Run) -> Result<Execution, Failure> {
        let cannot = |error: std::io::Error| {
            not_started(format!("the program `{}` could not be started: {error}", self.program()))
        };
        let mut command = self.command(run)?;
        let (input, feed) = Feed::new(run.task.payload.clone()).map_err(cannot)?;
        command.stdin(input);
        let mut leader = Leader::spawn(&mut command).map_err(cannot)?;
        // Our copy of the child's input goes away with it: only the child shall hold that end.
        drop(command);
        let (stdout, stderr) = leader.outputs();
        let origin = Origin { task: Arc::clone(&run.task), fence: run.fence, attempt: run.attempt };
        Ok(Execution {
            leader,
            pipes: Pipes {
                feed,
                stdout,
                stderr,
                result: Head::new(self.options.result_cap),
                log: Log::new(origin, self.options.stderr_cap),
            },
        })
    }
}

#[async_trait]
impl ExternalHandler for ExecHandler {
    /// A run that was cancelled is a failure even if the program then exits with 0: ending well on
    /// SIGTERM does not say that the work is done.
    async fn run(&self, run: Run) -> Result<Option<Bytes>, Failure> {
        let mut execution = self.start(&run)?;
        let ended = execution.supervise(&run.cancel, self.options.kill_after).await;
        let (result, tail) = execution.finish().await;
        let program = self.program();
        let failure = match ended {
            Ended::Itself(status) if status.success() => return Ok(result),
            Ended::Itself(status) => status::failure(program, status),
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

/// How the leader ended.
enum Ended {
    /// Nobody asked it to.
    Itself(ExitStatus),
    /// After we asked it to, where it did.
    Cancelled(Option<ExitStatus>),
    /// The kernel did not say.
    Unknown(std::io::Error),
}

/// A program that runs.
struct Execution {
    // First, so that on a drop everything is killed before the pipes close.
    leader: Leader,
    pipes: Pipes,
}

impl Execution {
    /// Feeds and reads it until it ends or is cancelled.
    async fn supervise(&mut self, cancel: &CancellationToken, kill_after: Duration) -> Ended {
        let pipes = &mut self.pipes;
        loop {
            tokio::select! {
                biased;
                status = self.leader.wait() => {
                    return status.map_or_else(Ended::Unknown, Ended::Itself);
                }
                () = cancel.cancelled() => break,
                () = pipes.pump(), if !pipes.ended() => {}
            }
        }
        self.stop(Instant::now() + kill_after).await
    }

    /// SIGTERM for the group, and SIGKILL for all at `deadline`, or as soon as the group is empty
    /// for what has left it.
    async fn stop(&mut self, deadline: Instant) -> Ended {
        self.leader.terminate().await;
        let pipes = &mut self.pipes;
        let mut ended = None;
        while ended.is_none() {
            tokio::select! {
                biased;
                status = self.leader.wait() => ended = Some(status),
                () = sleep_until(deadline) => break,
                () = pipes.pump(), if !pipes.ended() => {}
            }
        }
        while ended.is_some() && self.leader.has_group() && Instant::now() < deadline {
            // Members whose parent has ended are ours to wait for, and count until that is done.
            reaper::table().look();
            tokio::select! {
                biased;
                () = sleep(GROUP_PAUSE) => {}
                () = pipes.pump(), if !pipes.ended() => {}
            }
        }
        self.leader.kill_all().await;
        if ended.is_none() {
            ended = timeout(PIPE_PATIENCE, self.leader.wait()).await.ok();
        }
        match ended {
            Some(Err(error)) => Ended::Unknown(error),
            Some(Ok(status)) => Ended::Cancelled(Some(status)),
            None => Ended::Cancelled(None),
        }
    }

    /// Reads what is still in the pipes, and kills whatever is left of the run.
    async fn finish(mut self) -> (Option<Bytes>, Bytes) {
        let mut alone = self.leader.is_alone();
        if !alone {
            self.leader.kill_all().await;
        }
        // Twice: a descendant that keeps the pipes open and was not found before is looked for then.
        for _ in 0..2 {
            if self.pipes.ended() || timeout(PIPE_PATIENCE, self.pipes.drain()).await.is_ok() {
                break;
            }
            self.leader.kill_all().await;
            alone = false;
        }
        if !alone {
            reaper::sweep();
        }
        self.leader.settle();
        (self.pipes.result.into_bytes(), self.pipes.log.finish())
    }
}

/// The three standard streams of a child.
struct Pipes {
    feed: Feed,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    result: Head,
    log: Log,
}

impl Pipes {
    fn ended(&self) -> bool {
        self.feed.ended() && self.result.ended && self.log.ended
    }

    /// Moves bytes on all three until they have ended. May be dropped and called anew.
    async fn pump(&mut self) {
        let Self { feed, stdout, stderr, result, log } = self;
        tokio::join!(feed.write(), result.read(stdout), log.read(stderr));
    }

    /// Reads both outputs to the end; nobody reads the input any more.
    async fn drain(&mut self) {
        self.feed = Feed::default();
        self.pump().await;
    }
}

/// The payload on its way to the child.
#[derive(Default)]
struct Feed {
    rest: Bytes,
    writer: Option<pipe::Sender>,
}

impl Feed {
    /// A pipe that is filled before the child exists: most payloads fit, and then there is nothing
    /// left to be done. Returns the child's end and what is left.
    fn new(mut payload: Bytes) -> std::io::Result<(Stdio, Self)> {
        let (reader, mut writer) = std::io::pipe()?;
        let flags = rustix::fs::fcntl_getfl(&writer)?;
        rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK)?;
        while payload.has_remaining() {
            match writer.write(&payload) {
                Ok(written) => payload.advance(written),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let writer = if payload.is_empty() {
            None
        } else {
            Some(pipe::Sender::from_owned_fd(OwnedFd::from(writer))?)
        };
        Ok((reader.into(), Self { rest: payload, writer }))
    }

    fn ended(&self) -> bool {
        self.writer.is_none()
    }

    /// Writes the rest and closes the pipe. A child that does not read its input, or not all of it,
    /// is in its right: then the rest is thrown away.
    async fn write(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        // write_all_buf keeps what was written across a drop of this future.
        let _ = writer.write_all_buf(&mut self.rest).await;
        self.writer = None;
        self.rest = Bytes::new();
    }
}

//! A program that runs: fed, read, cancelled, and cleaned up after.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::process::Command;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::cgroup::{Cgroups, Evidence, TaskGroup};
use super::leader::Leader;
use super::options::ExecOptions;
use super::output::{Head, Log, Origin};
use super::pipes::{Feed, Pipes};
use super::reaper;
use crate::handler::Run;

/// After the program's end, what it has written is read within this time; whoever still holds its
/// pipes then is a leftover.
const PIPE_PATIENCE: Duration = Duration::from_millis(100);
/// How often a cancelled group is asked whether it is empty, once its leader has ended.
const GROUP_PAUSE: Duration = Duration::from_millis(10);

/// How the leader ended.
pub(super) enum Ended {
    /// Nobody asked it to.
    Itself(ExitStatus),
    /// After we asked it to, where it did.
    Cancelled(Option<ExitStatus>),
    /// The kernel did not say.
    Unknown(io::Error),
}

/// A program that runs.
pub(super) struct Execution {
    // First, so that on a drop everything is killed before the pipes close.
    leader: Leader,
    pipes: Pipes,
}

impl Execution {
    /// Starts a command whose program, arguments and environment are set.
    pub(super) fn start(
        mut command: Command,
        options: &ExecOptions,
        run: &Run,
        cgroups: Option<&Arc<Cgroups>>,
    ) -> io::Result<Self> {
        let (input, feed) = Feed::new(run.task.payload.clone())?;
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut leader = Leader::spawn_confined(&mut command, |id| confine(cgroups, id, options))?;
        // Our copy of the child's input goes away with it: only the child shall hold that end.
        drop(command);
        let (stdout, stderr) = leader.outputs();
        let origin = Origin { task: Arc::clone(&run.task), fence: run.fence, attempt: run.attempt };
        let result = Head::new(options.result_cap);
        let log = Log::new(origin, options.stderr_cap);
        Ok(Self { leader, pipes: Pipes { feed, stdout, stderr, result, log } })
    }

    /// Feeds and reads it until it ends or is cancelled.
    pub(super) async fn supervise(
        &mut self,
        cancel: &CancellationToken,
        kill_after: Duration,
    ) -> Ended {
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

    /// What happened at the limits of the run; to be asked before [`Self::finish`].
    pub(super) fn evidence(&self) -> Evidence {
        self.leader.evidence()
    }

    /// Reads what is still in the pipes, and kills whatever is left of the run.
    pub(super) async fn finish(mut self) -> (Option<Bytes>, Bytes) {
        let mut alone = self.leader.end();
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
        self.leader.settle().await;
        (self.pipes.result.into_bytes(), self.pipes.log.finish())
    }
}

/// The cgroup of a run. Where none can be made, a handler with limits does not run; one without does
/// as if nothing had been delegated.
fn confine(
    cgroups: Option<&Arc<Cgroups>>,
    run: Uuid,
    options: &ExecOptions,
) -> io::Result<Option<TaskGroup>> {
    let Some(cgroups) = cgroups else { return Ok(None) };
    match TaskGroup::make(cgroups, run, &options.limits) {
        Ok(group) => Ok(Some(group)),
        Err(error) if options.limits.any() => {
            Err(io::Error::new(error.kind(), format!("its cgroup could not be made: {error}")))
        }
        Err(error) => {
            tracing::warn!("a program runs without a cgroup of its own: {error}");
            Ok(None)
        }
    }
}

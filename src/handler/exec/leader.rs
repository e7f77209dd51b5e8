//! The first process of a run, and through it all of its descendants.
//!
//! A leader has a process group of its own. When a [`Leader`] goes away, by whatever way, nothing
//! of its run is left alive; dropping it early kills at once.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use uuid::Uuid;

use super::cgroup::{Evidence, TaskGroup, start_inside};
use super::descent::members;
use super::procfs::{Process, RUN_VARIABLE};
use super::reaper;

/// Passes of looking for descendants and killing them; each process killed may have forked before.
const KILL_PASSES: u32 = 50;
/// The time that a killed process gets to disappear before the next pass.
const KILL_PAUSE: Duration = Duration::from_millis(10);
/// Passes without a pause when the run is dropped; what they miss is caught by the next sweep.
const DROP_PASSES: u32 = 3;

/// A spawned process that leads its own group.
pub(in crate::handler) struct Leader {
    run: Uuid,
    pid: Pid,
    /// Until it has been waited for.
    child: Option<Child>,
    /// Members seen before the signal that may have broken their chain of parents.
    known: Vec<Process>,
    /// Where everything that descends from the leader is, if it has a cgroup.
    cgroup: Option<TaskGroup>,
    /// Nothing of the run is left.
    settled: bool,
}

impl Leader {
    /// Spawns `command` in a new process group, marked as a run of its own.
    ///
    /// The standard library uses posix_spawn(3) as long as the program is given by its path and
    /// nothing has to be done between fork and exec, which is several times faster than fork here.
    pub(in crate::handler) fn spawn(command: &mut Command) -> io::Result<Self> {
        Self::start(command, true, |_| Ok(None))
    }

    /// The same for a program that starts no other: no orphan is taken for one of its.
    pub(in crate::handler) fn spawn_childless(command: &mut Command) -> io::Result<Self> {
        Self::start(command, false, |_| Ok(None))
    }

    /// The same in the cgroup, if any, that `confine` makes for the run's id.
    pub(super) fn spawn_confined(
        command: &mut Command,
        confine: impl FnOnce(Uuid) -> io::Result<Option<TaskGroup>>,
    ) -> io::Result<Self> {
        Self::start(command, true, confine)
    }

    fn start(
        command: &mut Command,
        may_fork: bool,
        confine: impl FnOnce(Uuid) -> io::Result<Option<TaskGroup>>,
    ) -> io::Result<Self> {
        let table = reaper::table();
        let run = table.begin(may_fork);
        command.env(RUN_VARIABLE, run.to_string()).process_group(0);
        match spawn_confined(command, || confine(run)) {
            Ok((pid, child, cgroup)) => {
                table.lead(run, pid);
                let child = Some(child);
                Ok(Self { run, pid, child, known: Vec::new(), cgroup, settled: false })
            }
            Err(error) => {
                table.end(run);
                Err(error)
            }
        }
    }

    /// Its process id, which may be another's once it has been waited for.
    pub(in crate::handler) fn pid(&self) -> Pid {
        self.pid
    }

    /// The other end of its standard input, once.
    pub(in crate::handler) fn input(&mut self) -> Option<ChildStdin> {
        self.child.as_mut().and_then(|child| child.stdin.take())
    }

    /// The other ends of its standard output and standard error, once.
    pub(in crate::handler) fn outputs(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        self.child.as_mut().map_or((None, None), |child| (child.stdout.take(), child.stderr.take()))
    }

    /// Waits for its end; not to be called again after that. May be dropped and called anew before.
    pub(in crate::handler) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let child = self.child.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let status = child.wait().await?;
        self.child = None;
        reaper::table().reaped(self.run);
        Ok(status)
    }

    /// Asks the whole group to end, remembering who belongs to the run.
    pub(in crate::handler) async fn terminate(&mut self) {
        self.remember().await;
        let _ = kill_process_group(self.pid, Signal::TERM);
    }

    /// Whether the group still has members. A leader that has not been waited for counts.
    pub(in crate::handler) fn has_group(&self) -> bool {
        test_kill_process_group(self.pid).is_ok()
    }

    /// Declares the run over, if its leader has been waited for, and says whether nothing of it was
    /// found: neither a member of the group nor an orphan.
    pub(in crate::handler) fn end(&mut self) -> bool {
        if self.child.is_some() {
            return false;
        }
        let table = reaper::table();
        table.end(self.run);
        // Whoever is still in the cgroup needs no search.
        if let Some(cgroup) = self.cgroup.as_ref().filter(|it| it.is_populated() == Some(true)) {
            cgroup.kill();
        }
        !self.has_group() && !table.look()
    }

    /// What happened at the limits of the run's cgroup.
    pub(super) fn evidence(&self) -> Evidence {
        self.cgroup.as_ref().map(TaskGroup::evidence).unwrap_or_default()
    }

    /// Kills the group and every descendant, in passes until none is left.
    ///
    /// A cgroup is killed as a whole; the search still finds those that moved out of it, and takes
    /// the exit status of those that were handed to us.
    pub(in crate::handler) async fn kill_all(&mut self) {
        for _ in 0..KILL_PASSES {
            if let Some(cgroup) = &self.cgroup {
                cgroup.kill();
            }
            let (run, pid, known) = (self.run, self.pid, self.known.clone());
            let pass = move || reaper::table().kill_members(run, pid, &known);
            match tokio::task::spawn_blocking(pass).await {
                // An error means that the runtime shuts down: the drop does what is left to do.
                Ok(0) | Err(_) => return,
                Ok(_) => tokio::time::sleep(KILL_PAUSE).await,
            }
        }
        tracing::warn!(run = %self.run, "processes of a task survive SIGKILL: uninterruptible sleep?");
    }

    /// Nothing of the run is left, so that dropping needs not look for it.
    pub(in crate::handler) async fn settle(&mut self) {
        self.settled = self.child.is_none();
        if let Some(cgroup) = self.cgroup.take() {
            cgroup.remove().await;
        }
    }

    async fn remember(&mut self) {
        let (run, pid) = (self.run, self.pid);
        let look = move || members(run, pid, &[]);
        self.known = tokio::task::spawn_blocking(look).await.unwrap_or_default();
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let table = reaper::table();
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        for _ in 0..DROP_PASSES {
            if table.kill_members(self.run, self.pid, &self.known) == 0 {
                break;
            }
        }
        match self.child.take() {
            Some(child) => table.abandon(self.run, child),
            None => table.end(self.run),
        }
    }
}

fn spawn_confined(
    command: &mut Command,
    confine: impl FnOnce() -> io::Result<Option<TaskGroup>>,
) -> io::Result<(Pid, Child, Option<TaskGroup>)> {
    let cgroup = confine()?;
    if let Some(cgroup) = &cgroup {
        start_inside(command, cgroup.entrance()?);
    }
    let child = command.spawn()?;
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let pid = pid.ok_or(io::ErrorKind::NotFound)?;
    if let Some(cgroup) = &cgroup {
        cgroup.offer_first(pid);
    }
    Ok((pid, child, cgroup))
}

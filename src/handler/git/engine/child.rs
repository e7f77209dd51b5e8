//! A long-lived git child that answers on its standard output what it is asked on its standard input.
//!
//! It runs under limits that the kernel keeps: what it allocates (RLIMIT_DATA), and no byte written to
//! any file. They are set right after the start and before anything is asked, which is early enough:
//! until then the child waits for its input, and nothing has to run between fork and exec.
//!
//! RLIMIT_DATA and not RLIMIT_AS, since the latter would count the index of a large pack, which is
//! mapped as a whole and costs nothing; the windows of packs have a limit of their own in git.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::{sleep, timeout};

use super::death::{Death, Memory};
use crate::handler::exec::leader::Leader;
use crate::handler::exec::procfs::peak_memory;

/// What is kept of the end of standard error.
const STDERR_KEPT: usize = 8 * 1024;
/// Room for one read of standard output.
const READ_SIZE: usize = 64 * 1024;
/// A child whose input was closed, or that was killed, ends within this time.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// While a child is silent, it is looked this often how much memory it has: once it is dead, nobody
/// can tell.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Bytes that a child maps besides what it allocates: its program and libraries.
const PROGRAM_SIZE: u64 = 8 * 1024 * 1024;
/// Bytes of packs that a child maps at once, as configured.
const PACK_WINDOWS: u64 = 32 * 1024 * 1024;
/// The smallest limit under which git starts at all.
const LEAST_DATA: u64 = 16 * 1024 * 1024;

/// What keeps the windows and caches of a child small, for git-config(1). Neither slows it down
/// measurably, and the counts stay the same.
pub(super) fn memory_config() -> Vec<(&'static str, String)> {
    vec![
        ("core.packedGitWindowSize", "4m".to_owned()),
        ("core.packedGitLimit", PACK_WINDOWS.to_string()),
        ("core.deltaBaseCacheLimit", "24m".to_owned()),
        ("pack.threads", "1".to_owned()),
        // Only objects decide, no index that somebody derived from them.
        ("core.commitGraph", "false".to_owned()),
    ]
}

/// A child and its pipes.
pub(super) struct Child {
    // First, so that on a drop it is killed before its pipes close.
    leader: Leader,
    program: &'static str,
    memory: Memory,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: Option<ChildStderr>,
    said: Vec<u8>,
    buffer: Vec<u8>,
    /// How much of the buffer was taken already.
    taken: usize,
    served: usize,
}

impl Child {
    /// Starts `command`, which runs git's `program`, with at most `memory` bytes.
    pub(super) fn spawn(
        program: &'static str,
        mut command: Command,
        memory: u64,
    ) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut leader = Leader::spawn_childless(&mut command)?;
        limit(leader.pid(), memory)?;
        let stdin = leader.input();
        let (stdout, stderr) = leader.outputs();
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let memory = Memory { peak: None, limit: memory };
        let (said, buffer) = (Vec::new(), Vec::new());
        Ok(Self {
            leader,
            program,
            memory,
            stdin,
            stdout,
            stderr,
            said,
            buffer,
            taken: 0,
            served: 0,
        })
    }

    /// Its process id.
    pub(super) fn pid(&self) -> Pid {
        self.leader.pid()
    }

    /// How many requests it has answered.
    pub(super) fn served(&self) -> usize {
        self.served
    }

    /// One more.
    pub(super) fn count_answer(&mut self) {
        self.served += 1;
    }

    /// Writes requests.
    pub(super) async fn write(&mut self, requests: &[u8]) -> io::Result<()> {
        self.stdin.write_all(requests).await
    }

    /// What was read and not yet taken.
    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    /// Takes the first `length` bytes of that.
    pub(super) fn take(&mut self, length: usize) {
        self.taken = (self.taken + length).min(self.buffer.len());
    }

    /// Reads more of what it answers; false at the end. Reads standard error meanwhile, so that a child
    /// that complains never waits for us. May be dropped and called anew.
    pub(super) async fn read(&mut self) -> io::Result<bool> {
        let mut complaint = [0; 1024];
        self.buffer.drain(..std::mem::take(&mut self.taken));
        self.buffer.reserve(READ_SIZE);
        loop {
            let complaining = async {
                match &mut self.stderr {
                    Some(stderr) => stderr.read(&mut complaint).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                read = self.stdout.read_buf(&mut self.buffer) => return Ok(read? > 0),
                read = complaining => match read {
                    Ok(0) | Err(_) => self.stderr = None,
                    Ok(length) => keep(&mut self.said, &complaint[..length]),
                },
                () = sleep(LOOK_EVERY) => {
                    self.memory.peak = self.memory.peak.max(peak_memory(self.leader.pid()));
                }
            }
        }
    }

    /// Closes its input and waits for it to end, killing it if it does not.
    pub(super) async fn close(mut self) {
        drop(self.stdin);
        let ended = timeout(END_PATIENCE, self.leader.wait()).await.is_ok();
        if !ended || !self.leader.end() {
            self.leader.kill_all().await;
        }
        self.leader.settle().await;
    }

    /// Kills it.
    pub(super) async fn kill(mut self) {
        self.leader.kill_all().await;
        let _ = timeout(END_PATIENCE, self.leader.wait()).await;
        self.leader.end();
        self.leader.settle().await;
    }

    /// What it died of; for a child that has closed its output or cannot be written to.
    pub(super) async fn death(mut self) -> Death {
        let status: Option<ExitStatus> =
            timeout(END_PATIENCE, self.leader.wait()).await.ok().and_then(Result::ok);
        if let Some(stderr) = self.stderr.take() {
            let mut rest = Vec::new();
            let mut all = stderr.take(STDERR_KEPT as u64);
            let _ = timeout(END_PATIENCE, all.read_to_end(&mut rest)).await;
            keep(&mut self.said, &rest);
        }
        if status.is_none() || !self.leader.end() {
            self.leader.kill_all().await;
        }
        self.leader.settle().await;
        Death::of(self.program, status, &self.said, self.memory)
    }
}

fn keep(said: &mut Vec<u8>, more: &[u8]) {
    said.extend_from_slice(more);
    let surplus = said.len().saturating_sub(STDERR_KEPT);
    said.drain(..surplus);
}

fn limit(pid: Pid, memory: u64) -> io::Result<()> {
    let data = memory.saturating_sub(PACK_WINDOWS + PROGRAM_SIZE).max(LEAST_DATA);
    for (resource, most) in [(Resource::Data, data), (Resource::Fsize, 0), (Resource::Core, 0)] {
        let most = Some(most);
        prlimit(Some(pid), resource, Rlimit { current: most, maximum: most })?;
    }
    Ok(())
}

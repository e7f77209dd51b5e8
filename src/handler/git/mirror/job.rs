//! One git command that does its work and ends, under limits and a deadline.
//!
//! Its input is given only after the limits are set, and a fetch reads its input before it starts
//! another program: so these inherit the limits. When it is late or nobody waits for it any more, its
//! whole process group ends.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::lock::Held;
use crate::handler::exec::leader::Leader;
use crate::handler::exec::status::name;
use crate::handler::git::redact::redacted;

/// What is kept of the end of standard error.
const STDERR_KEPT: usize = 16 * 1024;
/// From SIGTERM to SIGKILL: time enough for git to remove its temporary files.
const TERM_PATIENCE: Duration = Duration::from_secs(5);
/// What a group has written is read within this time after its end.
const PIPE_PATIENCE: Duration = Duration::from_secs(1);

/// Address space of a command that walks through the history. Three million commits take 0.8 GiB at
/// 250 bytes each, the windows of packs up to 1 GiB, and the indexes of ten million objects less than
/// that.
const WALK_MEMORY: u64 = 3 * 1024 * 1024 * 1024;

/// What a command may use, in bytes; no limit where there is none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    /// Address space of each of its programs.
    pub(super) memory: Option<u64>,
    /// The largest file that it writes.
    pub(super) file: Option<u64>,
}

impl Limits {
    /// For what reads the history and writes no file.
    pub(super) const WALK: Self = Self { memory: Some(WALK_MEMORY), file: Some(0) };
}

/// Where its standard output goes.
pub(super) enum Output<'a> {
    /// To us, up to so many bytes.
    Kept(usize),
    /// Nowhere; in its place it keeps this lock as long as it lives.
    Locked(&'a Held),
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) success: bool,
    pub(super) stdout: Vec<u8>,
    /// The end of standard error, without secrets; before it the signal, if it ended by one.
    pub(super) stderr: String,
}

/// Why it did not end by itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum JobError {
    /// It could not be started, fed or waited for.
    #[error("git could not be run: {0}")]
    Io(#[from] io::Error),
    /// It did not end in time.
    #[error("git did not end in time")]
    Late,
    /// It printed more than allowed.
    #[error("git printed more than {0} bytes")]
    TooMuch(usize),
}

/// Runs a command on `input`.
pub(super) async fn run(
    mut command: Command,
    input: &[u8],
    output: Output<'_>,
    limits: Limits,
    until: Instant,
) -> Result<Done, JobError> {
    let (stdout, most) = match output {
        Output::Kept(most) => (Stdio::piped(), most),
        Output::Locked(held) => (Stdio::from(held.share()?), 0),
    };
    command.stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::piped());
    let mut leader = Leader::spawn(&mut command)?;
    // The lock's copy in it would outlive the child.
    drop(command);
    limit(leader.pid(), limits)?;
    let mut stdin = leader.input();
    let (stdout, stderr) = leader.outputs();
    let feed = async {
        if let Some(stdin) = &mut stdin {
            // A child that does not want its input says so by its status.
            let _ = stdin.write_all(input).await;
        }
        stdin = None;
    };
    let work = async {
        let (read, said, ()) = tokio::join!(first(stdout, most), last(stderr), feed);
        (read, said)
    };
    let mut work = std::pin::pin!(work);
    let mut status = None;
    let mut result = None;
    while status.is_none() || result.is_none() {
        // Whoever keeps the pipes after the leader's end is a leftover.
        let patience = if status.is_some() { Instant::now() + PIPE_PATIENCE } else { until };
        tokio::select! {
            biased;
            ended = leader.wait(), if status.is_none() => status = Some(ended?),
            read = &mut work, if result.is_none() => result = Some(read),
            () = sleep_until(patience) => break,
        }
        if matches!(&result, Some((Err(_), _))) {
            break;
        }
    }
    let late = status.is_none();
    end(&mut leader, status).await;
    match result {
        Some((Err(error), _)) => Err(error),
        _ if late => Err(JobError::Late),
        Some((Ok(stdout), said)) => {
            let success = status.is_some_and(|status| status.success());
            let said = redacted(&said);
            let stderr = match status.filter(|status| status.signal().is_some()) {
                Some(status) => format!("git ended with {}\n{said}", name(status)),
                None => said,
            };
            Ok(Done { success, stdout, stderr })
        }
        None => {
            Ok(Done { success: false, stdout: Vec::new(), stderr: "its pipes stayed open".into() })
        }
    }
}

/// Ends what is left of the group.
async fn end(leader: &mut Leader, status: Option<ExitStatus>) {
    if status.is_none() {
        leader.terminate().await;
        let _ = timeout_at(Instant::now() + TERM_PATIENCE, leader.wait()).await;
    }
    if !leader.end() {
        leader.kill_all().await;
        let _ = timeout_at(Instant::now() + PIPE_PATIENCE, leader.wait()).await;
        leader.end();
    }
    leader.settle().await;
}

fn limit(pid: Pid, limits: Limits) -> io::Result<()> {
    let wanted =
        [(Resource::As, limits.memory), (Resource::Fsize, limits.file), (Resource::Core, Some(0))];
    for (resource, most) in wanted {
        if most.is_some() {
            prlimit(Some(pid), resource, Rlimit { current: most, maximum: most })?;
        }
    }
    Ok(())
}

/// Reads all, unless it is more than `most` bytes.
async fn first(pipe: Option<impl AsyncRead + Unpin>, most: usize) -> Result<Vec<u8>, JobError> {
    let mut kept = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(most as u64 + 1).read_to_end(&mut kept).await?;
    }
    if kept.len() > most { Err(JobError::TooMuch(most)) } else { Ok(kept) }
}

/// Reads all and keeps the end.
async fn last(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut pipe) = pipe else { return kept };
    while let Ok(read) = pipe.read_buf(&mut kept).await {
        if read == 0 {
            break;
        }
        let surplus = kept.len().saturating_sub(STDERR_KEPT);
        kept.drain(..surplus);
    }
    kept
}

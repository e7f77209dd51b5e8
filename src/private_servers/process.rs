//! One server process: started so that it cannot outlive us, signalled by process id, reaped.
//!
//! * It leads its own process group, so that Ctrl-C in a terminal reaches us alone and we stop the
//!   servers after their clients.
//! * `setpriv --pdeathsig` (util-linux) makes the kernel end it when we die, even by SIGKILL. The
//!   kernel watches the *thread* that forked (prctl(2), PR_SET_PDEATHSIG), so all servers are
//!   forked by one thread that lives as long as the process; runtime threads come and go. Without
//!   `setpriv` only `Drop` ends the server.
//! * Freezing and killing reach the server's children too: the backends of Postgres sit in
//!   sessions of their own and would go on without their postmaster.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::account::Account;
use super::error::PrivateServerError;
use super::program;
use crate::clock::{BootInstant, Clock};

/// How often a condition is looked at.
pub(super) const POLL: Duration = Duration::from_millis(5);
/// How long a signal such as SIGSTOP or SIGKILL may take to show; the kernel needs microseconds.
const SIGNAL_LIMIT: Duration = Duration::from_secs(5);
/// How much of the end of a log is quoted.
const LOG_TAIL_BYTES: u64 = 4096;

/// What to start.
pub(super) struct Launch<'a> {
    /// For messages.
    pub(super) server: &'static str,
    /// The program.
    pub(super) program: &'a Path,
    /// Its arguments.
    pub(super) arguments: Vec<String>,
    /// Its working folder.
    pub(super) folder: &'a Path,
    /// Where its output goes.
    pub(super) output: Output<'a>,
    /// Whom it runs as, if not as ourselves.
    pub(super) account: Option<&'a Account>,
    /// The signal it gets when we die.
    pub(super) death_signal: &'static str,
}

/// Where the output of a process goes.
pub(super) enum Output<'a> {
    /// To the end of this file.
    Log(&'a Path),
    /// Where ours goes.
    Inherit,
}

/// A running server, or one that has ended and been reaped.
#[derive(Debug)]
pub(super) struct ServerProcess {
    server: &'static str,
    child: Option<Child>,
    status: Option<ExitStatus>,
    log: Option<(PathBuf, u64)>,
}

impl ServerProcess {
    /// Forks and executes. That it runs does not mean that it is ready.
    pub(super) fn spawn(launch: &Launch<'_>) -> Result<Self, PrivateServerError> {
        let mut command = wrapped(launch.program, launch.account, Some(launch.death_signal));
        command
            .args(&launch.arguments)
            .current_dir(launch.folder)
            .stdin(Stdio::null())
            .process_group(0);
        let log = match launch.output {
            Output::Inherit => None,
            Output::Log(path) => {
                let file = append(path).map_err(PrivateServerError::file("open", path))?;
                let start = file.metadata().map_or(0, |meta| meta.len());
                let errors = append(path).map_err(PrivateServerError::file("open", path))?;
                command.stdout(file).stderr(errors);
                Some((path.to_owned(), start))
            }
        };
        let child = spawn_on_lasting_thread(command).map_err(|source| {
            PrivateServerError::Execute { program: launch.program.display().to_string(), source }
        })?;
        Ok(Self { server: launch.server, child: Some(child), status: None, log })
    }

    /// The process id while it has not been reaped.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether the process still runs; reaps it if not.
    pub(super) fn is_running(&mut self) -> bool {
        self.child.is_some() && self.reap().is_none()
    }

    /// While a server is starting: an error once it has ended or `deadline` has passed.
    pub(super) fn check_starting(&mut self, deadline: Deadline) -> Result<(), PrivateServerError> {
        let server = self.server;
        if let Some(status) = self.reap() {
            let status = status.to_string();
            return Err(PrivateServerError::Exited { server, status, log: self.log_tail() });
        }
        if deadline.has_passed() {
            let after = deadline.limit;
            return Err(PrivateServerError::NotReady { server, after, log: self.log_tail() });
        }
        Ok(())
    }

    /// Freezes the server and its children (SIGSTOP): peers keep their connections and hear
    /// nothing.
    pub(super) fn pause(&self) {
        let Some(main) = self.main() else { return };
        signal(main, Signal::STOP);
        // Stopped for sure before its children are listed, or it could fork one more.
        wait_until(SIGNAL_LIMIT, || matches!(state(main), None | Some('T' | 't' | 'Z')));
        for child in children(main) {
            signal(child, Signal::STOP);
        }
    }

    /// Thaws what [`Self::pause`] froze (SIGCONT).
    pub(super) fn resume(&self) {
        let Some(main) = self.main() else { return };
        for child in children(main) {
            signal(child, Signal::CONT);
        }
        signal(main, Signal::CONT);
    }

    /// SIGKILL to the server and its children, all at once, and reaps.
    pub(super) fn kill(&mut self) {
        let Some(main) = self.main() else { return };
        self.pause();
        let children = children(main);
        signal(main, Signal::KILL);
        for child in &children {
            signal(*child, Signal::KILL);
        }
        if let Some(mut child) = self.child.take() {
            // SIGKILL cannot be refused, so this returns.
            self.status = child.wait().ok();
        }
        // Postgres does not start on shared memory that somebody still uses.
        wait_until(SIGNAL_LIMIT, || {
            children.iter().all(|child| matches!(state(*child), None | Some('Z')))
        });
    }

    /// Asks the server to end with `ask`, waits up to `limit`, and kills it then.
    pub(super) async fn stop(&mut self, ask: Signal, limit: Duration) {
        let Some(main) = self.main() else { return };
        signal(main, ask);
        self.resume();
        let deadline = Deadline::after(limit);
        while self.is_running() {
            if deadline.has_passed() {
                return self.kill();
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// [`Self::stop`] for `Drop`: blocks the thread.
    pub(super) fn stop_blocking(&mut self, ask: Signal, limit: Duration) {
        let Some(main) = self.main() else { return };
        signal(main, ask);
        self.resume();
        if !wait_until(limit, || !self.is_running()) {
            self.kill();
        }
    }

    /// Sends a signal to the process alone, while it runs.
    pub(super) fn signal(&self, number: Signal) {
        if let Some(main) = self.main() {
            signal(main, number);
        }
    }

    /// How it ended, once it has.
    pub(super) fn status(&mut self) -> Option<ExitStatus> {
        self.reap();
        self.status
    }

    /// The end of what this start of the server has logged.
    fn log_tail(&self) -> String {
        let Some((path, start)) = &self.log else { return "(it has no log)".to_owned() };
        let read = || -> io::Result<String> {
            let mut log = File::open(path)?;
            let end = log.metadata()?.len();
            log.seek(SeekFrom::Start((*start).max(end.saturating_sub(LOG_TAIL_BYTES))))?;
            let mut bytes = Vec::new();
            log.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
        };
        read().unwrap_or_else(|error| format!("(cannot read {}: {error})", path.display()))
    }

    fn main(&self) -> Option<Pid> {
        self.child.as_ref().map(Pid::from_child)
    }

    fn reap(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        self.child = None;
        self.status = Some(status);
        Some(status)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A limit in time, on the clock that suspend does not stop.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    end: BootInstant,
    limit: Duration,
}

impl Deadline {
    /// `limit` from now.
    pub(super) fn after(limit: Duration) -> Self {
        Self { end: Clock::System.now() + limit, limit }
    }

    /// Whether it has passed.
    pub(super) fn has_passed(self) -> bool {
        Clock::System.now() >= self.end
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

/// The command that runs `program` as `account`, and gets `death_signal` when we die.
pub(super) fn wrapped(
    program: &Path,
    account: Option<&Account>,
    death_signal: Option<&str>,
) -> Command {
    let Some(setpriv) = program::optional("setpriv") else {
        let mut command = Command::new(program);
        if let Some(account) = account {
            command.uid(account.uid).gid(account.gid);
        }
        return command;
    };
    let mut command = Command::new(setpriv);
    if let Some(account) = account {
        command
            .arg(format!("--reuid={}", account.uid))
            .arg(format!("--regid={}", account.gid))
            .arg("--clear-groups");
    }
    if let Some(death_signal) = death_signal {
        command.arg("--pdeathsig").arg(death_signal);
    }
    command.arg("--").arg(program);
    command
}

type Order = (Command, mpsc::SyncSender<io::Result<Child>>);

/// Spawns on a thread that never ends, because the kernel's death signal watches that thread.
fn spawn_on_lasting_thread(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Option<mpsc::Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        let work = move || {
            for (mut command, reply) in orders {
                // Nobody waits any more only if the caller panicked.
                let _ = reply.send(command.spawn());
            }
        };
        thread::Builder::new().name("server-spawner".to_owned()).spawn(work).ok()?;
        Some(sender)
    });
    let gone = || io::Error::other("the thread that starts servers is not there");
    let (reply, answer) = mpsc::sync_channel(1);
    spawner.as_ref().ok_or_else(gone)?.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// Sends a signal. A process that is gone needs none, so there is no error to tell.
fn signal(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

/// Polls `condition`, blocking, for at most `limit`; tells whether it came true.
fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Deadline::after(limit);
    loop {
        if condition() {
            return true;
        }
        if deadline.has_passed() {
            return false;
        }
        thread::sleep(POLL);
    }
}

/// State letter and parent of a process, from proc(5); nothing when it is gone.
fn stat(pid: Pid) -> Option<(char, i32)> {
    let text = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may hold anything, a parenthesis too.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn state(pid: Pid) -> Option<char> {
    stat(pid).map(|(state, _)| state)
}

/// The direct children of a process.
fn children(parent: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(Pid::from_raw)
        .filter(|pid| stat(*pid).is_some_and(|(_, of)| of == parent.as_raw_nonzero().get()))
        .collect()
}

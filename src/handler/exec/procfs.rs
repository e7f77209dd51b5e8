//! What `/proc` says about processes: the few fields that tell whose descendant a process is.
//!
//! Every answer may be out of date the moment it is read; callers look again until nothing changes.
//! Nothing here sends a signal or waits for a process. See proc_pid_stat(5) and proc_tid_children(5).

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use rustix::process::Pid;
use uuid::Uuid;

/// The variable by which descendants of a run are found: inherited unless they clear it.
pub(super) const RUN_VARIABLE: &str = "QUEUE_WORKER_RUN";

/// An environment is searched up to this size; ours is a few hundred bytes long.
const ENVIRON_LIMIT: u64 = 256 * 1024;
/// The list of adopted children is read up to this size, some ten thousand processes.
const CHILDREN_LIMIT: u64 = 128 * 1024;
/// The unit of times in `stat`: USER_HZ is 100 on every architecture that Rust runs on.
const MS_PER_TICK: u64 = 10;
/// `stat` is one line of some 300 bytes.
const STAT_LIMIT: u64 = 4096;

/// One process, as it was when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    /// Its id.
    pub(super) pid: Pid,
    /// Its parent's id; 0 for none.
    pub(super) parent: i32,
    /// Its process group.
    pub(super) group: i32,
    /// Its session.
    pub(super) session: i32,
    /// When it started, in clock ticks since boot; tells two processes with one id apart.
    pub(super) started: u64,
    /// It has ended and waits to be reaped.
    pub(super) zombie: bool,
}

impl Process {
    /// Reads `/proc/PID/stat`; `None` when there is no such process (any more).
    pub(super) fn read(pid: Pid) -> Option<Self> {
        Self::parse(&read_limited(&format!("/proc/{}/stat", pid.as_raw_pid()), STAT_LIMIT)?)
    }

    /// The name in parentheses may contain anything, so the fields are counted after the last one.
    fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok().map_or_else(
            || String::from_utf8_lossy(line).into_owned(),
            std::borrow::ToOwned::to_owned,
        );
        let pid = line.split(' ').next()?.parse().ok()?;
        let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        // Field 22 of the line; the session was field 6.
        let started = fields.nth(15)?.parse().ok()?;
        let zombie = matches!(state, "Z" | "X");
        Some(Self { pid: Pid::from_raw(pid)?, parent, group, session, started, zombie })
    }

    /// Every process that can be seen.
    pub(super) fn all() -> Vec<Self> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(|pid| Self::read(Pid::from_raw(pid)?))
            .collect()
    }

    /// The run that the process carries in its environment, if that can be read.
    pub(super) fn run_marker(&self) -> Option<Uuid> {
        let path = format!("/proc/{}/environ", self.pid.as_raw_pid());
        marker(&read_limited(&path, ENVIRON_LIMIT)?)
    }
}

/// The processor time that a process has used so far, of its own and of children that it waited for.
pub(in crate::handler) fn processor_time(pid: Pid) -> Option<Duration> {
    let line = read_limited(&format!("/proc/{}/stat", pid.as_raw_pid()), STAT_LIMIT)?;
    let line = String::from_utf8_lossy(&line).into_owned();
    // Fields 14 to 17 of the line; the name ends before field 3.
    let fields = line.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).take(4);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Duration::from_millis(ticks.saturating_mul(MS_PER_TICK)))
}

/// The most memory that a process has had resident at once, in bytes.
pub(in crate::handler) fn peak_memory(pid: Pid) -> Option<u64> {
    let status = read_limited(&format!("/proc/{}/status", pid.as_raw_pid()), STAT_LIMIT)?;
    let status = String::from_utf8_lossy(&status).into_owned();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn marker(environ: &[u8]) -> Option<Uuid> {
    environ
        .split(|byte| *byte == 0)
        .filter_map(|pair| pair.strip_prefix(RUN_VARIABLE.as_bytes())?.strip_prefix(b"="))
        .find_map(|value| Uuid::try_parse_ascii(value).ok())
}

/// The children of our main thread, to which the kernel hands orphans when we are a subreaper.
/// `None` where the kernel does not tell (`CONFIG_PROC_CHILDREN`).
pub(super) fn adopted() -> Option<Vec<Pid>> {
    let own = std::process::id();
    let list = read_limited(&format!("/proc/self/task/{own}/children"), CHILDREN_LIMIT)?;
    let list = std::str::from_utf8(&list).ok()?;
    Some(list.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}

fn read_limited(path: &str, limit: u64) -> Option<Vec<u8>> {
    let mut content = Vec::with_capacity(512);
    File::open(path).ok()?.take(limit).read_to_end(&mut content).ok()?;
    Some(content)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    /// Nothing here asks the kernel for our own group or session: both are 0 where their leader lives
    /// outside our PID namespace, as in a container that was entered.
    #[test]
    fn reads_ourselves_and_a_child() {
        let own = Process::read(rustix::process::getpid()).unwrap();
        let parent = rustix::process::getppid().map_or(0, Pid::as_raw_pid);
        assert_eq!((own.pid, own.parent), (rustix::process::getpid(), parent));
        assert!(own.started > 0 && !own.zombie);
        assert!(Process::all().iter().any(|other| other.pid == own.pid));

        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let id = i32::try_from(child.id()).unwrap();
        let process = Process::read(Pid::from_raw(id).unwrap()).unwrap();
        assert_eq!((process.pid.as_raw_pid(), process.parent), (id, own.pid.as_raw_pid()));
        assert_eq!((process.group, process.session), (id, own.session));
        assert!(process.started >= own.started);
        let pid = process.pid;
        assert!(processor_time(pid).is_some() && peak_memory(pid).is_some_and(|peak| peak > 0));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_name_may_look_like_fields() {
        let line = b"7 (a) Z 9 9) S 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0\n";
        let process = Process::parse(line).unwrap();
        assert_eq!((process.parent, process.group, process.session), (1, 2, 3));
        assert_eq!(process.started, 4711);
        assert!(!process.zombie);
    }

    #[test]
    fn finds_the_marker_only_by_its_full_name() {
        let id = Uuid::from_u128(5);
        let environ = format!("XQUEUE_WORKER_RUN={}\0QUEUE_WORKER_RUN={id}\0", Uuid::nil());
        assert_eq!(marker(environ.as_bytes()), Some(id));
        assert_eq!(marker(b"QUEUE_WORKER_RUN=nonsense\0PATH=/bin"), None);
    }
}

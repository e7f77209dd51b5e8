//! A worker process: its signals, its end, its log and its memory.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::time::Instant;

use super::wait_for;

/// A worker process; killed when dropped.
pub struct Worker {
    pub child: Child,
    pub(super) log_path: PathBuf,
    pub(super) log_start: u64,
    pub(super) name: String,
}

impl Worker {
    pub fn pid(&self) -> Pid {
        let pid = self.child.id().expect("the worker runs");
        Pid::from_raw(pid.cast_signed()).expect("a pid is not 0")
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("signal the worker");
    }

    /// Waits for the exit; panics with the log if it does not come in `limit`.
    pub async fn exit(&mut self, limit: Duration) -> (ExitStatus, Duration) {
        let start = Instant::now();
        let Ok(status) = tokio::time::timeout(limit, self.child.wait()).await else {
            panic!("{} did not exit within {limit:?}:\n{}", self.name, self.log());
        };
        (status.expect("wait for the worker"), start.elapsed())
    }

    /// SIGTERM; the exit must be 0.
    pub async fn terminate(&mut self) -> Duration {
        self.signal(Signal::TERM);
        let (status, took) = self.exit(Duration::from_secs(60)).await;
        assert!(status.success(), "{} ended with {status}:\n{}", self.name, self.log());
        took
    }

    /// SIGKILL, and waits until it is gone.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("kill the worker");
    }

    /// What this process has logged; not what a predecessor of the same name did.
    pub fn log(&self) -> String {
        let all = std::fs::read(&self.log_path).unwrap_or_default();
        let own = usize::try_from(self.log_start).expect("a short log");
        String::from_utf8_lossy(all.get(own..).unwrap_or_default()).into_owned()
    }

    /// How many lines with `text` it has logged.
    pub fn logged(&self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    /// Waits until it has logged `times` lines with `text`.
    pub async fn until_logged_times(&self, text: &str, times: usize) {
        wait_for(&format!("{} to log {text:?} {times} times", self.name), async || {
            self.logged(text) >= times
        })
        .await;
    }

    /// A field of /proc/PID/status in kibibytes, such as `VmHWM`, the most memory it ever had.
    pub fn memory_kib(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.pid().as_raw_nonzero());
        let text = std::fs::read_to_string(path).expect("the worker runs");
        let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("a known field");
        let number = line.trim_start_matches(':').trim().trim_end_matches(" kB");
        number.parse().expect("a number of kibibytes")
    }

    pub async fn until_logged(&self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.log().contains(text) {
            assert!(
                Instant::now() < deadline,
                "{} never logged {text:?}:\n{}",
                self.name,
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Worker {
    /// A failed test shows what its workers said.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of {}:\n{}", self.name, self.log());
        }
    }
}

//! What the tests of programs share: a run to hand to a handler, and processes that note their ids.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use queue_worker::clock::Clock;
use queue_worker::domain::{Fence, Kind, PayloadHash, QueueName, Task, TaskId};
use queue_worker::handler::Run;
use queue_worker::handler::exec::{ExecOptions, sweep};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long anything may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn run(payload: impl Into<Bytes>) -> Run {
    let (kind, payload) = (Kind::new("resize").unwrap(), payload.into());
    let hash = PayloadHash::of(&kind, &payload, None);
    let task = Task {
        id: TaskId::new("task 1/ä").unwrap(),
        queue: QueueName::new("images").unwrap(),
        kind,
        payload,
        lock_key: None,
        max_attempts: None,
        timeout: None,
        not_before_ms: None,
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        hash,
    };
    Run {
        task: task.into(),
        fence: Fence(7),
        attempt: 2,
        deadline: Clock::System.now() + LIMIT,
        deadline_ms: 1_700_000_000_123,
        cancel: CancellationToken::new(),
    }
}

pub(crate) fn shell(script: &str) -> ExecOptions {
    ExecOptions::new(["sh", "-c", script])
}

pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.expect("it took too long")
}

/// Polls until it is so, since the end of foreign processes cannot be waited for otherwise.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(") ").unwrap().1.starts_with('Z'))
}

/// The ids in a file, one a line.
pub(crate) fn pids(file: impl AsRef<Path>) -> Vec<i32> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// A directory with a file in which the processes of a test note their ids.
pub(crate) struct Notes(tempfile::TempDir);

impl Notes {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.path().join("pids")
    }

    /// A script that finds the file in `NOTES`.
    pub(crate) fn options(&self, script: &str) -> ExecOptions {
        let mut options = shell(script);
        options.environment.insert("NOTES".into(), self.file().to_str().unwrap().into());
        options
    }

    /// Waits until so many ids are there.
    pub(crate) async fn count(&self, count: usize) -> Vec<i32> {
        eventually("all processes have noted their ids", || pids(self.file()).len() >= count).await;
        pids(self.file())
    }

    pub(crate) async fn all_gone(&self) {
        for pid in pids(self.file()) {
            eventually(&format!("{pid} is gone"), || {
                sweep();
                !is_alive(pid)
            })
            .await;
        }
    }
}

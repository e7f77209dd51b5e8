//! The test plays systemd: it listens where `$NOTIFY_SOCKET` points and remembers what it hears.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::UnixDatagram;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::wait_for;

/// The longest datagram that is understood.
const LONGEST: usize = 64 * 1024;

/// One datagram, with its lines.
#[derive(Debug, Clone)]
pub struct Heard {
    pub at: Instant,
    pub lines: Vec<String>,
}

/// The side of systemd.
#[derive(Debug)]
pub struct Systemd {
    socket: PathBuf,
    heard: Arc<Mutex<Vec<Heard>>>,
    _listener: JoinSet<()>,
    _folder: TempDir,
}

impl Systemd {
    /// Listens on a socket of its own.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("notify");
        let listener = UnixDatagram::bind(&socket).expect("bind the socket");
        let heard = Arc::<Mutex<Vec<Heard>>>::default();
        let ears = Arc::clone(&heard);
        let mut owner = JoinSet::new();
        owner.spawn(async move {
            let mut buffer = vec![0; LONGEST];
            while let Ok(count) = listener.recv(&mut buffer).await {
                let text = String::from_utf8_lossy(&buffer[..count]);
                let lines = text.lines().map(str::to_owned).collect();
                let heard = Heard { at: Instant::now(), lines };
                ears.lock().unwrap_or_else(PoisonError::into_inner).push(heard);
            }
        });
        Self { socket, heard, _listener: owner, _folder: folder }
    }

    /// The value of `NOTIFY_SOCKET`.
    pub fn socket(&self) -> &str {
        self.socket.to_str().expect("a temporary folder is UTF-8")
    }

    /// Everything so far.
    pub fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often this line came.
    pub fn count(&self, line: &str) -> usize {
        self.heard().iter().flat_map(|heard| &heard.lines).filter(|one| *one == line).count()
    }

    /// Waits for a line.
    pub async fn until(&self, line: &str) {
        wait_for(line, async || self.count(line) > 0).await;
    }

    /// Waits until a line has come so many times more, which is how time passes here.
    pub async fn until_more(&self, times: usize, line: &str) {
        let before = self.count(line);
        wait_for(&format!("{times} more {line}"), async || self.count(line) >= before + times)
            .await;
    }

    /// Every `STATUS=` so far.
    pub fn statuses(&self) -> Vec<String> {
        let heard = self.heard();
        let lines = heard.iter().flat_map(|heard| &heard.lines);
        lines.filter_map(|line| line.strip_prefix("STATUS=")).map(str::to_owned).collect()
    }

    /// The last `STATUS=`.
    pub fn status(&self) -> String {
        self.statuses().pop().unwrap_or_default()
    }

    /// Waits until the last `STATUS=` contains all of these.
    pub async fn until_status(&self, texts: &[&str]) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !texts.iter().all(|text| self.status().contains(text)) {
            let statuses = self.statuses();
            assert!(Instant::now() < deadline, "no status with {texts:?}, only {statuses:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The longest silence between two of these lines.
    pub fn longest_gap(&self, line: &str) -> Duration {
        let heard = self.heard();
        let times: Vec<Instant> = heard
            .iter()
            .filter(|heard| heard.lines.iter().any(|one| one == line))
            .map(|heard| heard.at)
            .collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

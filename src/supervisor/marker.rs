//! Remembers over a restart whether the last process ended well.
//!
//! systemd reports a SIGKILL at the end of TimeoutStopSec as a successful stop, and the next start
//! resets the result. So the worker leaves a file in its state directory while it runs, takes it
//! away when it ends well, and says loudly at the next start if it is still there. The file is
//! locked while its process lives: two workers that share a state directory do not accuse each
//! other.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::domain::WorkerId;

const FILE: &str = "running.json";

/// The largest file that is read back, in bytes.
const MOST_BYTES: u64 = 4096;

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// The process.
    pub pid: u32,
    /// Its id in the ledger.
    pub worker: uuid::Uuid,
    /// When it started, in milliseconds since the Unix epoch.
    pub started_ms: i64,
}

/// The file of this process.
#[derive(Debug)]
pub(super) struct Marker {
    path: PathBuf,
    _locked: File,
}

impl Marker {
    /// Leaves a note in `state_dir`. Also gives the note of a predecessor that did not end well.
    pub(super) fn set(
        state_dir: &Path,
        worker: WorkerId,
        now_ms: i64,
    ) -> std::io::Result<(Self, Option<Note>)> {
        let path = state_dir.join(FILE);
        let mut file =
            OpenOptions::new().create(true).read(true).write(true).truncate(false).open(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let mut text = String::new();
        (&mut file).take(MOST_BYTES).read_to_string(&mut text)?;
        let left = (!text.is_empty()).then(|| {
            serde_json::from_str(&text).unwrap_or(Note {
                pid: 0,
                worker: uuid::Uuid::nil(),
                started_ms: 0,
            })
        });
        let note = Note { pid: std::process::id(), worker: worker.0, started_ms: now_ms };
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(serde_json::to_string(&note)?.as_bytes())?;
        file.sync_all()?;
        Ok((Self { path, _locked: file }, left))
    }

    /// The process ends well.
    pub(super) fn clear(self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("{} could not be removed: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_of_a_predecessor_that_did_not_end_well_and_only_of_that() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let worker = WorkerId::random();
        let (marker, left) = Marker::set(folder.path(), worker, 1).expect("set");
        assert_eq!(left, None);
        drop(marker);
        let (marker, left) = Marker::set(folder.path(), WorkerId::random(), 2).expect("set");
        let left = left.expect("the first one did not end well");
        assert_eq!((left.worker, left.started_ms), (worker.0, 1));
        marker.clear();
        let (_, left) = Marker::set(folder.path(), worker, 3).expect("set");
        assert_eq!(left, None);
    }

    #[test]
    fn a_living_process_is_not_accused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let first = Marker::set(folder.path(), WorkerId::random(), 1).expect("set");
        let second = Marker::set(folder.path(), WorkerId::random(), 2);
        assert_eq!(second.expect_err("locked").kind(), std::io::ErrorKind::WouldBlock);
        drop(first);
    }
}

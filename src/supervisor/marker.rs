//! Remembers over a restart whether the last process ended well, and tells others of this one.
//!
//! systemd reports a SIGKILL at the end of TimeoutStopSec as a successful stop, and the next start
//! resets the result. So the worker leaves a file in its state directory while it runs, takes it
//! away when it ends well, and says loudly at the next start if it is still there. The file is
//! locked while its process lives: two workers that share a state directory do not accuse each
//! other.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::allowance::Allowance;
use crate::clock::Clock;
use crate::domain::WorkerId;

const FILE: &str = "running.json";

/// The largest file that is read back, in bytes.
const MOST_BYTES: u64 = 4096;

/// How often the lock is tried.
const LOCK_ATTEMPTS: u32 = 4;

/// Between two attempts.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The process.
    pub pid: u32,
    /// Its id in the ledger.
    pub worker: uuid::Uuid,
    /// When it started, in milliseconds since the Unix epoch.
    pub started_ms: i64,
    /// What a drain of it may take.
    #[serde(default)]
    pub drain: Option<DrainNote>,
}

/// What a drain may take, in milliseconds: the configuration within what systemd allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainNote {
    /// For tasks to end.
    pub timeout_ms: u64,
    /// For tasks that were asked to stop.
    pub kill_after_ms: u64,
    /// For giving back.
    pub margin_ms: u64,
    /// How much longer while tasks end; 0 where that is off.
    pub extend_at_most_ms: u64,
    /// What is allowed for a stop; `None` where there is no limit or it is unknown.
    pub stop_timeout_ms: Option<u64>,
}

impl Note {
    /// What the worker with this state directory has left there, and whether it is alive.
    ///
    /// # Errors
    /// If there is such a file and it cannot be read.
    pub fn read(state_dir: &Path) -> std::io::Result<Option<(Self, bool)>> {
        let file = match File::open(state_dir.join(FILE)) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let alive = flock(&file, FlockOperation::NonBlockingLockShared).is_err();
        let mut text = String::new();
        file.take(MOST_BYTES).read_to_string(&mut text)?;
        // Empty for a moment while it is written.
        Ok(serde_json::from_str(&text).ok().map(|note| (note, alive)))
    }
}

impl From<&Allowance> for DrainNote {
    fn from(allowance: &Allowance) -> Self {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            timeout_ms: ms(allowance.parts.timeout),
            kill_after_ms: ms(allowance.parts.kill_after),
            margin_ms: ms(allowance.parts.margin),
            extend_at_most_ms: ms(allowance.extension),
            stop_timeout_ms: allowance.limit.map(ms),
        }
    }
}

/// The file of this process.
#[derive(Debug)]
pub(super) struct Marker {
    path: PathBuf,
    note: Note,
    locked: File,
}

impl Marker {
    /// Leaves the file, and tells of a predecessor that did not end well. The worker goes on without
    /// one.
    pub(super) fn leave(
        state_dir: &Path,
        worker: WorkerId,
        clock: Clock,
        allowance: &Allowance,
    ) -> Option<Self> {
        let note = Note {
            pid: std::process::id(),
            worker: worker.0,
            started_ms: clock.wall_ms(),
            drain: Some(allowance.into()),
        };
        match Self::set(state_dir, note) {
            Ok((marker, None)) => Some(marker),
            Ok((marker, Some(left))) => {
                tracing::warn!(
                    "the last process (pid {}, worker {}) ended without draining: killed, crashed, \
                     or cut off by TimeoutStopSec; its tasks are taken over when their leases end",
                    left.pid,
                    left.worker
                );
                Some(marker)
            }
            Err(error) => {
                tracing::warn!(
                    "{}: {error}; an unclean end will not be told at the next start (set \
                     worker.state_dir to a folder of this worker's own)",
                    state_dir.display()
                );
                None
            }
        }
    }

    /// Leaves a note in `state_dir`. Also gives the note of a predecessor that did not end well.
    fn set(state_dir: &Path, note: Note) -> std::io::Result<(Self, Option<Note>)> {
        let path = state_dir.join(FILE);
        let mut file =
            OpenOptions::new().create(true).read(true).write(true).truncate(false).open(&path)?;
        lock(&file)?;
        let mut text = String::new();
        (&mut file).take(MOST_BYTES).read_to_string(&mut text)?;
        let left = (!text.is_empty()).then(|| {
            serde_json::from_str(&text).unwrap_or(Note {
                pid: 0,
                worker: uuid::Uuid::nil(),
                started_ms: 0,
                drain: None,
            })
        });
        let mut marker = Self { path, note, locked: file };
        marker.write()?;
        Ok((marker, left))
    }

    /// What a drain may take has changed.
    pub(super) fn renew(&mut self, allowance: &Allowance) {
        self.note.drain = Some(allowance.into());
        if let Err(error) = self.write() {
            tracing::warn!("{} could not be written: {error}", self.path.display());
        }
    }

    fn write(&mut self) -> std::io::Result<()> {
        let file = &mut self.locked;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(serde_json::to_string(&self.note)?.as_bytes())?;
        file.sync_all()
    }

    /// The process ends well.
    pub(super) fn clear(self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("{} could not be removed: {error}", self.path.display());
        }
    }
}

/// Whoever reads the file holds its lock for a moment, too.
fn lock(file: &File) -> std::io::Result<()> {
    for _ in 1..LOCK_ATTEMPTS {
        if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(());
        }
        std::thread::sleep(BETWEEN_ATTEMPTS);
    }
    Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(started_ms: i64) -> Note {
        Note { pid: std::process::id(), worker: WorkerId::random().0, started_ms, drain: None }
    }

    #[test]
    fn tells_of_a_predecessor_that_did_not_end_well_and_only_of_that() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (marker, left) = Marker::set(folder.path(), note(1)).expect("set");
        assert_eq!(left, None);
        let first = marker.note.clone();
        drop(marker);
        let (marker, left) = Marker::set(folder.path(), note(2)).expect("set");
        assert_eq!(left, Some(first), "the first one did not end well");
        marker.clear();
        let (_, left) = Marker::set(folder.path(), note(3)).expect("set");
        assert_eq!(left, None);
    }

    #[test]
    fn a_living_process_is_not_accused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let first = Marker::set(folder.path(), note(1)).expect("set");
        let second = Marker::set(folder.path(), note(2));
        assert_eq!(second.expect_err("locked").kind(), std::io::ErrorKind::WouldBlock);
        drop(first);
    }

    #[test]
    fn others_read_what_it_says_and_whether_it_lives() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let read = || Note::read(folder.path()).expect("read");
        assert_eq!(read(), None);
        let (marker, _) = Marker::set(folder.path(), note(1)).expect("set");
        let left = marker.note.clone();
        assert_eq!(read(), Some((left.clone(), true)));
        drop(marker);
        assert_eq!(read(), Some((left, false)));
    }
}

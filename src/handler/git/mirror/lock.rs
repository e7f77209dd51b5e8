//! The lock of a mirror: shared for reading, exclusive for changing.
//!
//! It is an flock(2) on a file beside the mirror, so it ends with whoever holds it, and it is asked
//! for without blocking a thread. A second file is the turnstile: who wants to change holds it while
//! waiting for the readers, and readers pass it before they take the lock, so that a stream of readers
//! never keeps a change out. Both files are never removed.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::time::{Instant, sleep};

use super::git_mirrors::blocking;

/// The first and the longest pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// With other readers.
    Shared,
    /// Alone.
    Exclusive,
}

/// A lock that is held until this value and all that [`Held::share`] gave away are gone.
#[derive(Debug)]
pub(super) struct Held {
    file: File,
}

impl Held {
    /// Another hold on the same lock, for a child: as its standard output it keeps the lock until the
    /// child has ended too, also if this process is killed.
    pub(super) fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Runs what reads or writes files away from the runtime's threads. It keeps the lock until it has
    /// ended, also if nobody waits for it any more: what has begun cannot be called off.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let share = self.share()?;
        blocking(move || {
            let done = work();
            drop(share);
            done
        })
        .await
    }

    /// Lets others read as well; `None` if that is not possible before `until`. The kernel does not
    /// convert a lock in one step, so what was seen under the exclusive one has to be looked at again.
    pub(super) async fn shared(self, until: Instant) -> io::Result<Option<Self>> {
        Ok(wait(&self.file, Mode::Shared, until).await?.then_some(self))
    }
}

/// Takes the lock in `folder`; `None` if that is not possible before `until`.
pub(super) async fn lock(folder: &Path, mode: Mode, until: Instant) -> io::Result<Option<Held>> {
    let (turnstile, file) = (open(&folder.join("turnstile"))?, open(&folder.join("lock"))?);
    if !wait(&turnstile, mode, until).await? || !wait(&file, mode, until).await? {
        return Ok(None);
    }
    Ok(Some(Held { file }))
}

/// Takes the exclusive lock if nobody has it or wants it now.
pub(super) fn try_lock(folder: &Path) -> io::Result<Option<Held>> {
    let (turnstile, file) = (open(&folder.join("turnstile"))?, open(&folder.join("lock"))?);
    let free = attempt(&turnstile, Mode::Exclusive)? && attempt(&file, Mode::Exclusive)?;
    Ok(free.then_some(Held { file }))
}

fn open(path: &Path) -> io::Result<File> {
    // A child may have it as its output, though it has nothing to say there.
    OpenOptions::new().create(true).append(true).read(true).open(path)
}

async fn wait(file: &File, mode: Mode, until: Instant) -> io::Result<bool> {
    let mut pause = FIRST_PAUSE;
    while !attempt(file, mode)? {
        if Instant::now() >= until {
            return Ok(false);
        }
        sleep(pause.min(until - Instant::now())).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Ok(true)
}

fn attempt(file: &File, mode: Mode) -> io::Result<bool> {
    let operation = match mode {
        Mode::Shared => FlockOperation::NonBlockingLockShared,
        Mode::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[tokio::test]
    async fn readers_share_and_writers_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let first = lock(folder, Mode::Shared, soon()).await.unwrap().unwrap();
        let second = lock(folder, Mode::Shared, soon()).await.unwrap().unwrap();
        assert!(lock(folder, Mode::Exclusive, soon()).await.unwrap().is_none());
        assert!(try_lock(folder).unwrap().is_none());
        drop(first);
        let kept = second.share().unwrap();
        drop(second);
        assert!(try_lock(folder).unwrap().is_none(), "the shared hold is gone");
        drop(kept);
        let alone = try_lock(folder).unwrap().unwrap();
        assert!(lock(folder, Mode::Shared, soon()).await.unwrap().is_none());
        drop(alone);
    }

    #[tokio::test]
    async fn work_that_was_called_off_keeps_the_lock_until_it_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let held = lock(folder, Mode::Exclusive, soon()).await.unwrap().unwrap();
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let mut work = Box::pin(held.blocking(move || {
            let _ = gate.recv();
            Ok(())
        }));
        tokio::select! {
            biased;
            _ = &mut work => panic!("the gate is shut"),
            () = std::future::ready(()) => {}
        }
        drop(work);
        drop(held);
        assert!(try_lock(folder).unwrap().is_none(), "the work has not ended");
        drop(go);
        let far = Instant::now() + Duration::from_secs(30);
        assert!(lock(folder, Mode::Exclusive, far).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_writer_may_become_a_reader() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let held = lock(folder, Mode::Exclusive, soon()).await.unwrap().unwrap();
        let held = held.shared(soon()).await.unwrap().unwrap();
        let second = lock(folder, Mode::Shared, soon()).await.unwrap().unwrap();
        drop(second);
        assert!(try_lock(folder).unwrap().is_none(), "the first still reads");
        drop(held);
        assert!(try_lock(folder).unwrap().is_some());
    }

    #[tokio::test]
    async fn readers_wait_behind_a_writer_that_waits() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let far = Instant::now() + Duration::from_secs(30);
        let reader = lock(folder, Mode::Shared, far).await.unwrap().unwrap();
        let mut writer = std::pin::pin!(lock(folder, Mode::Exclusive, far));
        tokio::select! {
            biased;
            _ = &mut writer => panic!("there is a reader"),
            () = std::future::ready(()) => {}
        }
        assert!(lock(folder, Mode::Shared, soon()).await.unwrap().is_none());
        drop(reader);
        let held = writer.await.unwrap().unwrap();
        drop(held);
        assert!(lock(folder, Mode::Shared, soon()).await.unwrap().is_some());
    }
}

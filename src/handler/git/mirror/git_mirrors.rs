//! The mirrors of this node, kept by git itself.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::bring::Need;
use super::error::MirrorError;
use super::guard::Mirror;
use super::lock::{Held, Mode, lock};
use super::place::{Mark, Place};
use super::source::Source;
use super::transfer::Transfer;
use super::{Mirrors, Selection, listing, room, settings};
use crate::clock::Clock;
use crate::handler::git::oid::ObjectId;
use crate::handler::git::options::GitOptions;
use crate::handler::git::program::{Program, ProgramError};

/// A replacement that is found damaged within this time is not replaced again: then it is the source.
const REPLACED_LATELY: Duration = Duration::from_secs(24 * 3600);
/// The first round of waiting for those who read.
const FIRST_ROUND: Duration = Duration::from_millis(250);
/// Only the owner may look into the mirrors.
const PRIVATE: u32 = 0o700;

/// Keeps mirrors below one folder of a local disk, which any number of processes may share.
pub struct GitMirrors {
    pub(super) root: PathBuf,
    pub(super) transfer: Transfer,
}

impl fmt::Debug for GitMirrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GitMirrors").field(&self.root).finish()
    }
}

/// Why mirrors cannot be kept at all.
#[derive(Debug, thiserror::Error)]
pub enum MirrorsError {
    /// There is no git that can be used.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The folder for the mirrors cannot be made or written.
    #[error("the folder for mirrors {path} cannot be used: {error}; create it or give its owner")]
    Root {
        /// Which.
        path: String,
        /// Why.
        error: io::Error,
    },
}

impl GitMirrors {
    /// Looks for git, makes the folder, and removes what killed clones left there.
    pub async fn new(options: &GitOptions) -> Result<Self, MirrorsError> {
        let program = Program::detect(&options.program).await?;
        let root = options.root.clone();
        let global_config = root.join("gitconfig");
        let (folder, config, policy) =
            (root.clone(), global_config.clone(), options.sources.clone());
        let made = blocking(move || {
            use std::os::unix::fs::DirBuilderExt as _;
            fs::DirBuilder::new().recursive(true).mode(PRIVATE).create(&folder)?;
            settings::write_global(&config, &policy)?;
            room::clear_all(&folder)
        });
        made.await
            .map_err(|error| MirrorsError::Root { path: root.display().to_string(), error })?;
        let access = options.access.clone();
        let trusted = options.sources.trusted_paths.clone();
        let transfer =
            Transfer { program, access, limits: options.mirrors, global_config, trusted };
        Ok(Self { root, transfer })
    }

    async fn place(&self, source: &Source) -> Result<Place, MirrorError> {
        let (root, source) = (self.root.clone(), source.clone());
        blocking(move || Place::of(&root, &source)).await.map_err(local)
    }

    /// A mirror that meets a need: one that is there, or what is made of it under the exclusive lock.
    /// With it come commits that the source does not have, if it was not asked for all others yet.
    async fn obtain(
        &self,
        source: &Source,
        need: Need<'_>,
    ) -> Result<(Mirror, Vec<ObjectId>), MirrorError> {
        let place = self.place(source).await?;
        let patience = self.transfer.limits.lock_time;
        let deadline = Instant::now() + patience;
        let mut round = FIRST_ROUND;
        loop {
            if let Some(mirror) = self.read(&place, need, deadline).await? {
                return Ok((mirror, Vec::new()));
            }
            // Somebody may meet the need while we wait for those who read: then there is nothing to
            // wait for. The rounds grow, or a stream of readers would win each of them.
            let until = deadline.min(Instant::now() + round);
            match lock(place.folder(), Mode::Exclusive, until).await.map_err(local)? {
                Some(held) => {
                    let gone = self.bring(&place, source, need, &held).await?;
                    let mirror = self.keep(&place, held, deadline + patience).await?;
                    return Ok((mirror, gone));
                }
                None if until == deadline => return Err(busy(patience)),
                None => round *= 2,
            }
        }
    }

    /// What was brought, locked for reading. The lock is not given up, so that nobody evicts the
    /// mirror before it was of use; if somebody does between the two locks, there was no room for it.
    async fn keep(&self, place: &Place, held: Held, until: Instant) -> Result<Mirror, MirrorError> {
        let held = held.shared(until).await.map_err(local)?;
        let held = held.ok_or_else(|| busy(self.transfer.limits.lock_time))?;
        let mirror = self.look(place, Need::Commits(&[]), held).await?;
        mirror.ok_or_else(|| MirrorError::NoRoom("it was evicted at once".to_owned()))
    }

    /// The mirror locked for reading, if there is one that is whole and meets the need.
    async fn read(
        &self,
        place: &Place,
        need: Need<'_>,
        deadline: Instant,
    ) -> Result<Option<Mirror>, MirrorError> {
        let held = lock(place.folder(), Mode::Shared, deadline).await.map_err(local)?;
        let held = held.ok_or_else(|| busy(self.transfer.limits.lock_time))?;
        self.look(place, need, held).await
    }

    /// The same under a lock for reading.
    async fn look(
        &self,
        place: &Place,
        need: Need<'_>,
        held: Held,
    ) -> Result<Option<Mirror>, MirrorError> {
        let looked = place.clone();
        let mark = held.blocking(move || {
            let mark = looked.mark();
            if mark.is_some() {
                looked.touch()?;
            }
            Ok(mark)
        });
        let Some(mark) = mark.await.map_err(local)? else { return Ok(None) };
        let Some(format) = mark.format() else { return Ok(None) };
        let is_met = self.is_met(need, place, &mark, format).await?;
        Ok(is_met.then(|| Mirror::locked(place.mirror(), format, mark, held)))
    }
}

#[async_trait]
impl Mirrors for GitMirrors {
    async fn open(&self, source: &Source, wanted: &[ObjectId]) -> Result<Mirror, MirrorError> {
        let mut wanted = wanted.to_vec();
        loop {
            let (mirror, gone) = self.obtain(source, Need::Commits(&wanted)).await?;
            if gone.is_empty() {
                return Ok(mirror);
            }
            // Whoever waits for the mirror has it in between.
            drop(mirror);
            wanted.retain(|id| !gone.contains(id));
        }
    }

    async fn refresh(&self, source: &Source) -> Result<Mirror, MirrorError> {
        let need = Need::FetchedSince(Clock::System.wall_ms());
        Ok(self.obtain(source, need).await?.0)
    }

    async fn replace(&self, source: &Source, damaged: Mirror) -> Result<Mirror, MirrorError> {
        let generation = damaged.generation().to_owned();
        drop(damaged);
        Ok(self.obtain(source, Need::Another(&generation)).await?.0)
    }

    async fn list(
        &self,
        mirror: &Mirror,
        selection: &Selection,
    ) -> Result<Vec<ObjectId>, MirrorError> {
        listing::list(mirror, selection, &self.transfer.program).await
    }

    async fn resolve(&self, mirror: &Mirror, name: &str) -> Result<Option<ObjectId>, MirrorError> {
        listing::resolve(mirror, name, &self.transfer.program).await
    }

    async fn mailmap(&self, mirror: &Mirror) -> Result<Option<Vec<u8>>, MirrorError> {
        listing::mailmap(mirror, &self.transfer.program).await
    }
}

fn busy(patience: Duration) -> MirrorError {
    MirrorError::Busy(format!("others used it for {patience:?}"))
}

pub(super) fn may_replace(mark: &Mark) -> bool {
    !mark.is_replacement || mark.age() > REPLACED_LATELY
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn local(error: io::Error) -> MirrorError {
    MirrorError::Local(error.to_string())
}

/// Runs what reads or writes files away from the runtime's threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

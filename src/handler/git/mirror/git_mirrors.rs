//! The mirrors of this node, kept by git itself.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::error::MirrorError;
use super::guard::Mirror;
use super::lock::{Held, Mode, lock};
use super::place::{Mark, Place};
use super::source::Source;
use super::transfer::Transfer;
use super::{Mirrors, Selection, listing, room, settings};
use crate::handler::git::oid::ObjectId;
use crate::handler::git::options::GitOptions;
use crate::handler::git::program::{Program, ProgramError};

/// A replacement that is found damaged within this time is not replaced again: then it is the source.
const REPLACED_LATELY: Duration = Duration::from_secs(24 * 3600);
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
        let transfer = Transfer { program, access, limits: options.mirrors, global_config };
        Ok(Self { root, transfer })
    }

    async fn place(&self, source: &Source) -> Result<Place, MirrorError> {
        let (root, source) = (self.root.clone(), source.clone());
        blocking(move || Place::of(&root, &source)).await.map_err(local)
    }

    /// The mirror locked for reading, if there is one that is whole and has all that is wanted.
    async fn read(
        &self,
        place: &Place,
        wanted: &[ObjectId],
    ) -> Result<Option<Mirror>, MirrorError> {
        let held = self.lock(place, Mode::Shared).await?;
        let looked = place.clone();
        let mark = blocking(move || {
            let mark = looked.mark();
            if mark.is_some() {
                looked.touch()?;
            }
            Ok(mark)
        });
        let Some(mark) = mark.await.map_err(local)? else { return Ok(None) };
        let Some(format) = mark.format() else { return Ok(None) };
        let has_all = self.missing(&place.mirror(), format, wanted).await?.is_empty();
        Ok(has_all.then(|| Mirror::locked(place.mirror(), format, mark, held)))
    }

    pub(super) async fn lock(&self, place: &Place, mode: Mode) -> Result<Held, MirrorError> {
        let patience = self.transfer.limits.lock_time;
        let held = lock(place.folder(), mode, Instant::now() + patience).await.map_err(local)?;
        held.ok_or_else(|| MirrorError::Busy(format!("others used it for {patience:?}")))
    }
}

#[async_trait]
impl Mirrors for GitMirrors {
    async fn open(&self, source: &Source, wanted: &[ObjectId]) -> Result<Mirror, MirrorError> {
        let place = self.place(source).await?;
        if let Some(mirror) = self.read(&place, wanted).await? {
            return Ok(mirror);
        }
        self.bring(&place, source, wanted, false).await?;
        self.reopen(&place).await
    }

    async fn refresh(&self, source: &Source) -> Result<Mirror, MirrorError> {
        let place = self.place(source).await?;
        self.bring(&place, source, &[], true).await?;
        self.reopen(&place).await
    }

    async fn replace(&self, source: &Source, damaged: Mirror) -> Result<Mirror, MirrorError> {
        let place = self.place(source).await?;
        let generation = damaged.generation().to_owned();
        drop(damaged);
        let held = self.lock(&place, Mode::Exclusive).await?;
        let until = Instant::now() + self.transfer.limits.fetch_time;
        let is_replaced = match self.tidy(&place).await? {
            Some(mark) if mark.generation != generation => true,
            Some(mark) if !may_replace(&mark) => {
                let detail = "a mirror cloned anew is damaged in the same way".to_owned();
                return Err(MirrorError::Corrupt(detail));
            }
            Some(_) | None => false,
        };
        if !is_replaced {
            tracing::warn!(source = source.name(), "damaged mirror, cloned anew");
            self.clone(&place, source, &[], true, &held, until).await?;
        }
        drop(held);
        self.reopen(&place).await
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

    async fn canonical(
        &self,
        mirror: &Mirror,
        people: &[(String, String)],
    ) -> Result<Vec<(String, String)>, MirrorError> {
        listing::canonical(mirror, people, &self.transfer.program).await
    }
}

impl GitMirrors {
    /// Opens what was there a moment ago; somebody may have needed its room meanwhile.
    async fn reopen(&self, place: &Place) -> Result<Mirror, MirrorError> {
        let mirror = self.read(place, &[]).await?;
        mirror.ok_or_else(|| MirrorError::NoRoom("it was evicted at once".to_owned()))
    }
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

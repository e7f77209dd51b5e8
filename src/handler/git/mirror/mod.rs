//! Bare mirrors: one per repository and node, never a checkout.
//!
//! A mirror is a cache of a source and nothing else. It is read under a shared lock and changed under
//! an exclusive one, both on a file beside it, so that any number of workers of a node may share it.
//! The locks are those of the kernel (flock(2)): they end with the process, and bind only this node.

mod bring;
mod error;
mod fetch_error;
mod git_mirrors;
mod guard;
mod job;
mod listing;
mod location;
mod lock;
mod owner;
mod place;
mod room;
mod settings;
mod source;
mod sweep;
mod tips;
mod transfer;
mod upkeep;

use async_trait::async_trait;

use super::oid::ObjectId;

pub use error::MirrorError;
pub use git_mirrors::{GitMirrors, MirrorsError};
pub use guard::Mirror;
pub use listing::Selection;
pub use source::{InvalidSource, Source};

/// What keeps mirrors.
#[async_trait]
pub trait Mirrors: Send + Sync + 'static {
    /// The mirror of `source`, locked for reading. It is cloned if there is none, and fetched into if
    /// one of `wanted` is missing; what is missing then, the source does not have.
    async fn open(&self, source: &Source, wanted: &[ObjectId]) -> Result<Mirror, MirrorError>;

    /// The mirror as the source is now: fetched into by this call, or by another that began after it.
    async fn refresh(&self, source: &Source) -> Result<Mirror, MirrorError>;

    /// A mirror cloned anew in place of one that was found damaged, unless somebody has done that
    /// meanwhile. Refuses with [`MirrorError::Corrupt`] when the damaged one was itself a replacement.
    async fn replace(&self, source: &Source, damaged: Mirror) -> Result<Mirror, MirrorError>;

    /// The commits of a selection, newest first.
    async fn list(
        &self,
        mirror: &Mirror,
        selection: &Selection,
    ) -> Result<Vec<ObjectId>, MirrorError>;

    /// The commit that a full id, a branch, a tag or `HEAD` stands for, if there is one.
    async fn resolve(&self, mirror: &Mirror, name: &str) -> Result<Option<ObjectId>, MirrorError>;

    /// The mailmap of the default branch, if it has one.
    async fn mailmap(&self, mirror: &Mirror) -> Result<Option<Vec<u8>>, MirrorError>;
}

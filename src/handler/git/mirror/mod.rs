//! Bare mirrors: one per repository and node, never a checkout.
//!
//! A mirror is a cache of a source and nothing else. It is read under a shared lock and changed under
//! an exclusive one, both on a file beside it, so that any number of workers of a node may share it.
//! The locks are those of the kernel (flock(2)): they end with the process, and bind only this node.

mod error;
mod source;

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::oid::{ObjectFormat, ObjectId};

pub use error::MirrorError;
pub use source::{InvalidSource, Source};

/// Bytes that are read of the list of a shallow clone's ends.
const MAX_SHALLOW: u64 = 16 * 1024 * 1024;

/// What keeps mirrors.
#[async_trait]
pub trait Mirrors: Send + Sync + 'static {
    /// The mirror of `source`, locked for reading. It is cloned if there is none, and fetched into if
    /// one of `wanted` is missing; what is missing then, the source does not have.
    async fn open(&self, source: &Source, wanted: &[ObjectId]) -> Result<Mirror, MirrorError>;

    /// The mirror as the source is now: like [`Mirrors::open`], but always fetched into.
    async fn refresh(&self, source: &Source) -> Result<Mirror, MirrorError>;

    /// A mirror cloned anew in place of one that was found damaged, unless somebody has done that
    /// meanwhile. Refuses with [`MirrorError::Corrupt`] when the damaged one was itself a replacement.
    async fn replace(&self, source: &Source, damaged: Mirror) -> Result<Mirror, MirrorError>;
}

/// A mirror that may be read as long as this value lives.
#[derive(Debug)]
pub struct Mirror {
    git_dir: PathBuf,
    format: ObjectFormat,
    generation: String,
}

impl Mirror {
    /// A repository that nobody changes meanwhile, read without a lock: `git_dir` is bare, or the
    /// `.git` of a work tree.
    pub fn unlocked(git_dir: impl Into<PathBuf>, format: ObjectFormat) -> Self {
        Self { git_dir: git_dir.into(), format, generation: String::new() }
    }

    /// Its directory, for `--git-dir`.
    pub fn git_dir(&self) -> &Path {
        &self.git_dir
    }

    /// How its objects are named.
    pub fn format(&self) -> ObjectFormat {
        self.format
    }

    /// The commits at which the source, a shallow clone, ends; empty for a whole one.
    pub(super) fn boundary(&self) -> HashSet<ObjectId> {
        let Ok(shallow) = std::fs::File::open(self.git_dir.join("shallow")) else {
            return HashSet::new();
        };
        let mut lines = Vec::new();
        let _ = shallow.take(MAX_SHALLOW).read_to_end(&mut lines);
        lines.split(|byte| *byte == b'\n').filter_map(ObjectId::from_hex).collect()
    }

    /// A name that no other clone has, also not a later one of the same source.
    pub fn generation(&self) -> &str {
        &self.generation
    }
}

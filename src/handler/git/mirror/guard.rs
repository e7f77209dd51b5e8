//! A mirror that may be read.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::lock::Held;
use super::place::Mark;
use super::transfer::PINS;
use crate::handler::git::oid::{ObjectFormat, ObjectId};

/// Bytes that are read of the list of a shallow clone's ends.
const MAX_SHALLOW: u64 = 16 * 1024 * 1024;

/// A mirror that may be read as long as this value lives: until then it is neither changed nor removed.
#[derive(Debug)]
pub struct Mirror {
    git_dir: PathBuf,
    format: ObjectFormat,
    generation: String,
    _lock: Option<Held>,
}

impl Mirror {
    /// A repository that nobody changes meanwhile, read without a lock: `git_dir` is bare, or the
    /// `.git` of a work tree.
    pub fn unlocked(git_dir: impl Into<PathBuf>, format: ObjectFormat) -> Self {
        Self { git_dir: git_dir.into(), format, generation: String::new(), _lock: None }
    }

    pub(super) fn locked(git_dir: PathBuf, format: ObjectFormat, mark: Mark, lock: Held) -> Self {
        Self { git_dir, format, generation: mark.generation, _lock: Some(lock) }
    }

    /// Its directory, for `--git-dir`.
    pub fn git_dir(&self) -> &Path {
        &self.git_dir
    }

    /// How its objects are named.
    pub fn format(&self) -> ObjectFormat {
        self.format
    }

    /// A name that no other clone has, also not a later one of the same source; empty for a
    /// repository that is no mirror.
    pub fn generation(&self) -> &str {
        &self.generation
    }

    /// The commits at which the source, a shallow clone, ends; empty for a whole one.
    pub(in crate::handler::git) fn boundary(&self) -> HashSet<ObjectId> {
        let Ok(shallow) = fs::File::open(self.git_dir.join("shallow")) else {
            return HashSet::new();
        };
        let mut lines = Vec::new();
        let _ = shallow.take(MAX_SHALLOW).read_to_end(&mut lines);
        lines.split(|byte| *byte == b'\n').filter_map(ObjectId::from_hex).collect()
    }

    /// Keeps commits that the mirror has, and what they reach, although the source may let go of them.
    ///
    /// Pin the tips of what is queued, not each commit: every pin is a ref. A pin ends with
    /// [`Mirror::unpin`] or after [`MirrorLimits::pin_time`](crate::handler::git::MirrorLimits::pin_time).
    pub fn pin(&self, commits: &[ObjectId]) -> io::Result<()> {
        let folder = self.git_dir.join(PINS);
        fs::create_dir_all(&folder)?;
        for id in commits {
            // As git itself stores a ref; renaming needs no lock among those who read.
            let new = self.git_dir.join(format!("pin-{}.lock", Uuid::new_v4().simple()));
            fs::write(&new, format!("{id}\n"))?;
            fs::rename(&new, folder.join(id.to_string()))?;
        }
        Ok(())
    }

    /// Ends pins; those that are none are passed over.
    pub fn unpin(&self, commits: &[ObjectId]) -> io::Result<()> {
        for id in commits {
            match fs::remove_file(self.git_dir.join(PINS).join(id.to_string())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

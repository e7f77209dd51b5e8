//! Where a mirror lies, and the mark that says that it is whole.
//!
//! A folder per source holds the mirror, its locks, and what is being made or thrown away. A mirror
//! is made under another name and gets its mark last, so what lies under its own name with a mark is
//! complete, whatever was killed meanwhile.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::source::Source;
use crate::clock::Clock;
use crate::handler::git::oid::ObjectFormat;

/// The mirror's name in its folder.
const MIRROR: &str = "mirror.git";
/// What the names of unfinished mirrors and of those to be removed begin with.
const UNFINISHED: &str = "new-";
const DISCARDED: &str = "old-";
/// The mark in a mirror.
const MARK: &str = "queue-worker.json";
/// Bytes of the longest mark.
const MAX_MARK: u64 = 64 * 1024;
/// Its modification time is when the mirror was last used.
const USED: &str = "used";
/// Holds when the last fetch that succeeded had begun.
const FETCHED: &str = "fetched";
/// Holds the mirror's size in bytes.
const SIZE: &str = "size";

/// What a mirror says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// Different for each clone.
    pub(super) generation: String,
    /// `sha1` or `sha256`.
    pub(super) format: String,
    /// When it was cloned, in milliseconds since the Unix epoch.
    pub(super) cloned_ms: i64,
    /// It was cloned in place of a damaged one.
    pub(super) is_replacement: bool,
}

impl Mark {
    pub(super) fn new(format: ObjectFormat, is_replacement: bool) -> Self {
        Self {
            generation: Uuid::new_v4().to_string(),
            format: format.as_str().to_owned(),
            cloned_ms: Clock::System.wall_ms(),
            is_replacement,
        }
    }

    pub(super) fn format(&self) -> Option<ObjectFormat> {
        [ObjectFormat::Sha1, ObjectFormat::Sha256].into_iter().find(|it| it.as_str() == self.format)
    }

    /// How long ago it was cloned, as far as clocks tell.
    pub(super) fn age(&self) -> Duration {
        let age = Clock::System.wall_ms().saturating_sub(self.cloned_ms);
        Duration::from_millis(u64::try_from(age).unwrap_or(0))
    }
}

/// The folder of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    folder: PathBuf,
}

impl Place {
    /// The folder of a source; made if it is not there.
    pub(super) fn of(root: &Path, source: &Source) -> io::Result<Self> {
        let folder = root.join(source.key());
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// All folders below `root`.
    pub(super) fn all(root: &Path) -> io::Result<Vec<Self>> {
        let mut places = Vec::new();
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                places.push(Self { folder: entry.path() });
            }
        }
        Ok(places)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn mirror(&self) -> PathBuf {
        self.folder.join(MIRROR)
    }

    /// A path for a mirror that is being made.
    pub(super) fn unfinished(&self) -> PathBuf {
        self.folder.join(format!("{UNFINISHED}{}.git", Uuid::new_v4().simple()))
    }

    /// The mark of the mirror; `None` if there is no whole mirror.
    pub(super) fn mark(&self) -> Option<Mark> {
        let mut text = Vec::new();
        let file = File::open(self.mirror().join(MARK)).ok()?;
        file.take(MAX_MARK).read_to_end(&mut text).ok()?;
        serde_json::from_slice::<Mark>(&text).ok().filter(|mark| mark.format().is_some())
    }

    /// Marks an unfinished mirror as whole and puts it into its place. The exclusive lock is held.
    pub(super) fn finish(&self, unfinished: &Path, mark: &Mark) -> io::Result<()> {
        let mut file = File::create(unfinished.join(MARK))?;
        file.write_all(&serde_json::to_vec(mark)?)?;
        file.sync_all()?;
        File::open(unfinished)?.sync_all()?;
        fs::rename(unfinished, self.mirror())?;
        File::open(&self.folder)?.sync_all()
    }

    /// Takes the mirror out of its place; what was taken out is removed by [`Place::clear`].
    pub(super) fn discard(&self) -> io::Result<()> {
        let to = self.folder.join(format!("{DISCARDED}{}.git", Uuid::new_v4().simple()));
        match fs::rename(self.mirror(), to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes what was never finished and what was discarded. The exclusive lock is held.
    pub(super) fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(UNFINISHED) || name.starts_with(DISCARDED) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// Notes that the mirror is used now.
    pub(super) fn touch(&self) -> io::Result<()> {
        let file = File::create(self.folder.join(USED))?;
        let now = u64::try_from(Clock::System.wall_ms()).unwrap_or(0);
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_millis(now))
    }

    /// When the mirror was last used.
    pub(super) fn used(&self) -> SystemTime {
        let used = fs::metadata(self.folder.join(USED)).and_then(|used| used.modified());
        used.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Notes when a fetch that succeeded had begun, in milliseconds since the Unix epoch.
    pub(super) fn note_fetched(&self, at: i64) -> io::Result<()> {
        fs::write(self.folder.join(FETCHED), at.to_string())
    }

    /// When the last fetch that succeeded had begun.
    pub(super) fn fetched_ms(&self) -> i64 {
        let noted = fs::read_to_string(self.folder.join(FETCHED)).ok();
        noted.and_then(|at| at.trim().parse().ok()).unwrap_or(0)
    }

    /// Measures the mirror and notes its size in bytes.
    pub(super) fn measure(&self) -> io::Result<u64> {
        let size = size_of(&self.mirror())?;
        fs::write(self.folder.join(SIZE), size.to_string())?;
        Ok(size)
    }

    /// The size that was noted last; 0 if there is no mirror.
    pub(super) fn size(&self) -> u64 {
        if !self.mirror().exists() {
            return 0;
        }
        let noted = fs::read_to_string(self.folder.join(SIZE)).ok();
        noted.and_then(|size| size.trim().parse().ok()).unwrap_or(0)
    }
}

/// Bytes of the files below a folder; one that vanishes meanwhile counts nothing.
fn size_of(folder: &Path) -> io::Result<u64> {
    let mut size = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            match entry.metadata() {
                Ok(found) if found.is_dir() => folders.push(entry.path()),
                Ok(found) => size += found.len(),
                Err(_) => {}
            }
        }
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::git::options::SourcePolicy;

    #[test]
    fn only_what_is_marked_is_whole() {
        let root = tempfile::tempdir().unwrap();
        let source = Source::new("r", "https://a/b", &SourcePolicy::default()).unwrap();
        let place = Place::of(root.path(), &source).unwrap();
        assert_eq!(place.mark(), None);
        let unfinished = place.unfinished();
        fs::create_dir(&unfinished).unwrap();
        fs::write(unfinished.join("x"), "12345").unwrap();
        let mark = Mark::new(ObjectFormat::Sha256, false);
        place.finish(&unfinished, &mark).unwrap();
        assert_eq!(place.mark(), Some(mark));
        assert!(place.measure().unwrap() > 5 && place.size() > 5);
        fs::create_dir(place.unfinished()).unwrap();
        place.discard().unwrap();
        place.discard().unwrap();
        place.clear().unwrap();
        place.touch().unwrap();
        assert!(place.used() > SystemTime::UNIX_EPOCH);
        let left: Vec<_> =
            fs::read_dir(place.folder()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!((place.size(), left.len()), (0, 2), "{left:?}");
        assert_eq!(Place::all(root.path()).unwrap(), [place]);
    }
}

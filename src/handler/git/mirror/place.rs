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

use super::source::{MAX_SHOWN, Source};
use crate::clock::Clock;
use crate::handler::git::oid::ObjectFormat;

/// The mirror's name in its folder.
const MIRROR: &str = "mirror.git";
/// What the names of unfinished mirrors and of those to be removed begin with; a UUID in hexadecimal
/// digits and [`END`] follow.
const UNFINISHED: &str = "new-";
const DISCARDED: &str = "old-";
const END: &str = ".git";
const UUID_DIGITS: usize = 32;
/// Hexadecimal digits at the end of [`Source::key`].
const KEY_DIGITS: usize = 24;
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

    /// All folders of sources below `root`. Whatever else is there is none of ours.
    pub(super) fn all(root: &Path) -> io::Result<Vec<Self>> {
        let mut places = Vec::new();
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            // A link to a folder is no folder.
            if entry.file_type()?.is_dir() && entry.file_name().to_str().is_some_and(is_key) {
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
        self.folder.join(format!("{UNFINISHED}{}{END}", Uuid::new_v4().simple()))
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
        // Never used, it would count as the one used longest ago.
        self.touch()?;
        fs::rename(unfinished, self.mirror())?;
        File::open(&self.folder)?.sync_all()
    }

    /// Takes the mirror out of its place; what was taken out is removed by [`Place::clear`].
    pub(super) fn discard(&self) -> io::Result<()> {
        let to = self.folder.join(format!("{DISCARDED}{}{END}", Uuid::new_v4().simple()));
        match fs::rename(self.mirror(), to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes what was never finished and what was discarded. The exclusive lock is held.
    pub(super) fn clear(&self) -> io::Result<()> {
        for folder in self.temporary()? {
            fs::remove_dir_all(folder)?;
        }
        Ok(())
    }

    /// What is being made or thrown away here.
    fn temporary(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let is_ours = entry.file_name().to_str().is_some_and(is_temporary);
            if is_ours && entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        Ok(found)
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

    /// The size of the mirror as it was noted last; 0 if there is none.
    pub(super) fn size(&self) -> u64 {
        if !self.mirror().exists() {
            return 0;
        }
        let noted = fs::read_to_string(self.folder.join(SIZE)).ok();
        let noted = noted.and_then(|size| size.trim().parse().ok());
        // A worker that was killed has noted nothing.
        noted.unwrap_or_else(|| size_of(&self.mirror()).unwrap_or(0))
    }

    /// Bytes on the disk: the size of the mirror, and of what is being made or thrown away beside it.
    pub(super) fn taken(&self) -> u64 {
        let temporary = self.temporary().unwrap_or_default();
        let temporary = temporary.iter().map(|folder| size_of(folder).unwrap_or(0));
        temporary.fold(self.size(), u64::saturating_add)
    }
}

/// Whether a name has the form of [`Source::key`].
fn is_key(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.rsplit_once('-').is_some_and(|(shown, digits)| {
        shown.len() <= MAX_SHOWN
            && shown.trim_matches('-') == shown
            && shown.chars().all(is_plain)
            && is_hex(digits, KEY_DIGITS)
    })
}

/// Whether a name has the form of an unfinished or a discarded mirror's.
fn is_temporary(name: &str) -> bool {
    let rest = name.strip_prefix(UNFINISHED).or_else(|| name.strip_prefix(DISCARDED));
    rest.and_then(|rest| rest.strip_suffix(END)).is_some_and(|uuid| is_hex(uuid, UUID_DIGITS))
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
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
        assert!(place.used() > SystemTime::UNIX_EPOCH);
        assert!(place.size() > 5, "nobody has noted it");
        assert!(place.measure().unwrap() > 5 && place.size() > 5);
        fs::create_dir(place.unfinished()).unwrap();
        fs::write(place.unfinished().with_extension("x"), "no folder of ours").unwrap();
        let other = place.unfinished();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("half"), vec![0; 1000]).unwrap();
        assert_eq!(place.taken(), place.size() + 1000);
        place.discard().unwrap();
        place.discard().unwrap();
        place.clear().unwrap();
        let left: Vec<_> =
            fs::read_dir(place.folder()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!((place.taken(), left.len()), (0, 3), "{left:?}");
        assert_eq!(Place::all(root.path()).unwrap(), [place]);
    }

    #[test]
    fn names_are_told_from_lookalikes() {
        let digits = "0123456789abcdef01234567";
        for name in ["redis/Redis", "../..", "-", "äöü", "a--b", &"x".repeat(99)] {
            let source = Source::new(name, "https://a/b", &SourcePolicy::default()).unwrap();
            assert!(is_key(&source.key()), "{}", source.key());
        }
        for name in [
            "alice".to_owned(),
            digits.to_owned(),
            format!("Alice-{digits}"),
            format!("al ice-{digits}"),
            format!("alice-{digits}0"),
            format!("alice-{}", &digits[1..]),
            format!("alice-{}", digits.to_uppercase()),
            format!("alice_{digits}"),
            format!("alice--{digits}"),
            format!("{}-{digits}", "x".repeat(MAX_SHOWN + 1)),
        ] {
            assert!(!is_key(&name), "{name}");
        }
        let uuid = Uuid::new_v4().simple();
        assert!(
            is_temporary(&format!("new-{uuid}.git")) && is_temporary(&format!("old-{uuid}.git"))
        );
        for name in [
            "old-photos".to_owned(),
            "new-1.git".to_owned(),
            format!("old-{uuid}"),
            format!("old-{uuid}.git2"),
            format!("older-{uuid}.git"),
            format!("old-{}.git", Uuid::new_v4()),
            format!("old-{}.git", uuid.to_string().to_uppercase()),
        ] {
            assert!(!is_temporary(&name), "{name}");
        }
    }
}

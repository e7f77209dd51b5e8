//! One changed path of a commit, compared with its first parent.
//!
//! A change is known by its place in git's list, not by its path: a tree in the wild may hold the
//! same name twice.

use std::fmt::Write as _;

use super::class::FileClass;
use super::oid::ObjectId;

/// One changed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Its place in git's list, counted from 0.
    pub ord: u32,
    /// The path's bytes; the new one of a rename, the old one of a deletion.
    pub path: Vec<u8>,
    /// The former path of a rename or a copy.
    pub old_path: Option<Vec<u8>>,
    /// What happened.
    pub status: Status,
    /// How much of a renamed or copied file stayed, in percent.
    pub similarity: Option<u8>,
    /// The mode before, 0 where there was no file; as git writes it, octal 100644.
    pub old_mode: u32,
    /// The mode after, 0 where there is no file.
    pub new_mode: u32,
    /// The object before; a submodule's commit for a gitlink.
    pub old_oid: Option<ObjectId>,
    /// The object after.
    pub new_oid: Option<ObjectId>,
    /// What kind of content it is.
    pub kind: FileKind,
    /// Lines added, as `git diff --numstat` counts; `None` for what has no lines (binary) or was not
    /// counted, never 0 for these.
    pub added: Option<u64>,
    /// Lines deleted; `None` as above.
    pub deleted: Option<u64>,
    /// Bytes of the blob before; `None` where there is none, and for gitlinks.
    pub old_size: Option<u64>,
    /// Bytes of the blob after.
    pub new_size: Option<u64>,
    /// What the path says about the file's purpose.
    pub class: FileClass,
}

impl FileChange {
    /// The mode changed between two versions of one file, be it the executable bit or the type.
    pub fn is_mode_change(&self) -> bool {
        self.old_mode != 0 && self.new_mode != 0 && self.old_mode != self.new_mode
    }

    /// About how many bytes of memory it takes, its paths included.
    pub(super) fn weight(&self) -> usize {
        size_of_val(self) + self.path.len() + self.old_path.as_ref().map_or(0, Vec::len)
    }
}

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// It is new.
    Added,
    /// Content or mode changed.
    Modified,
    /// It is gone.
    Deleted,
    /// It came from another path.
    Renamed,
    /// It was copied from another path; the profile does not look for copies.
    Copied,
    /// A file became a symbolic link or a gitlink, or the other way around.
    TypeChanged,
}

impl Status {
    /// The letter that git uses: `A`, `M`, `D`, `R`, `C` or `T`.
    pub const fn letter(self) -> char {
        match self {
            Self::Added => 'A',
            Self::Modified => 'M',
            Self::Deleted => 'D',
            Self::Renamed => 'R',
            Self::Copied => 'C',
            Self::TypeChanged => 'T',
        }
    }

    /// The status of a letter.
    pub const fn from_letter(letter: u8) -> Option<Self> {
        Some(match letter {
            b'A' => Self::Added,
            b'M' => Self::Modified,
            b'D' => Self::Deleted,
            b'R' => Self::Renamed,
            b'C' => Self::Copied,
            b'T' => Self::TypeChanged,
            _ => return None,
        })
    }
}

/// What kind of content a changed path has; of a deleted one, had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Lines, as git sees it. Only these count in [`Totals::added`](super::Totals::added).
    Text,
    /// What git holds for binary.
    Binary,
    /// A symbolic link; its lines are those of the target's name.
    Symlink,
    /// A submodule's commit; its lines are those of git's one-line note.
    Gitlink,
    /// A pointer of Git LFS; its lines are those of the pointer.
    Lfs,
    /// A blob that was not looked into: larger than the profile allows, or part of a commit whose
    /// lines could not be counted.
    Unread,
}

impl FileKind {
    /// Its name in results: `text`, `binary`, `symlink`, `gitlink`, `lfs` or `unread`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Binary => "binary",
            Self::Symlink => "symlink",
            Self::Gitlink => "gitlink",
            Self::Lfs => "lfs",
            Self::Unread => "unread",
        }
    }
}

/// A path as text: UTF-8 where it is, every other byte as `\xNN`, and NUL as U+2400.
pub fn path_text(path: &[u8]) -> String {
    // Writing to a String cannot fail.
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.extend(chunk.valid().chars().map(|c| if c == '\0' { '\u{2400}' } else { c }));
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shown() {
        assert_eq!(path_text(b"caf\xe9/\xf0\x9f\x92\xa9\0"), "caf\\xe9/\u{1f4a9}\u{2400}");
        assert_eq!(path_text(b"new\nline"), "new\nline");
    }

    #[test]
    fn letters_come_back() {
        for letter in *b"AMDRCT" {
            let status = Status::from_letter(letter).unwrap();
            assert_eq!(status.letter(), char::from(letter));
        }
        assert_eq!(Status::from_letter(b'U'), None);
    }
}

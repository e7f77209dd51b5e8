//! What one analysed commit is: its header, its message, and what it changed.
//!
//! An analysis is a pure function of the commit, its first parent and the
//! [`Profile`](super::Profile): neither HEAD nor attributes, configuration, replacement refs or the
//! state of the mirror change it. Bytes that are no text stay bytes.

use super::change::{FileChange, FileKind, Status};
use super::class::FileClass;
use super::flags::Flags;
use super::identity::Identity;
use super::oid::ObjectId;

/// Everything that is kept of one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Analysis {
    /// The commit.
    pub id: ObjectId,
    /// Its tree.
    pub tree: ObjectId,
    /// Its parents in their order; a duplicate stays.
    pub parents: Vec<ObjectId>,
    /// Who wrote it, and when.
    pub author: Identity,
    /// Who committed it, and when.
    pub committer: Identity,
    /// The `encoding` header, where there is one.
    pub encoding: Option<String>,
    /// The message.
    pub message: Message,
    /// What it is signed with; signatures are never verified.
    pub signature: SignatureKind,
    /// It carries the signed tags of what it merged.
    pub has_mergetag: bool,
    /// Headers that are none of git's usual ones, in their order.
    pub extra_headers: Vec<ExtraHeader>,
    /// The trailers of the message, in their order.
    pub trailers: Vec<Trailer>,
    /// What differs from the first parent, or from nothing for a root commit, in git's order.
    pub changes: Vec<FileChange>,
    /// For merges: how many paths differ from every parent, a sign of edits made while merging.
    /// `None` where it was not counted.
    pub merge_extra_files: Option<u32>,
    /// Sums over [`Analysis::changes`].
    pub totals: Totals,
    /// What is unusual about it.
    pub flags: Flags,
}

impl Analysis {
    /// What kind of commit it is by the number of its parents.
    pub fn kind(&self) -> CommitKind {
        match self.parents.len() {
            0 => CommitKind::Root,
            1 => CommitKind::Normal,
            2 => CommitKind::Merge,
            _ => CommitKind::Octopus,
        }
    }

    /// About how many bytes of memory it takes, with all that it points to: what bounds how many wait.
    pub fn weight(&self) -> usize {
        let people = self.author.weight() + self.committer.weight();
        let message = &self.message;
        let raw = message.raw.as_ref().map_or(0, Vec::len);
        let headers = self.extra_headers.iter();
        let headers: usize =
            headers.map(|it| size_of_val(it) + it.key.len() + it.value.len()).sum();
        let trailers: usize = self.trailers.iter().map(Trailer::weight).sum();
        let changes: usize = self.changes.iter().map(FileChange::weight).sum();
        size_of_val(self)
            + size_of_val(&*self.parents)
            + people
            + message.subject.len()
            + message.body.len()
            + raw
            + headers
            + trailers
            + changes
    }
}

/// A commit by the number of its parents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommitKind {
    /// None.
    Root,
    /// One.
    Normal,
    /// Two.
    Merge,
    /// More.
    Octopus,
}

impl CommitKind {
    /// Its name in results: `root`, `normal`, `merge` or `octopus`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Normal => "normal",
            Self::Merge => "merge",
            Self::Octopus => "octopus",
        }
    }
}

/// A commit's message, decoded; NUL is shown as U+2400.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The first paragraph in one line.
    pub subject: String,
    /// What follows it, cut at [`Message::MAX_BODY`] bytes.
    pub body: String,
    /// Bytes of the whole message as it is stored.
    pub bytes: u64,
    /// The stored bytes, cut at the same length, if the text does not stand for them exactly.
    pub raw: Option<Vec<u8>>,
}

impl Message {
    /// Bytes that are kept of a body, and of a subject.
    pub const MAX_BODY: usize = 64 * 1024;
}

/// By whose armour a signature is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SignatureKind {
    /// There is no signature.
    #[default]
    None,
    /// OpenPGP.
    Pgp,
    /// SSH.
    Ssh,
    /// X.509.
    X509,
    /// A signature that begins like none of these.
    Other,
}

impl SignatureKind {
    /// Its name in results: `none`, `pgp`, `ssh`, `x509` or `other`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Pgp => "pgp",
            Self::Ssh => "ssh",
            Self::X509 => "x509",
            Self::Other => "other",
        }
    }
}

/// A header that git's usual commits do not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraHeader {
    /// Its name, decoded.
    pub key: String,
    /// Its value, decoded, its lines separated by newlines.
    pub value: String,
}

/// One trailer: `Signed-off-by: A U Thor <a@example.com>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trailer {
    /// What stands before the colon, as written; keys compare without case.
    pub key: String,
    /// The value, its continuation lines joined by blanks.
    pub value: String,
    /// The name, if the value has the form `name <address>`.
    pub name: Option<String>,
    /// The address likewise.
    pub email: Option<String>,
}

impl Trailer {
    fn weight(&self) -> usize {
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let said = self.key.len() + self.value.len();
        size_of_val(self) + said + optional(&self.name) + optional(&self.email)
    }
}

/// Sums over a commit's changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Changed paths.
    pub files: u32,
    /// Lines added in text files: no links, no submodules, no LFS pointers.
    pub added: u64,
    /// Lines deleted likewise.
    pub deleted: u64,
    /// Lines added as `git show --shortstat` sums them, with links, submodules and pointers.
    pub numstat_added: u64,
    /// Lines deleted likewise.
    pub numstat_deleted: u64,
    /// Binary files.
    pub binary: u32,
    /// Symbolic links.
    pub symlinks: u32,
    /// Submodules.
    pub gitlinks: u32,
    /// LFS pointers.
    pub lfs: u32,
    /// Renames.
    pub renames: u32,
    /// Paths whose mode or type changed.
    pub mode_changes: u32,
    /// Lines added in text files by [`FileClass::index`].
    pub added_by_class: [u64; FileClass::ALL.len()],
    /// Lines deleted likewise.
    pub deleted_by_class: [u64; FileClass::ALL.len()],
}

impl Totals {
    /// The sums over `changes`.
    pub fn of(changes: &[FileChange]) -> Self {
        let mut totals = Self::default();
        for change in changes {
            totals.add(change);
        }
        totals
    }

    fn add(&mut self, change: &FileChange) {
        let (added, deleted) = (change.added.unwrap_or(0), change.deleted.unwrap_or(0));
        self.files = self.files.saturating_add(1);
        self.numstat_added = self.numstat_added.saturating_add(added);
        self.numstat_deleted = self.numstat_deleted.saturating_add(deleted);
        self.renames += u32::from(change.status == Status::Renamed);
        self.mode_changes += u32::from(change.is_mode_change());
        match change.kind {
            FileKind::Text => {
                self.added = self.added.saturating_add(added);
                self.deleted = self.deleted.saturating_add(deleted);
                let class = change.class.index();
                self.added_by_class[class] = self.added_by_class[class].saturating_add(added);
                self.deleted_by_class[class] = self.deleted_by_class[class].saturating_add(deleted);
            }
            FileKind::Binary => self.binary += 1,
            FileKind::Symlink => self.symlinks += 1,
            FileKind::Gitlink => self.gitlinks += 1,
            FileKind::Lfs => self.lfs += 1,
            FileKind::Unread => {}
        }
    }

    /// Lines added in text files of a class.
    pub fn added_in(&self, class: FileClass) -> u64 {
        self.added_by_class[class.index()]
    }

    /// Lines deleted in text files of a class.
    pub fn deleted_in(&self, class: FileClass) -> u64 {
        self.deleted_by_class[class.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: FileKind, added: Option<u64>, class: FileClass) -> FileChange {
        FileChange {
            ord: 0,
            path: b"x".to_vec(),
            old_path: None,
            status: Status::Modified,
            similarity: None,
            old_mode: 0o100_644,
            new_mode: 0o100_755,
            old_oid: None,
            new_oid: None,
            kind,
            added,
            deleted: added,
            old_size: None,
            new_size: None,
            class,
        }
    }

    #[test]
    fn only_text_counts() {
        let totals = Totals::of(&[
            change(FileKind::Text, Some(3), FileClass::Code),
            change(FileKind::Text, Some(2), FileClass::Test),
            change(FileKind::Binary, None, FileClass::Data),
            change(FileKind::Gitlink, Some(1), FileClass::Code),
            change(FileKind::Unread, None, FileClass::Code),
        ]);
        assert_eq!((totals.files, totals.added, totals.deleted), (5, 5, 5));
        assert_eq!((totals.numstat_added, totals.binary, totals.gitlinks), (6, 1, 1));
        assert_eq!(totals.added_in(FileClass::Code), 3);
        assert_eq!(totals.deleted_in(FileClass::Test), 2);
        assert_eq!(totals.mode_changes, 5);
    }

    /// What a monster may hold is in its weight, and an ordinary commit is light.
    #[test]
    fn a_commit_weighs_what_it_holds() {
        let id = ObjectId::from_bytes(&[1; 20]).unwrap();
        let identity = Identity { raw: vec![b'x'; 10], ..Identity::default() };
        let light = Analysis {
            id,
            tree: id,
            parents: vec![id],
            author: identity.clone(),
            committer: identity,
            encoding: None,
            message: Message::default(),
            signature: SignatureKind::None,
            has_mergetag: false,
            extra_headers: Vec::new(),
            trailers: Vec::new(),
            changes: vec![change(FileKind::Text, Some(1), FileClass::Code)],
            merge_extra_files: None,
            totals: Totals::default(),
            flags: Flags::empty(),
        };
        assert!(light.weight() < 2048, "{}", light.weight());
        let mut heavy = light.clone();
        heavy.changes = (0..1000).map(|_| light.changes[0].clone()).collect();
        let path = FileChange { path: vec![b'p'; 4096], ..light.changes[0].clone() };
        heavy.changes.push(path);
        heavy.message.body = "b".repeat(Message::MAX_BODY);
        heavy.message.raw = Some(vec![b'r'; Message::MAX_BODY]);
        let least = 1000 * size_of::<FileChange>() + 4096 + 2 * Message::MAX_BODY;
        assert!((least..least + 8192).contains(&heavy.weight()), "{}", heavy.weight());
    }

    #[test]
    fn flags_are_a_set() {
        let mut flags = Flags::empty();
        flags.set_if(true, Flags::DATE_INVALID);
        flags.set_if(false, Flags::TRUNCATED);
        assert!(flags.contains(Flags::DATE_INVALID) && !flags.contains(Flags::TRUNCATED));
        assert_eq!(Flags::from_bits(flags.bits()), flags);
        assert!((flags | Flags::MALFORMED).contains(Flags::DATE_INVALID | Flags::MALFORMED));
    }
}

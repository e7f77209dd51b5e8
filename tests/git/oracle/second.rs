//! A second engine, of another make: objects and trees are read by gitoxide, lines counted by imara-diff.
//!
//! It runs no git and shares no code with the engine that it watches. It knows no renames, no
//! configuration, no attributes and no replacement refs.

use std::path::Path;

use gix_diff::tree::recorder::Change;
use gix_diff::tree::{Recorder, State};
use gix_hash::Kind;
use gix_object::tree::{EntryKind, EntryMode};
use gix_object::{FindExt as _, TreeRefIter};
use imara_diff::{Algorithm, Diff, InternedInput};
use queue_worker::handler::git::{ObjectFormat, ObjectId};

pub(crate) const SYMLINK: u32 = 0o120_000;
pub(crate) const GITLINK: u32 = 0o160_000;
/// Git holds a blob for binary if there is a NUL among so many bytes at its start.
const LOOKED_AT: usize = 8000;

/// A file before or after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Side {
    pub(crate) mode: u32,
    pub(crate) oid: Option<ObjectId>,
}

impl Side {
    pub(crate) fn is_regular(&self) -> bool {
        matches!(self.mode, 0o100_644 | 0o100_755)
    }
}

/// A path with what it was and what it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    pub(crate) path: Vec<u8>,
    pub(crate) before: Option<Side>,
    pub(crate) after: Option<Side>,
}

/// The header of a commit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) tree: ObjectId,
    pub(crate) parents: Vec<ObjectId>,
    pub(crate) author: Vec<u8>,
    pub(crate) committer: Vec<u8>,
    pub(crate) encoding: Option<Vec<u8>>,
    pub(crate) message_bytes: u64,
}

pub(crate) struct Second {
    objects: gix_odb::Handle,
    kind: Kind,
}

impl Second {
    pub(crate) fn open(git_dir: &Path, format: ObjectFormat) -> Self {
        let kind = match format {
            ObjectFormat::Sha1 => Kind::Sha1,
            ObjectFormat::Sha256 => Kind::Sha256,
        };
        Self { objects: gix_odb::at(git_dir.join("objects"), kind).unwrap(), kind }
    }

    pub(crate) fn header(&self, commit: &ObjectId) -> Header {
        let mut buffer = Vec::new();
        let commit = self.objects.find_commit(&theirs(commit), &mut buffer).unwrap();
        Header {
            tree: ours(&commit.tree()),
            parents: commit.parents().map(|parent| ours(&parent)).collect(),
            author: commit.author.to_vec(),
            committer: commit.committer.to_vec(),
            encoding: commit.encoding.map(|encoding| encoding.to_vec()),
            message_bytes: commit.message.len() as u64,
        }
    }

    /// The paths in which two trees differ, in the order of their bytes; no tree at all is an empty one.
    pub(crate) fn changes(&self, from: Option<ObjectId>, to: ObjectId) -> Vec<Pair> {
        let (mut old, mut new) = (Vec::new(), Vec::new());
        let old = match from {
            Some(from) => self.objects.find_tree_iter(&theirs(&from), &mut old).unwrap(),
            None => TreeRefIter::from_bytes(&[], self.kind),
        };
        let new = self.objects.find_tree_iter(&theirs(&to), &mut new).unwrap();
        let mut recorder = Recorder::default();
        gix_diff::tree(old, new, State::default(), &self.objects, &mut recorder).unwrap();
        let mut pairs: Vec<Pair> = recorder.records.into_iter().filter_map(pair).collect();
        pairs.sort();
        pairs
    }

    /// The bytes that are compared; a submodule has git's note about its commit.
    pub(crate) fn content(&self, side: Option<Side>) -> Vec<u8> {
        let Some((side, oid)) = side.and_then(|side| Some((side, side.oid?))) else {
            return Vec::new();
        };
        if side.mode == GITLINK {
            return format!("Subproject commit {oid}\n").into_bytes();
        }
        let mut buffer = Vec::new();
        self.objects.find_blob(&theirs(&oid), &mut buffer).unwrap().data.to_vec()
    }
}

/// A change of a file; what happens to the trees on the way is none.
fn pair(change: Change) -> Option<Pair> {
    // The mode as git compares it: old programs stored group bits, too.
    let side = |mode: EntryMode, oid: &gix_hash::ObjectId| {
        let kind = mode.kind();
        (kind != EntryKind::Tree)
            .then(|| Side { mode: u32::from(kind as u16), oid: Some(ours(oid)) })
    };
    let (path, before, after) = match change {
        Change::Addition { entry_mode, oid, path, .. } => (path, None, side(entry_mode, &oid)),
        Change::Deletion { entry_mode, oid, path, .. } => (path, side(entry_mode, &oid), None),
        Change::Modification { previous_entry_mode, previous_oid, entry_mode, oid, path } => {
            (path, side(previous_entry_mode, &previous_oid), side(entry_mode, &oid))
        }
    };
    (before != after).then(|| Pair { path: path.into(), before, after })
}

/// Whether git would hold these bytes for binary.
pub(crate) fn is_binary(content: &[u8]) -> bool {
    content[..content.len().min(LOOKED_AT)].contains(&0)
}

/// How many lines were added and deleted. A last line without a newline is another line than with one.
pub(crate) fn lines(old: &[u8], new: &[u8]) -> (u64, u64) {
    let mut input = InternedInput::default();
    input.update_before(old.split_inclusive(|byte| *byte == b'\n'));
    input.update_after(new.split_inclusive(|byte| *byte == b'\n'));
    let diff = Diff::compute(Algorithm::Myers, &input);
    (diff.count_additions().into(), diff.count_removals().into())
}

fn ours(id: &gix_hash::ObjectId) -> ObjectId {
    ObjectId::from_bytes(id.as_bytes()).unwrap()
}

fn theirs(id: &ObjectId) -> gix_hash::ObjectId {
    gix_hash::ObjectId::from_bytes_or_panic(id.as_bytes())
}

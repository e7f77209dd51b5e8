//! Puts an analysis together from what the children said. Pure.

use std::collections::{HashMap, HashSet};

use crate::handler::git::analysis::{Analysis, Totals};
use crate::handler::git::change::{FileChange, FileKind, Status};
use crate::handler::git::class::FileClass;
use crate::handler::git::flags::Flags;
use crate::handler::git::oid::ObjectId;
use crate::handler::git::parse::changes::{Lines, RawChange};
use crate::handler::git::parse::commit::CommitObject;
use crate::handler::git::profile::Profile;

use super::differ::Depth;

/// What is known of blobs.
#[derive(Debug, Default)]
pub(super) struct Blobs {
    /// Bytes of each.
    pub(super) sizes: HashMap<ObjectId, u64>,
    /// Those that are LFS pointers.
    pub(super) pointers: HashSet<ObjectId>,
}

/// The type bits of a mode, and two of the types.
const TYPE: u32 = 0o170_000;
const SYMLINK: u32 = 0o120_000;
const GITLINK: u32 = 0o160_000;
/// Sizes between which a pointer lies; the format's specification sets the upper one.
const POINTER_SIZES: std::ops::RangeInclusive<u64> = 100..=1024;
/// Lines of a pointer; the specification allows for some more than the usual three.
const POINTER_LINES: u64 = 20;
/// How every pointer begins.
const POINTER_START: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";

/// The blobs of a change, old and new; a gitlink has none.
pub(super) fn blobs(change: &RawChange) -> impl Iterator<Item = ObjectId> {
    let old = change.old_oid.filter(|_| change.old_mode & TYPE != GITLINK);
    let new = change.new_oid.filter(|_| change.new_mode & TYPE != GITLINK);
    old.into_iter().chain(new)
}

/// The blob to look into, if the change may be that of an LFS pointer.
pub(super) fn possible_pointer(change: &RawChange, blobs: &Blobs) -> Option<ObjectId> {
    let Lines::Counted(added, deleted) = change.lines else { return None };
    let (oid, lines) = match change.new_oid {
        Some(new) => (new, added),
        None => (change.old_oid?, deleted),
    };
    let size = blobs.sizes.get(&oid)?;
    (lines <= POINTER_LINES && POINTER_SIZES.contains(size)).then_some(oid)
}

/// Whether a blob's content is that of an LFS pointer.
pub(super) fn is_pointer(content: &[u8]) -> bool {
    content.starts_with(POINTER_START)
}

/// The analysis; or the first blob of which nothing is known.
pub(super) fn assemble(
    id: ObjectId,
    commit: CommitObject,
    raw: Vec<RawChange>,
    depth: Depth,
    known: &Blobs,
    profile: &Profile,
) -> Result<Analysis, ObjectId> {
    let mut flags = commit.flags;
    flags.set_if(depth == Depth::Raw, Flags::TRUNCATED);
    flags.set_if(depth == Depth::Full && is_limited(&raw, profile), Flags::RENAME_LIMITED);
    let mut changes = Vec::with_capacity(raw.len());
    let mut paths = HashSet::with_capacity(raw.len());
    for (ord, raw) in (0_u32..).zip(raw) {
        if let Some(missing) = blobs(&raw).find(|oid| !known.sizes.contains_key(oid)) {
            return Err(missing);
        }
        flags.set_if(!paths.insert(raw.path.clone()), Flags::DUPLICATE_PATHS);
        let is_big = blobs(&raw).any(|oid| known.sizes[&oid] > profile.big_file_threshold);
        flags.set_if(is_big && raw.lines == Lines::Binary, Flags::BIG_FILES_UNREAD);
        changes.push(change(ord, raw, known, is_big));
    }
    Ok(Analysis {
        id,
        tree: commit.tree,
        parents: commit.parents,
        author: commit.author,
        committer: commit.committer,
        encoding: commit.encoding,
        message: commit.message,
        signature: commit.signature,
        has_mergetag: commit.has_mergetag,
        extra_headers: commit.extra_headers,
        trailers: commit.trailers,
        totals: Totals::of(&changes),
        changes,
        merge_extra_files: None,
        flags,
    })
}

fn change(ord: u32, raw: RawChange, known: &Blobs, is_big: bool) -> FileChange {
    let is_gitlink = |mode: u32| mode & TYPE == GITLINK;
    let size = |oid: Option<ObjectId>, mode| {
        oid.filter(|_| !is_gitlink(mode)).and_then(|oid| known.sizes.get(&oid).copied())
    };
    let (added, deleted) = match raw.lines {
        Lines::Counted(added, deleted) => (Some(added), Some(deleted)),
        Lines::Binary | Lines::Unknown => (None, None),
    };
    FileChange {
        ord,
        class: FileClass::of(&raw.path),
        kind: kind(&raw, known, is_big),
        old_size: size(raw.old_oid, raw.old_mode),
        new_size: size(raw.new_oid, raw.new_mode),
        path: raw.path,
        old_path: raw.old_path,
        status: raw.status,
        similarity: raw.similarity,
        old_mode: raw.old_mode,
        new_mode: raw.new_mode,
        old_oid: raw.old_oid,
        new_oid: raw.new_oid,
        added,
        deleted,
    }
}

/// The kind of what is there now, or of what was there if nothing is.
fn kind(raw: &RawChange, known: &Blobs, is_big: bool) -> FileKind {
    let (mode, oid) = match raw.new_oid {
        Some(new) => (raw.new_mode, Some(new)),
        None => (raw.old_mode, raw.old_oid),
    };
    match (mode & TYPE, raw.lines) {
        (GITLINK, _) => FileKind::Gitlink,
        (SYMLINK, _) => FileKind::Symlink,
        (_, Lines::Unknown) => FileKind::Unread,
        (_, Lines::Binary) if is_big => FileKind::Unread,
        (_, Lines::Binary) => FileKind::Binary,
        (_, Lines::Counted(..)) if oid.is_some_and(|oid| known.pointers.contains(&oid)) => {
            FileKind::Lfs
        }
        (_, Lines::Counted(..)) => FileKind::Text,
    }
}

/// Git compares every deletion with every addition that is left after the exact renames, unless these
/// are more pairs than the square of the limit. Then they are all still there.
fn is_limited(raw: &[RawChange], profile: &Profile) -> bool {
    let count = |status| raw.iter().filter(|change| change.status == status).count() as u64;
    let limit = u64::from(profile.rename_limit);
    count(Status::Added).saturating_mul(count(Status::Deleted)) > limit * limit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::git::oid::ObjectFormat;
    use crate::handler::git::parse::commit::commit;
    use crate::handler::git::version::GitVersion;

    fn oid(digit: char) -> ObjectId {
        digit.to_string().repeat(40).parse().unwrap()
    }

    fn raw(status: Status, mode: u32, lines: Lines) -> RawChange {
        RawChange {
            old_mode: if status == Status::Added { 0 } else { mode },
            new_mode: if status == Status::Deleted { 0 } else { mode },
            old_oid: (status != Status::Added).then(|| oid('1')),
            new_oid: (status != Status::Deleted).then(|| oid('2')),
            status,
            similarity: None,
            path: b"a.rs".to_vec(),
            old_path: None,
            lines,
        }
    }

    fn known() -> Blobs {
        let sizes = [(oid('1'), 130), (oid('2'), 17 << 20)].into();
        Blobs { sizes, pointers: HashSet::new() }
    }

    fn analysis(raw: Vec<RawChange>, depth: Depth, known: &Blobs) -> Result<Analysis, ObjectId> {
        let object = format!("tree {}\n\n", oid('4'));
        let object = commit(object.as_bytes(), 0, ObjectFormat::Sha1).unwrap();
        let profile = Profile { rename_limit: 1, ..Profile::new(GitVersion::MINIMUM) };
        assemble(oid('3'), object, raw, depth, known, &profile)
    }

    #[test]
    fn kinds_follow_mode_and_content() {
        let kind =
            |raw, known: &Blobs| analysis(vec![raw], Depth::Full, known).unwrap().changes[0].kind;
        let counted = Lines::Counted(3, 3);
        let with_pointer = Blobs { pointers: [oid('1')].into(), ..known() };
        assert_eq!(
            kind(raw(Status::Modified, 0o160_000, counted), &Blobs::default()),
            FileKind::Gitlink
        );
        assert_eq!(kind(raw(Status::Modified, 0o120_000, counted), &known()), FileKind::Symlink);
        assert_eq!(kind(raw(Status::Deleted, 0o100_644, counted), &known()), FileKind::Text);
        assert_eq!(kind(raw(Status::Deleted, 0o100_644, counted), &with_pointer), FileKind::Lfs);
        assert_eq!(
            kind(raw(Status::Deleted, 0o100_644, Lines::Binary), &known()),
            FileKind::Binary
        );
        assert_eq!(
            kind(raw(Status::Modified, 0o100_644, Lines::Binary), &known()),
            FileKind::Unread
        );
        assert_eq!(
            kind(raw(Status::Modified, 0o100_644, Lines::Unknown), &known()),
            FileKind::Unread
        );
    }

    #[test]
    fn pointers_are_looked_for_where_they_may_be() {
        let deleted = raw(Status::Deleted, 0o100_644, Lines::Counted(0, 3));
        assert_eq!(possible_pointer(&deleted, &known()), Some(oid('1')));
        let long = raw(Status::Deleted, 0o100_644, Lines::Counted(0, 21));
        assert_eq!(possible_pointer(&long, &known()), None);
        let big = raw(Status::Added, 0o100_644, Lines::Counted(3, 0));
        assert_eq!(possible_pointer(&big, &known()), None);
        assert!(is_pointer(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"));
        assert!(!is_pointer(b"version 2\n"));
    }

    #[test]
    fn flags_tell_what_was_not_done() {
        let counted = Lines::Counted(1, 1);
        let added = raw(Status::Added, 0o100_644, counted);
        let deleted = raw(Status::Deleted, 0o100_644, counted);
        let many = vec![added.clone(), added, deleted];
        let flags = analysis(many.clone(), Depth::Full, &known()).unwrap().flags;
        assert!(flags.contains(Flags::RENAME_LIMITED | Flags::DUPLICATE_PATHS));
        let flags = analysis(many, Depth::Raw, &known()).unwrap().flags;
        assert!(flags.contains(Flags::TRUNCATED) && !flags.contains(Flags::RENAME_LIMITED));
        let big = vec![raw(Status::Modified, 0o100_644, Lines::Binary)];
        let flags = analysis(big, Depth::Full, &known()).unwrap().flags;
        assert!(flags.contains(Flags::BIG_FILES_UNREAD));
    }

    #[test]
    fn a_blob_that_is_missing_is_named() {
        let changes = vec![raw(Status::Modified, 0o100_644, Lines::Counted(1, 1))];
        assert_eq!(analysis(changes, Depth::Full, &Blobs::default()).err(), Some(oid('1')));
    }
}

//! In what an analysis must agree with the second engine, and the named rules by which it may not.
//!
//! - **Renames are two rows.** The second engine knows none, so a rename is compared as the deletion and
//!   the addition that it was made of. Whether these belong together is judged by `likeness`.
//! - **Counts may differ where the difference is the same.** Two programs may align equal lines
//!   differently; lines added less lines deleted is a fact that no alignment changes. How often it
//!   happens is tallied.
//! - **Likeness may be more than it is**, where two chunks have one hash, but not by much. That, too, is
//!   tallied.
//! - **What is alike may be alone** if git did not consider the pair: it keeps the four candidates that
//!   are most like an addition, and other additions may have had all of them.

use queue_worker::handler::git::{Analysis, FileChange, FileKind, ObjectId, Status};

use super::likeness::{CANDIDATES, LIMIT, Likeness, RENAME};
use super::second::{GITLINK, Header, Pair, SYMLINK, Second, Side, is_binary, lines};

/// Bytes of the largest blob that is looked into.
const BIG: usize = 16 * 1024 * 1024;
/// More alike than any other two: one object at two paths.
const SAME: u8 = 101;
/// The type bits of a mode.
const TYPE: u32 = 0o170_000;

/// How much was compared.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) commits: usize,
    pub(crate) rows: usize,
    /// Rows with lines.
    pub(crate) counted: usize,
    /// Of these, those whose lines were aligned in another way.
    pub(crate) other_alignment: usize,
    /// Renames with edits.
    pub(crate) edited: usize,
    /// Of these, those that git holds for more alike than they are.
    pub(crate) flattered: usize,
}

/// Compares analyses with what the second engine says.
pub(crate) struct Oracle {
    pub(crate) second: Second,
    pub(crate) tally: Tally,
    /// Where they do not agree: the commit, the rule, the row.
    pub(crate) differences: Vec<String>,
}

impl Oracle {
    pub(crate) fn new(second: Second) -> Self {
        Self { second, tally: Tally::default(), differences: Vec::new() }
    }

    /// There was no difference, nor one of those that may be now and then.
    pub(crate) fn is_content(&self) -> bool {
        let tally = &self.tally;
        self.differences.is_empty() && tally.other_alignment == 0 && tally.flattered == 0
    }

    pub(crate) fn check(&mut self, analysis: &Analysis) {
        let id = analysis.id;
        let truth = self.second.header(&id);
        let from = |tree| self.second.changes(tree, truth.tree);
        let parents: Vec<Vec<Pair>> = truth
            .parents
            .iter()
            .map(|parent| from(Some(self.second.header(parent).tree)))
            .collect();
        let mut found = Vec::from_iter(header(analysis, &truth));
        found.extend(paths(analysis, parents.first().unwrap_or(&from(None))));
        found.extend(merge(analysis, &parents));
        found.extend(self.alone(analysis));
        for (ord, change) in (0..).zip(&analysis.changes) {
            let is_in_place = change.ord == ord && is_status(change);
            found.extend((!is_in_place).then(|| format!("status or place: {change:?}")));
            found.extend(self.content(change));
        }
        self.tally.commits += 1;
        self.tally.rows += analysis.changes.len();
        self.differences.extend(found.into_iter().map(|difference| format!("{id}: {difference}")));
    }

    /// Lines, sizes, kind and likeness of one row.
    fn content(&mut self, change: &FileChange) -> Vec<String> {
        let (before, after) = sides(change);
        let (old, new) = (self.second.content(before), self.second.content(after));
        let size = |side: Option<Side>, content: &[u8]| {
            side.filter(|side| side.mode != GITLINK).map(|_| content.len() as u64)
        };
        let is_big = old.len() > BIG || new.len() > BIG;
        let is_counted = !is_big && !is_binary(&old) && !is_binary(&new);
        let mut wrong = Vec::new();
        if (change.old_size, change.new_size) != (size(before, &old), size(after, &new)) {
            wrong.push("sizes");
        }
        if !is_kind(change.kind, after.or(before), is_counted, is_big) {
            wrong.push("kind");
        }
        match (change.added, change.deleted) {
            (Some(added), Some(deleted)) if is_counted => {
                let expected = lines(&old, &new);
                self.tally.counted += 1;
                self.tally.other_alignment += usize::from((added, deleted) != expected);
                if added + expected.1 != deleted + expected.0 {
                    wrong.push("lines");
                }
            }
            (None, None) if !is_counted => {}
            _ => wrong.push("lines"),
        }
        if let Some(percent) = change.similarity
            && !self.is_alike(percent, (before, &old), (after, &new))
        {
            wrong.push("likeness");
        }
        wrong.into_iter().map(|rule| format!("{rule}: {change:?}")).collect()
    }

    /// A rename was one, and is as alike as is said.
    fn is_alike(
        &mut self,
        percent: u8,
        (before, old): (Option<Side>, &[u8]),
        (after, new): (Option<Side>, &[u8]),
    ) -> bool {
        let (Some(before), Some(after)) = (before, after) else { return false };
        if before.oid == after.oid {
            return percent == 100 && can_be_moved(before, after);
        }
        let likeness = Likeness::of(old, new);
        self.tally.edited += 1;
        self.tally.flattered += usize::from(!likeness.is(percent));
        let are_files = before.is_regular() && after.is_regular();
        are_files && (RENAME..=100).contains(&percent) && likeness.may_be(percent)
    }

    /// Exact renames come first, so none is left over; and what is left alone is like nothing.
    fn alone(&self, analysis: &Analysis) -> Vec<String> {
        let rows = |alone| {
            let is_left = move |row: &&FileChange| {
                let is_edited = row.status == Status::Renamed && row.old_oid != row.new_oid;
                row.status == alone || is_edited
            };
            analysis.changes.iter().filter(is_left)
        };
        let mut differences = Vec::new();
        let pairs = rows(Status::Added).count() * rows(Status::Deleted).count();
        let is_looked_for = pairs <= LIMIT * LIMIT;
        for to in rows(Status::Added) {
            for from in rows(Status::Deleted).filter(|from| from.ord != to.ord) {
                if !is_looked_for && sides(from).0.map(|it| it.oid) != sides(to).1.map(|it| it.oid)
                {
                    continue;
                }
                let are_alone = from.status == Status::Deleted && to.status == Status::Added;
                let is_rename = match self.likeness(from, to) {
                    Some(SAME) => true,
                    Some(likeness) if are_alone && likeness >= RENAME => {
                        let others = rows(Status::Renamed).map(|row| self.likeness(row, to));
                        others.filter(|other| *other >= Some(likeness)).count() < CANDIDATES
                    }
                    _ => false,
                };
                if is_rename {
                    differences.push(format!("alone: {from:?}, {to:?}"));
                }
            }
        }
        differences
    }

    /// How alike the file before one row and that after another are at least; `None` for what cannot
    /// become each other.
    fn likeness(&self, from: &FileChange, to: &FileChange) -> Option<u8> {
        let (before, after) = (sides(from).0?, sides(to).1?);
        if before.oid == after.oid {
            return can_be_moved(before, after).then_some(SAME);
        }
        let are_files = before.is_regular() && after.is_regular();
        let contents = || (self.second.content(Some(before)), self.second.content(Some(after)));
        are_files.then(contents).map(|(old, new)| Likeness::of(&old, &new).least())
    }
}

fn header(analysis: &Analysis, expected: &Header) -> Option<String> {
    let found = Header {
        tree: analysis.tree,
        parents: analysis.parents.clone(),
        author: analysis.author.raw.clone(),
        committer: analysis.committer.raw.clone(),
        encoding: analysis.encoding.clone().map(String::into_bytes),
        message_bytes: analysis.message.bytes,
    };
    (found != *expected).then(|| format!("header: {found:?}, {expected:?}"))
}

/// Paths, modes and objects, and that they stand in git's order.
fn paths(analysis: &Analysis, expected: &[Pair]) -> Option<String> {
    let mut found = Vec::new();
    for change in &analysis.changes {
        let (before, after) = sides(change);
        let path = change.path.clone();
        if let Some(old) = change.old_path.clone() {
            found.push(Pair { path: old, before, after: None });
            found.push(Pair { path, before: None, after });
        } else {
            found.push(Pair { path, before, after });
        }
    }
    found.sort();
    let is_sorted = analysis.changes.is_sorted_by_key(|change| &change.path);
    (found != expected || !is_sorted).then(|| format!("paths: {found:?}, {expected:?}"))
}

/// How many paths of a merge differ from every parent.
fn merge(analysis: &Analysis, parents: &[Vec<Pair>]) -> Option<String> {
    let expected = parents.split_first().filter(|(_, others)| !others.is_empty()).map(|all| {
        let (first, others) = all;
        let has = |pairs: &Vec<Pair>, path| pairs.iter().any(|pair| pair.path == path);
        let is_everywhere = |pair: &&Pair| others.iter().all(|other| has(other, pair.path.clone()));
        u32::try_from(first.iter().filter(is_everywhere).count()).unwrap()
    });
    let found = analysis.merge_extra_files;
    (found != expected).then(|| format!("merge: {found:?}, {expected:?}"))
}

/// What a row says of the file before and after.
pub(crate) fn sides(change: &FileChange) -> (Option<Side>, Option<Side>) {
    let side =
        |mode, oid: Option<ObjectId>| (mode != 0 || oid.is_some()).then_some(Side { mode, oid });
    (side(change.old_mode, change.old_oid), side(change.new_mode, change.new_oid))
}

/// The status is what the two sides and the paths make it.
fn is_status(change: &FileChange) -> bool {
    let expected = match (sides(change), &change.old_path) {
        ((None, Some(_)), None) => Status::Added,
        ((Some(_), None), None) => Status::Deleted,
        ((Some(_), Some(_)), Some(_)) => Status::Renamed,
        ((Some(old), Some(new)), None) if old.mode & TYPE != new.mode & TYPE => Status::TypeChanged,
        ((Some(_), Some(_)), None) => Status::Modified,
        _ => return false,
    };
    change.status == expected && change.similarity.is_some() == (expected == Status::Renamed)
}

/// The kind is what mode and content make it; what is an LFS pointer is not judged here.
fn is_kind(kind: FileKind, side: Option<Side>, is_counted: bool, is_big: bool) -> bool {
    match side.map(|side| side.mode) {
        Some(GITLINK) => kind == FileKind::Gitlink,
        Some(SYMLINK) => kind == FileKind::Symlink,
        _ if is_counted => matches!(kind, FileKind::Text | FileKind::Lfs),
        _ if is_big => kind == FileKind::Unread,
        _ => kind == FileKind::Binary,
    }
}

/// One object at two paths is a rename: of files whatever their modes, of all else if they are equal.
fn can_be_moved(before: Side, after: Side) -> bool {
    before.is_regular() && after.is_regular() || before.mode == after.mode
}

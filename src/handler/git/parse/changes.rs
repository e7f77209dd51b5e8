//! Reads what `git diff-tree --always -r --root -z --raw --numstat --no-abbrev` prints.
//!
//! For each commit come its id, the raw records of all paths, then their counts of lines in the same
//! order. A count is matched by that order and checked by its path, since a path may stand there twice.

use thiserror::Error;

use crate::handler::git::change::Status;
use crate::handler::git::oid::{ObjectFormat, ObjectId};

/// One raw record with its counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::handler::git) struct RawChange {
    pub(in crate::handler::git) old_mode: u32,
    pub(in crate::handler::git) new_mode: u32,
    pub(in crate::handler::git) old_oid: Option<ObjectId>,
    pub(in crate::handler::git) new_oid: Option<ObjectId>,
    pub(in crate::handler::git) status: Status,
    pub(in crate::handler::git) similarity: Option<u8>,
    pub(in crate::handler::git) path: Vec<u8>,
    pub(in crate::handler::git) old_path: Option<Vec<u8>>,
    pub(in crate::handler::git) lines: Lines,
}

/// What is known about a change's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::handler::git) enum Lines {
    /// So many were added and deleted.
    Counted(u64, u64),
    /// Git holds one of the sides for binary.
    Binary,
    /// Git was not asked, or gave no answer.
    Unknown,
}

/// The output has not the form that is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("git printed a change that cannot be read, at byte {0}")]
pub(in crate::handler::git) struct Unreadable(usize);

/// Reads all changes of each of `commits`, which the output tells one after the other.
pub(in crate::handler::git) fn changes<'a>(
    output: &[u8],
    commits: impl IntoIterator<Item = &'a ObjectId>,
) -> Result<Vec<Vec<RawChange>>, Unreadable> {
    let mut fields = Fields { output, at: 0 };
    let all = commits.into_iter().map(|commit| changes_of(commit, &mut fields)).collect();
    if fields.peek().is_some() { Err(Unreadable(fields.at)) } else { all }
}

/// Reads the changes of one, whose id comes first, also if there are none.
fn changes_of(commit: &ObjectId, fields: &mut Fields<'_>) -> Result<Vec<RawChange>, Unreadable> {
    let at = fields.at;
    if ObjectId::from_hex(fields.next()?).as_ref() != Some(commit) {
        return Err(Unreadable(at));
    }
    let mut changes = Vec::new();
    while fields.peek() == Some(b':') {
        changes.push(raw(fields, commit.format())?);
    }
    let mut counted = changes.iter_mut();
    while fields.is_at_count() {
        let at = fields.at;
        let count = count(fields)?;
        // A record without a count of its own is passed over.
        let change = counted.find(|change| count.is_of(change)).ok_or(Unreadable(at))?;
        change.lines = count.lines;
    }
    Ok(changes)
}

/// Fields that end with NUL.
struct Fields<'a> {
    output: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn peek(&self) -> Option<u8> {
        self.output.get(self.at).copied()
    }

    /// Whether a count comes next and not the next commit: numbers end with a tab, ids do not.
    fn is_at_count(&self) -> bool {
        let mut rest = self.output[self.at..].iter();
        rest.find(|byte| !matches!(byte, b'0'..=b'9' | b'-')) == Some(&b'\t')
    }

    fn next(&mut self) -> Result<&'a [u8], Unreadable> {
        let rest = &self.output[self.at..];
        let end = memchr::memchr(0, rest).ok_or(Unreadable(self.at))?;
        self.at += end + 1;
        Ok(&rest[..end])
    }
}

/// `:100644 100755 OID OID R089`, a path, and for renames and copies the new path.
fn raw(fields: &mut Fields<'_>, format: ObjectFormat) -> Result<RawChange, Unreadable> {
    let at = fields.at;
    let mut parts = fields.next()?[1..].split(|byte| *byte == b' ');
    let mut part = || parts.next().ok_or(Unreadable(at));
    let (old_mode, new_mode) = (part()?, part()?);
    let (old_oid, new_oid) = (part()?, part()?);
    let status = part()?;
    if parts.next().is_some() {
        return Err(Unreadable(at));
    }
    let oid = |hex| {
        let oid = ObjectId::from_hex(hex).filter(|oid| oid.format() == format);
        oid.map(|oid| (!oid.is_zero()).then_some(oid)).ok_or(Unreadable(at))
    };
    let (letter, score) = status.split_first().ok_or(Unreadable(at))?;
    let status = Status::from_letter(*letter).ok_or(Unreadable(at))?;
    let first = fields.next()?.to_vec();
    let (path, old_path) = match status {
        Status::Renamed | Status::Copied => (fields.next()?.to_vec(), Some(first)),
        Status::Added | Status::Modified | Status::Deleted | Status::TypeChanged => (first, None),
    };
    Ok(RawChange {
        old_mode: mode(old_mode).ok_or(Unreadable(at))?,
        new_mode: mode(new_mode).ok_or(Unreadable(at))?,
        old_oid: oid(old_oid)?,
        new_oid: oid(new_oid)?,
        status,
        similarity: old_path.as_ref().and_then(|_| u8::try_from(decimal(score)?).ok()),
        path,
        old_path,
        lines: Lines::Unknown,
    })
}

fn mode(octal: &[u8]) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(octal).ok()?, 8).ok()
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

struct Count<'a> {
    lines: Lines,
    path: &'a [u8],
    old_path: Option<&'a [u8]>,
}

impl Count<'_> {
    fn is_of(&self, change: &RawChange) -> bool {
        self.path == change.path && self.old_path == change.old_path.as_deref()
    }
}

/// `3<TAB>1<TAB>path`, or `3<TAB>1<TAB>`, the old path and the new one; `-` for both numbers if
/// binary.
fn count<'a>(fields: &mut Fields<'a>) -> Result<Count<'a>, Unreadable> {
    let at = fields.at;
    let mut parts = fields.next()?.splitn(3, |byte| *byte == b'\t');
    let mut part = || parts.next().ok_or(Unreadable(at));
    let (added, deleted, path) = (part()?, part()?, part()?);
    let lines = match (added, deleted) {
        (b"-", b"-") => Lines::Binary,
        _ => match (decimal(added), decimal(deleted)) {
            (Some(added), Some(deleted)) => Lines::Counted(added, deleted),
            _ => return Err(Unreadable(at)),
        },
    };
    if path.is_empty() {
        let old_path = Some(fields.next()?);
        return Ok(Count { lines, path: fields.next()?, old_path });
    }
    Ok(Count { lines, path, old_path: None })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COMMIT: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
    const A: &str = "1111111111111111111111111111111111111111";
    const B: &str = "2222222222222222222222222222222222222222";
    const Z: &str = "0000000000000000000000000000000000000000";

    fn read(records: &[String]) -> Result<Vec<RawChange>, Unreadable> {
        let commit = COMMIT.parse().unwrap();
        let output = std::iter::once(COMMIT.to_owned()).chain(records.iter().cloned());
        let output: Vec<u8> =
            output.flat_map(|record| record.into_bytes().into_iter().chain([0])).collect();
        Ok(changes(&output, [&commit])?.remove(0))
    }

    #[test]
    fn the_id_alone_is_no_change() {
        assert_eq!(read(&[]), Ok(vec![]));
        assert!(changes(b"", [&COMMIT.parse().unwrap()]).is_err());
    }

    #[test]
    fn records_and_counts_meet() {
        let found = read(&[
            format!(":000000 100644 {Z} {A} A"),
            "a\tb".to_owned(),
            format!(":100644 100755 {A} {B} R089"),
            "old".to_owned(),
            "new".to_owned(),
            format!(":100644 000000 {A} {Z} D"),
            "new\nline".to_owned(),
            "3\t0\ta\tb".to_owned(),
            "1\t2\t".to_owned(),
            "old".to_owned(),
            "new".to_owned(),
            "-\t-\tnew\nline".to_owned(),
        ])
        .unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].status, found[0].lines), (Status::Added, Lines::Counted(3, 0)));
        assert_eq!((found[0].old_oid, &*found[0].path), (None, b"a\tb".as_slice()));
        assert_eq!(
            (found[1].similarity, found[1].old_path.as_deref()),
            (Some(89), Some(&b"old"[..]))
        );
        assert_eq!((found[1].new_mode, found[1].lines), (0o100_755, Lines::Counted(1, 2)));
        assert_eq!((found[2].new_oid, found[2].lines), (None, Lines::Binary));
    }

    #[test]
    fn a_path_may_stand_there_twice() {
        let record = format!(":100644 100644 {A} {B} M");
        let found = read(&[
            record.clone(),
            "x".to_owned(),
            record,
            "x".to_owned(),
            "1\t0\tx".to_owned(),
            "2\t0\tx".to_owned(),
        ])
        .unwrap();
        assert_eq!(found[0].lines, Lines::Counted(1, 0));
        assert_eq!(found[1].lines, Lines::Counted(2, 0));
    }

    #[test]
    fn commits_stand_one_after_the_other() {
        let ids: Vec<ObjectId> = [COMMIT, A, B].iter().map(|id| id.parse().unwrap()).collect();
        // A name like an id, and an id of digits only after a count.
        let output = format!(
            "{COMMIT}\0:000000 100644 {Z} {A} A\0{A}\03\t0\t{A}\0{A}\0\
             {B}\0:100644 100644 {A} {B} R100\0{A}\0{B}\0-\t-\t\0{A}\0{B}\0"
        );
        let found = changes(output.as_bytes(), &ids).unwrap();
        let lines = |changes: &Vec<RawChange>| changes.iter().map(|it| it.lines).collect();
        let lines: Vec<Vec<Lines>> = found.iter().map(lines).collect();
        assert_eq!(lines, [vec![Lines::Counted(3, 0)], vec![], vec![Lines::Binary]]);
        for wrong in [&ids[..2], &[ids[0], ids[2], ids[1]], &[&ids[..], &ids[..1]].concat()] {
            assert!(changes(output.as_bytes(), wrong).is_err());
        }
    }

    #[test]
    fn what_has_no_form_is_refused() {
        let record = format!(":100644 100644 {A} {B} M");
        for records in [
            vec!["x".to_owned()],
            vec![":".to_owned()],
            vec![record.clone()],
            vec![record.clone(), "x".to_owned(), "1\t2\ty".to_owned()],
            vec![record.clone(), "x".to_owned(), "1\t-\tx".to_owned()],
            vec![record.clone(), "x".to_owned(), "1\t+2\tx".to_owned()],
            vec![format!("{record} more"), "x".to_owned()],
            vec![format!(":100644 100644 {A} {B} U"), "x".to_owned()],
        ] {
            assert!(read(&records).is_err(), "{records:?}");
        }
        assert!(changes(b"no end", [&COMMIT.parse().unwrap()]).is_err());
        assert!(changes(format!("{A}\0").as_bytes(), [&COMMIT.parse().unwrap()]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(rest in proptest::collection::vec(any::<u8>(), 0..200)) {
            let commit = COMMIT.parse().unwrap();
            let _ = changes(&rest, [&commit]);
            let _ = changes(&[COMMIT.as_bytes(), &[0], &rest].concat(), [&commit, &commit]);
            let record = format!("{COMMIT}\0:100644 100644 {A} {B} R100\0");
            let _ = changes(&[record.as_bytes(), &rest].concat(), [&commit, &commit]);
        }
    }
}

//! The oracle notices whatever an engine could get wrong.
//!
//! Each lie changes one thing in a true analysis. It is told of several commits, and has to be noticed
//! in each.

use queue_worker::handler::git::{Analysis, FileChange, FileKind, Mirror, ObjectFormat, Status};

use super::likeness::Likeness;
use super::rules::{Oracle, sides};
use super::second::{Second, lines};
use crate::invented;
use crate::repository::{all_commits, engine, import, outcomes};

/// Of so many commits each lie is told.
const TIMES: usize = 5;

/// Changes an analysis; `None` where there is nothing to lie about.
type Lie = fn(&mut Analysis, &Second) -> Option<()>;

const LIES: &[(&str, Lie)] = &[
    ("another parent", |it, _| it.parents.first_mut().map(|parent| *parent = it.id)),
    ("another tree", |it, _| {
        it.tree = it.id;
        Some(())
    }),
    ("another author", |it, _| it.author.raw.first_mut().map(|byte| *byte ^= 1)),
    ("another date", |it, _| it.committer.raw.last_mut().map(|byte| *byte ^= 1)),
    ("a longer message", |it, _| {
        it.message.bytes += 1;
        Some(())
    }),
    ("a row is missing", |it, _| it.changes.pop().map(drop)),
    ("a row is there twice", |it, _| {
        let last = it.changes.last()?.clone();
        it.changes.push(last);
        number(it);
        Some(())
    }),
    ("rows in another order", |it, _| {
        it.changes.reverse();
        number(it);
        (it.changes.len() > 1).then_some(())
    }),
    ("rows with other numbers", |it, _| row(it, |_| true).map(|row| row.ord += 1)),
    ("another path", |it, _| row(it, |_| true).map(|row| row.path.push(b'~'))),
    ("another former path", |it, _| {
        row(it, |row| row.status == Status::Renamed)?.old_path.as_mut()?.push(b'~');
        Some(())
    }),
    ("each other's former paths", |it, _| {
        let mut renames = it.changes.iter_mut().filter(|row| row.old_path.is_some());
        let first = renames.next()?;
        let other = renames.find(|row| row.old_oid != first.old_oid)?;
        std::mem::swap(&mut first.old_path, &mut other.old_path);
        Some(())
    }),
    ("another mode", |it, _| row(it, is_file).map(|row| row.new_mode ^= 0o111)),
    ("another former mode", |it, _| {
        row(it, |row| is_file(row) && row.old_mode != 0).map(|row| row.old_mode ^= 0o111)
    }),
    ("another blob", |it, _| row(it, is_modified).map(|row| row.new_oid = row.old_oid)),
    ("the blobs the wrong way around", |it, _| {
        let row = row(it, is_modified)?;
        std::mem::swap(&mut row.old_oid, &mut row.new_oid);
        Some(())
    }),
    ("another status", |it, _| row(it, is_modified).map(|row| row.status = Status::TypeChanged)),
    ("one line more", |it, _| {
        *row(it, |row| row.added.is_some())?.added.as_mut()? += 1;
        Some(())
    }),
    ("one line more on both sides", |it, _| {
        let row = row(it, |row| row.added.is_some())?;
        (row.added, row.deleted) = (row.added.map(|it| it + 1), row.deleted.map(|it| it + 1));
        Some(())
    }),
    ("lines where there are none", |it, _| {
        let row = row(it, |row| row.added.is_none())?;
        (row.added, row.deleted) = (Some(0), Some(0));
        Some(())
    }),
    ("no lines where there are some", |it, _| {
        let row = row(it, |row| row.added.is_some())?;
        (row.added, row.deleted) = (None, None);
        Some(())
    }),
    ("another size", |it, _| {
        *row(it, |row| row.new_size.is_some())?.new_size.as_mut()? += 1;
        Some(())
    }),
    ("the size of a submodule", |it, _| {
        row(it, |row| row.kind == FileKind::Gitlink)?.new_size = Some(0);
        Some(())
    }),
    ("another kind", |it, _| {
        row(it, |row| row.kind == FileKind::Text)?.kind = FileKind::Binary;
        Some(())
    }),
    ("less alike", |it, second| {
        let row = row(it, |row| row.similarity.is_some_and(|percent| percent < 100))?;
        row.similarity = Some(likeness(row, second).least() - 1);
        Some(())
    }),
    ("a little more alike", |it, second| {
        let row = row(it, |row| row.similarity.is_some_and(|percent| percent < 100))?;
        row.similarity = Some(likeness(row, second).most() + 1);
        Some(())
    }),
    ("a rename that is not seen", |it, second| {
        let ord = row(it, |row| row.similarity.is_some())?.ord;
        let rename = it.changes.remove(ord as usize);
        it.changes.extend(halves(rename, second));
        it.changes.sort_by(|one, other| one.path.cmp(&other.path));
        number(it);
        Some(())
    }),
    ("a rename that is none", |it, second| {
        let is_file = |row: &&FileChange| row.kind == FileKind::Text;
        let with = |status| move |row: &&FileChange| is_file(row) && row.status == status;
        let deleted = it.changes.iter().find(with(Status::Deleted))?.clone();
        let added = it.changes.iter_mut().find(|row| with(Status::Added)(&&**row))?;
        *added = whole(&deleted, added.clone(), second);
        it.changes.remove(deleted.ord as usize);
        number(it);
        Some(())
    }),
    ("an edit while merging", |it, _| it.merge_extra_files.as_mut().map(|files| *files += 1)),
    ("a merge that was not looked at", |it, _| it.merge_extra_files.take().map(drop)),
];

/// The first row that is meant.
fn row(it: &mut Analysis, is_meant: fn(&FileChange) -> bool) -> Option<&mut FileChange> {
    it.changes.iter_mut().find(|row| is_meant(row))
}

fn is_file(row: &FileChange) -> bool {
    matches!(row.new_mode, 0o100_644 | 0o100_755)
}

fn is_modified(row: &FileChange) -> bool {
    row.status == Status::Modified && row.old_oid != row.new_oid
}

fn likeness(row: &FileChange, second: &Second) -> Likeness {
    let (before, after) = sides(row);
    Likeness::of(&second.content(before), &second.content(after))
}

/// Numbers the rows anew, so that only their order lies.
fn number(it: &mut Analysis) {
    for (ord, row) in (0..).zip(&mut it.changes) {
        row.ord = ord;
    }
}

/// A rename as the deletion and the addition that it would be, otherwise true.
fn halves(rename: FileChange, second: &Second) -> [FileChange; 2] {
    let (before, after) = sides(&rename);
    let (deleted, added) = (second.content(before), second.content(after));
    let counted = |old: &[u8], new: &[u8]| rename.added.map(|_| lines(old, new)).unzip();
    let plain = FileChange { old_path: None, similarity: None, ..rename.clone() };
    let (no_lines, gone) = counted(&deleted, &[]);
    let (new, none_gone) = counted(&[], &added);
    [
        FileChange {
            path: rename.old_path.unwrap(),
            status: Status::Deleted,
            new_mode: 0,
            new_oid: None,
            new_size: None,
            added: no_lines,
            deleted: gone,
            ..plain.clone()
        },
        FileChange {
            status: Status::Added,
            old_mode: 0,
            old_oid: None,
            old_size: None,
            added: new,
            deleted: none_gone,
            ..plain
        },
    ]
}

/// A deletion and an addition as the rename that they are not, otherwise true.
fn whole(deleted: &FileChange, added: FileChange, second: &Second) -> FileChange {
    let (old, new) = (second.content(sides(deleted).0), second.content(sides(&added).1));
    let (lines_added, lines_deleted) = lines(&old, &new);
    FileChange {
        old_path: Some(deleted.path.clone()),
        status: Status::Renamed,
        similarity: Some(100),
        old_mode: deleted.old_mode,
        old_oid: deleted.old_oid,
        old_size: deleted.old_size,
        added: Some(lines_added),
        deleted: Some(lines_deleted),
        ..added
    }
}

#[tokio::test]
async fn every_lie_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let git_dir = import(&folder.path().join("r.git"), &invented::history(12, 600));
    let engine = engine().await;
    let mirror = Mirror::unlocked(&git_dir, ObjectFormat::Sha1);
    let commits = all_commits(&git_dir);
    let truths = outcomes(&engine, &mirror, &commits).await;
    engine.close_idle().await;
    for (name, lie) in LIES {
        let mut told = 0;
        for truth in commits.iter().filter_map(|id| truths[id].analysis()) {
            let mut oracle = Oracle::new(Second::open(&git_dir, ObjectFormat::Sha1));
            let mut analysis = truth.clone();
            if lie(&mut analysis, &oracle.second).is_none() {
                continue;
            }
            oracle.check(&analysis);
            assert!(!oracle.is_content(), "{name}, which was told of {}, passes", truth.id);
            told += 1;
            if told == TIMES {
                break;
            }
        }
        assert_eq!(told, TIMES, "there is nothing to tell of: {name}");
    }
}

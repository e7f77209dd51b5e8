//! A second engine of another make says the same of every commit.
//!
//! `git log`, which `history` compares with, is the program that the engine itself asks: a mistake of
//! git's, and one in what is asked of it, would be in both. `second` has neither. `rules` says what is
//! compared and in what the two may differ; `lies` that each difference would be noticed.

mod lies;
mod likeness;
mod long;
mod rules;
mod second;

use std::path::Path;

use queue_worker::handler::git::{Mirror, ObjectFormat};

use self::rules::{Oracle, Tally};
use self::second::Second;
use crate::repository::{all_commits, engine, import, import_as, outcomes, own_history, unlocked};
use crate::{invented, zoo};

/// Commits of a history that are compared, so that time does not grow with it.
const NEWEST: usize = 1500;
/// Of a hundred rows, so many may be aligned in another way.
const ALIGNED: usize = 1;
/// Of a hundred renames with edits, so many may be flattered, and one in any case.
const FLATTERED: usize = 10;

impl Oracle {
    fn assert_content(&self) {
        let Self { tally, differences, .. } = self;
        let some = differences.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
        assert!(differences.is_empty(), "{} differences, among them:\n{some}", differences.len());
        assert!(tally.other_alignment * 100 <= tally.counted * ALIGNED, "{tally:?}");
        assert!(tally.flattered * 100 <= 100 + tally.edited * FLATTERED, "{tally:?}");
        println!("{tally:?}");
    }
}

/// Compares the newest commits that refs reach.
async fn compare(git_dir: &Path, format: ObjectFormat) -> Tally {
    let engine = engine().await;
    let mirror = Mirror::unlocked(git_dir, format);
    let mut oracle = Oracle::new(Second::open(git_dir, format));
    let commits = all_commits(git_dir);
    let commits = &commits[..commits.len().min(NEWEST)];
    for (id, outcome) in outcomes(&engine, &mirror, commits).await {
        oracle.check(outcome.analysis().unwrap_or_else(|| panic!("{id}: {outcome:?}")));
    }
    engine.close_idle().await;
    oracle.assert_content();
    oracle.tally
}

#[tokio::test]
async fn an_invented_history() {
    let folder = tempfile::tempdir().unwrap();
    let git_dir = import(&folder.path().join("r.git"), &invented::history(11, NEWEST));
    let tally = compare(&git_dir, ObjectFormat::Sha1).await;
    assert!(tally.rows > 2500 && tally.edited > 100, "{tally:?}");
}

#[tokio::test]
async fn an_invented_history_with_long_ids() {
    // The ids of submodules are written in the history itself.
    let (link, padding) = (b"\nM 160000 ".as_slice(), [b'0'; 24]);
    let mut stream = invented::history(14, 300);
    let places: Vec<usize> = memchr::memmem::find_iter(&stream, link).collect();
    for place in places.into_iter().rev() {
        let id = place + link.len();
        stream.splice(id..id, padding);
    }
    let format = ObjectFormat::Sha256;
    let folder = tempfile::tempdir().unwrap();
    let git_dir = import_as(format, &folder.path().join("r.git"), &stream);
    let tally = compare(&git_dir, format).await;
    assert!(tally.rows > 400 && tally.edited > 20, "{tally:?}");
}

#[tokio::test]
async fn long_texts() {
    let folder = tempfile::tempdir().unwrap();
    let git_dir = import(&folder.path().join("r.git"), &long::history(13, 30));
    let tally = compare(&git_dir, ObjectFormat::Sha1).await;
    assert_eq!(tally.counted, 30, "{tally:?}");
}

#[tokio::test]
async fn the_projects_own_history() {
    let Some(git_dir) = own_history() else { return };
    let tally = compare(&git_dir, ObjectFormat::Sha1).await;
    assert!(tally.counted > 0, "{tally:?}");
}

/// Odd repositories, as far as their commits can be analysed at all.
#[tokio::test]
async fn the_zoo() {
    let folder = tempfile::tempdir().unwrap();
    zoo::build(folder.path());
    let engine = engine().await;
    let mut compared = 0;
    for case in zoo::expected().iter().filter(|case| case.refused.is_none()) {
        let repository = case.case.split_once(':').unwrap().0;
        let mirror = unlocked(&folder.path().join(repository));
        let outcomes = outcomes(&engine, &mirror, &[case.oid.parse().unwrap()]).await;
        let mut oracle = Oracle::new(Second::open(mirror.git_dir(), ObjectFormat::Sha1));
        for outcome in outcomes.values() {
            oracle.check(outcome.analysis().unwrap_or_else(|| panic!("{}", case.case)));
            assert!(oracle.is_content(), "{}: {:?}", case.case, oracle.differences);
        }
        compared += oracle.tally.commits;
    }
    engine.close_idle().await;
    assert_eq!(compared, 34);
}

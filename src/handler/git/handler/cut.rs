//! A list of commits is cut into tasks.
//!
//! Where a chunk of the list has something to do, it is a task as a whole, so that its id is the same
//! each time. What was refused although the mirror lists it is opened again, and gets tasks of its own:
//! their ids follow also from the fences of the refusals, so they are new to the ledger, and still the
//! same if the fan-out is run again before they were claimed.

use std::collections::{HashMap, HashSet};

use sha2::{Digest, Sha256};

use crate::domain::{Failure, Kind, TaskId};
use crate::handler::git::mirror::Source;
use crate::handler::git::oid::{ObjectId, hex};
use crate::handler::git::results::{Place, Results, ResultsError};

/// What the ids of tasks follow from, besides their commits.
pub(super) struct Names<'a> {
    pub(super) kind: &'a Kind,
    pub(super) source: &'a Source,
    pub(super) profile: &'a str,
}

/// The commits of one task.
pub(super) struct Chunk {
    pub(super) id: TaskId,
    pub(super) commits: Vec<ObjectId>,
    /// They were refused before.
    is_again: bool,
}

/// What a list of commits was cut into.
pub(super) struct Cut {
    pub(super) chunks: Vec<Chunk>,
    /// Commits of the list that are done or refused.
    pub(super) known: usize,
}

impl Cut {
    /// What there is to do of `commits`: `known` are done or refused, and `opened`, with their fences,
    /// were opened again.
    pub(super) fn of(
        commits: &[ObjectId],
        batch: usize,
        known: &HashSet<ObjectId>,
        opened: &HashMap<ObjectId, i64>,
        names: &Names<'_>,
    ) -> Result<Self, Failure> {
        let mut chunks = Vec::new();
        for part in commits.chunks(batch) {
            if part.iter().any(|commit| !known.contains(commit) && !opened.contains_key(commit)) {
                let id = task_id(names, part, &[])?;
                chunks.push(Chunk { id, commits: part.to_vec(), is_again: false });
            }
        }
        let again: Vec<(ObjectId, i64)> =
            commits.iter().filter_map(|commit| Some((*commit, *opened.get(commit)?))).collect();
        for part in again.chunks(batch) {
            let (commits, fences): (Vec<ObjectId>, Vec<i64>) = part.iter().copied().unzip();
            let id = task_id(names, &commits, &fences)?;
            chunks.push(Chunk { id, commits, is_again: true });
        }
        Ok(Self { chunks, known: known.len() })
    }

    /// Notes whose commits are whose; the tasks are in the stream. What was opened again belonged to
    /// the task `from`.
    pub(super) async fn note(
        &self,
        results: &Results,
        place: Place,
        from: &TaskId,
    ) -> Result<(), ResultsError> {
        let of = |is_again: bool| -> Vec<(ObjectId, &str)> {
            let chunks = self.chunks.iter().filter(|chunk| chunk.is_again == is_again);
            chunks
                .flat_map(|chunk| chunk.commits.iter().map(|commit| (*commit, chunk.id.as_str())))
                .collect()
        };
        results.hand_on(place, &of(true), Some(from.as_str())).await?;
        results.queue(place, &of(false)).await
    }
}

/// The id of the task for these commits: the same for the same names, commits and fences of refusals.
fn task_id(names: &Names<'_>, commits: &[ObjectId], fences: &[i64]) -> Result<TaskId, Failure> {
    let Names { kind, source, profile } = names;
    let mut hasher = Sha256::new();
    for part in [kind.as_str(), source.name(), source.url(), profile] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    for commit in commits {
        hasher.update(commit.as_bytes());
    }
    for fence in fences {
        hasher.update(fence.to_be_bytes());
    }
    let digest = hasher.finalize();
    let id = format!("git:{}:{}", source.key(), hex(&digest[..16]));
    TaskId::new(&id).map_err(|error| Failure::for_good(format!("no task id: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::git::options::SourcePolicy;

    #[test]
    fn the_id_follows_from_what_is_asked_for() {
        let source = |name, url| Source::new(name, url, &SourcePolicy::default()).unwrap();
        let kind = |name: &str| Kind::new(name).unwrap();
        let commits = commits(3);
        let plain = source("a", "https://a/b");
        let id = |kind: &Kind, source: &Source, profile: &str, commits: &[ObjectId]| {
            task_id(&Names { kind, source, profile }, commits, &[]).unwrap()
        };
        let first = id(&kind("k"), &plain, "p", &commits);
        assert_eq!(first, id(&kind("k"), &plain, "p", &commits));
        for other in [
            id(&kind("l"), &plain, "p", &commits),
            id(&kind("k"), &source("b", "https://a/b"), "p", &commits),
            id(&kind("k"), &source("a", "https://a/c"), "p", &commits),
            id(&kind("k"), &plain, "q", &commits),
            id(&kind("k"), &plain, "p", &commits[..2]),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn what_is_done_is_left_out_and_what_was_opened_has_ids_of_its_own() {
        let source = Source::new("a", "https://a/b", &SourcePolicy::default()).unwrap();
        let names = Names { kind: &Kind::new("k").unwrap(), source: &source, profile: "p" };
        let commits = commits(9);
        let cut = |known: &[ObjectId], opened: &[(usize, i64)]| {
            let known = known.iter().copied().collect();
            let opened = opened.iter().map(|(at, fence)| (commits[*at], *fence)).collect();
            Cut::of(&commits, 3, &known, &opened, &names).unwrap()
        };
        let ids = |cut: &Cut| cut.chunks.iter().map(|chunk| chunk.id.clone()).collect::<Vec<_>>();
        let whole = cut(&[], &[]);
        assert_eq!(whole.chunks.len(), 3);
        let some = cut(&commits[..7], &[]);
        assert_eq!((ids(&some), some.known), (ids(&whole)[2..].to_vec(), 7));
        assert!(cut(&commits, &[]).chunks.is_empty());
        // The middle chunk has one that was opened, and nothing else to do.
        let known = [&commits[..4], &commits[5..]].concat();
        let again = cut(&known, &[(4, 1)]);
        let [chunk] = &again.chunks[..] else { panic!("{} chunks", again.chunks.len()) };
        assert!(chunk.is_again && chunk.commits == commits[4..5]);
        assert_eq!(ids(&again), ids(&cut(&known, &[(4, 1)])));
        assert_ne!(ids(&again), ids(&cut(&known, &[(4, 2)])));
    }

    fn commits(count: u8) -> Vec<ObjectId> {
        (1..=count).map(|n| ObjectId::from_bytes(&[n; 20]).unwrap()).collect()
    }
}

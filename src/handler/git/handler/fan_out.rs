//! A range or a whole repository becomes tasks of some commits each.
//!
//! The ids of these tasks follow from what they ask for, so a second time adds none: the ledger refuses
//! a task that it knows, and where all commits of one are done there is none. What was refused although
//! the mirror lists it gets tasks of its own, whose ids follow also from the fences of the refusals: so
//! they are new to the ledger, and still the same if this task is run again. All are in the stream
//! before their commits are noted, and before this task is acknowledged.
//!
//! A mirror that is found damaged is cloned anew, once; a mailmap that cannot be had costs nothing but
//! itself.

use std::collections::HashSet;

use futures_util::future::try_join_all;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::made::Made;
use super::payload::{Payload, Wish};
use super::{GitParts, queue_failed, results_failed};
use crate::domain::{EntryId, Failure, Kind, RawEntry, TaskId};
use crate::handler::Run;
use crate::handler::git::mirror::{Mirror, MirrorError, Selection, Source};
use crate::handler::git::oid::{ObjectId, hex};
use crate::handler::git::results::{Place, ResultsError};
use crate::queue::codec::NewTask;

/// Entries on their way to Redis at once.
const UNDER_WAY: usize = 100;

/// Why there is no list of commits.
enum NoCommits {
    /// The mirror cannot tell.
    Mirror(MirrorError),
    /// The repository knows no such name.
    Unknown(String),
}

impl From<MirrorError> for NoCommits {
    fn from(error: MirrorError) -> Self {
        Self::Mirror(error)
    }
}

impl NoCommits {
    fn failure(self) -> Failure {
        match self {
            Self::Mirror(error) => mirror_failed(&error),
            Self::Unknown(name) => {
                let message =
                    format!("payload: `range`: there is no commit, branch or tag {name:?}");
                Failure::for_good(message).with_status("payload")
            }
        }
    }
}

/// A fan-out at work.
pub(super) struct FanOut<'a> {
    pub(super) parts: &'a GitParts,
    pub(super) batch: usize,
    pub(super) source: &'a Source,
    pub(super) place: Place,
    pub(super) run: &'a Run,
}

/// The commits of one task.
struct Chunk {
    id: TaskId,
    commits: Vec<ObjectId>,
    /// They were refused before.
    is_again: bool,
}

/// What a list of commits was cut into.
struct Cut {
    chunks: Vec<Chunk>,
    /// Commits of the list that are done or refused.
    known: usize,
}

impl FanOut<'_> {
    /// Adds the tasks; answers a [`Made`].
    pub(super) async fn run(&self, wish: &Wish) -> Result<Value, Failure> {
        let GitParts { mirrors, stores, engine } = self.parts;
        let (mirror, mut commits) = self.commits(wish).await.map_err(NoCommits::failure)?;
        let boundary = mirror.boundary();
        let mailmap = mirrors.mailmap(&mirror).await;
        drop(mirror);
        // Oldest first: what comes later changes only the last tasks.
        commits.reverse();
        self.note_mailmap(mailmap).await?;
        let profile = engine.profile().id();
        let cut = self.cut(&commits, &boundary, &profile).await?;
        let newest = self.add(&cut.chunks).await?;
        self.note(&cut).await.map_err(|error| results_failed(&error))?;
        let made = Made {
            commits: commits.len(),
            known: cut.known,
            tasks: cut.chunks.len(),
            profile,
            newest,
            ids: cut.chunks.iter().map(|chunk| chunk.id.to_string()).collect(),
        };
        Ok(made.to_json())
    }

    /// What there is to do of `commits`, in pieces that are a task each.
    async fn cut(
        &self,
        commits: &[ObjectId],
        boundary: &HashSet<ObjectId>,
        profile: &str,
    ) -> Result<Cut, Failure> {
        let (results, task) = (&self.parts.stores.results, &self.run.task);
        let opened = results.disprove(self.place, commits, boundary, task.id.as_str()).await;
        let opened = opened.map_err(|error| results_failed(&error))?;
        let known = results.terminal(self.place, commits).await;
        let known = known.map_err(|error| results_failed(&error))?;
        let id = |commits: &[ObjectId], fences: &[i64]| {
            task_id(&task.kind, self.source, profile, commits, fences)
        };
        let mut chunks = Vec::new();
        for part in commits.chunks(self.batch.max(1)) {
            if part.iter().any(|commit| !known.contains(commit) && !opened.contains_key(commit)) {
                let id = id(part, &[])?;
                chunks.push(Chunk { id, commits: part.to_vec(), is_again: false });
            }
        }
        let again: Vec<(ObjectId, i64)> =
            commits.iter().filter_map(|commit| Some((*commit, *opened.get(commit)?))).collect();
        for part in again.chunks(self.batch.max(1)) {
            let (commits, fences): (Vec<ObjectId>, Vec<i64>) = part.iter().copied().unzip();
            chunks.push(Chunk { id: id(&commits, &fences)?, commits, is_again: true });
        }
        Ok(Cut { chunks, known: known.len() })
    }

    /// Notes whose commits are whose; the tasks are in the stream.
    async fn note(&self, cut: &Cut) -> Result<(), ResultsError> {
        let results = &self.parts.stores.results;
        let of = |is_again: bool| -> Vec<(ObjectId, &str)> {
            let chunks = cut.chunks.iter().filter(|chunk| chunk.is_again == is_again);
            chunks
                .flat_map(|chunk| chunk.commits.iter().map(|commit| (*commit, chunk.id.as_str())))
                .collect()
        };
        results.hand_on(self.place, &of(true), Some(self.run.task.id.as_str())).await?;
        results.queue(self.place, &of(false)).await
    }

    /// The commits of a wish, and the mirror that has them.
    async fn commits(&self, wish: &Wish) -> Result<(Mirror, Vec<ObjectId>), NoCommits> {
        let mirrors = &self.parts.mirrors;
        let mirror = mirrors.refresh(self.source).await?;
        let detail = match self.list(&mirror, wish).await {
            Ok(commits) => return Ok((mirror, commits)),
            Err(NoCommits::Mirror(MirrorError::Corrupt(detail))) => detail,
            Err(error) => return Err(error),
        };
        tracing::warn!(source = self.source.name(), %detail, "damaged mirror");
        let mirror = match mirrors.replace(self.source, mirror).await {
            Ok(mirror) => mirror,
            // What was found damaged says more than that there is nothing better.
            Err(MirrorError::Corrupt(_)) => return Err(MirrorError::Corrupt(detail).into()),
            Err(error) => return Err(error.into()),
        };
        let commits = self.list(&mirror, wish).await?;
        Ok((mirror, commits))
    }

    async fn list(&self, mirror: &Mirror, wish: &Wish) -> Result<Vec<ObjectId>, NoCommits> {
        let selection = self.selection(mirror, wish).await?;
        Ok(self.parts.mirrors.list(mirror, &selection).await?)
    }

    /// Notes the mailmap. The one that was noted last stays where there is one that cannot be read: it
    /// is nearer to the truth than none.
    async fn note_mailmap(
        &self,
        mailmap: Result<Option<Vec<u8>>, MirrorError>,
    ) -> Result<(), Failure> {
        match mailmap {
            Ok(mailmap) => {
                let results = &self.parts.stores.results;
                let noted = results.set_mailmap(self.place, mailmap.as_deref()).await;
                noted.map_err(|error| results_failed(&error))
            }
            Err(error) if error.is_transient() => Err(mirror_failed(&error)),
            Err(error) => {
                let source = self.source.name();
                tracing::warn!(source, %error, "mailmap ignored, the one before it stays");
                Ok(())
            }
        }
    }

    async fn selection(&self, mirror: &Mirror, wish: &Wish) -> Result<Selection, NoCommits> {
        let Wish::Range { from, to } = wish else { return Ok(Selection::All) };
        let from = match from {
            Some(from) => Some(self.resolve(mirror, from).await?),
            None => None,
        };
        Ok(Selection::Range { from, to: self.resolve(mirror, to).await? })
    }

    async fn resolve(&self, mirror: &Mirror, name: &str) -> Result<ObjectId, NoCommits> {
        let found = self.parts.mirrors.resolve(mirror, name).await?;
        found.ok_or_else(|| NoCommits::Unknown(name.to_owned()))
    }

    /// Adds the tasks; answers the newest entry.
    async fn add(&self, chunks: &[Chunk]) -> Result<Option<EntryId>, Failure> {
        let queue = &self.parts.stores.queue;
        let mut newest = None;
        for part in chunks.chunks(UNDER_WAY) {
            let entries: Vec<RawEntry> = part.iter().map(|chunk| self.entry(chunk)).collect();
            let added = entries.iter().map(|entry| queue.append(&self.run.task.queue, entry));
            let added = try_join_all(added).await.map_err(|error| queue_failed(&error))?;
            newest = added.into_iter().max().max(newest);
        }
        Ok(newest)
    }

    fn entry(&self, chunk: &Chunk) -> RawEntry {
        let task = &self.run.task;
        let payload = Payload::of_commits(self.source.name(), self.source.url(), &chunk.commits);
        let mut new = NewTask::new(task.kind.clone(), payload).with_id(chunk.id.clone());
        new.traceparent.clone_from(&task.traceparent);
        new.encode()
    }
}

/// The id of the task for these commits: the same for the same kind, source, profile, commits and
/// fences of refusals.
fn task_id(
    kind: &Kind,
    source: &Source,
    profile: &str,
    commits: &[ObjectId],
    fences: &[i64],
) -> Result<TaskId, Failure> {
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

/// There is no commit yet to record it for.
fn mirror_failed(error: &MirrorError) -> Failure {
    let failure = if error.is_transient() {
        Failure::retry(error.to_string())
    } else {
        Failure::for_good(error.to_string())
    };
    match error.outcome().refusal() {
        Some(refusal) => failure.with_status(refusal.as_str()),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::git::options::SourcePolicy;

    #[test]
    fn the_id_follows_from_what_is_asked_for() {
        let source = |name, url| Source::new(name, url, &SourcePolicy::default()).unwrap();
        let kind = |name: &str| Kind::new(name).unwrap();
        let commits: Vec<ObjectId> =
            (1..4).map(|n| ObjectId::from_bytes(&[n; 20]).unwrap()).collect();
        let plain = source("a", "https://a/b");
        let id = |kind: &Kind, source: &Source, profile: &str, commits: &[ObjectId]| {
            task_id(kind, source, profile, commits, &[]).unwrap()
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
        let again = |fence| task_id(&kind("k"), &plain, "p", &commits, &[1, fence, 1]).unwrap();
        assert_eq!(again(1), again(1));
        assert!(again(1) != again(2) && again(1) != first);
    }
}

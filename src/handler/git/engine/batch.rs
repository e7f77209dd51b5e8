//! One batch: headers, what each commit changed, and the sizes of what it changed.
//!
//! Counting has a child of its own, and the rest shares another: headers are read ahead of counting,
//! and sizes are looked up behind it. What is under way is bounded in bytes, since a commit may be a
//! thousand times as large as another.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};

use super::Analysed;
use super::assemble::{Blobs, assemble, blobs, is_pointer, possible_pointer};
use super::count::{GROUP, Pending, ROOM, Ready, count};
use super::death::{Cause, Death};
use super::differ::{Depth, Differ, Request};
use super::lookup::Lookup;
use super::merges::Merges;
use super::objects::{Object, Question};
use super::spawner::Spawner;
use crate::handler::git::mirror::Mirror;
use crate::handler::git::oid::ObjectId;
use crate::handler::git::outcome::{Outcome, Refusal};
use crate::handler::git::parse::commit::{CommitObject, commit};

/// Commits whose headers are read at once, at most.
const HEADERS: usize = 64;
/// Commits whose headers are known and that wait to be counted.
const AHEAD: usize = HEADERS * 2;
/// Bytes of a commit object that are read; the rest of its message is cut.
const MAX_COMMIT: usize = 8 * 1024 * 1024;
/// Commits that are counted and wait for their sizes.
const WAITING: usize = 64;
/// Bytes that are read of what may be an LFS pointer.
const POINTER: usize = 1024;

/// Nobody takes results any more.
pub(super) struct Gone;

/// A batch at work.
pub(super) struct Batch<'a> {
    pub(super) spawner: &'a Spawner,
    pub(super) mirror: &'a Mirror,
    pub(super) results: &'a mpsc::Sender<Analysed>,
    pub(super) lookup: Lookup<'a>,
    pub(super) differ: Option<Differ>,
    pub(super) merges: Merges<'a>,
}

impl Batch<'_> {
    /// Sends one result for each of the ids.
    pub(super) async fn run(&mut self, commits: &[ObjectId]) -> Result<(), Gone> {
        let mut seen = HashSet::with_capacity(commits.len());
        let unique: Vec<ObjectId> = commits.iter().copied().filter(|id| seen.insert(*id)).collect();
        let room = Semaphore::new(ROOM as usize);
        let (to_count, pending) = mpsc::channel(AHEAD);
        let (counted, ready) = mpsc::channel(WAITING);
        let mut differ = self.differ.take();
        let counting = count(&mut differ, pending, self.spawner, self.mirror, &room, counted);
        // Counting ends when there is no more to count, or nobody takes what was counted.
        let ((), finished) = tokio::join!(counting, self.read_and_finish(&unique, to_count, ready));
        self.differ = differ;
        finished
    }

    /// Headers for whoever counts, as long as there is room for a group of them, and what is left to
    /// do about those that are counted.
    async fn read_and_finish(
        &mut self,
        commits: &[ObjectId],
        to_count: mpsc::Sender<Pending>,
        mut ready: mpsc::Receiver<Ready<'_>>,
    ) -> Result<(), Gone> {
        let mut unread = commits;
        // Counting begins with a few of them.
        let mut size = GROUP;
        let mut to_count = Some(to_count);
        let mut counted = Vec::with_capacity(WAITING);
        loop {
            if let Some(sender) = to_count.take_if(|sender| sender.capacity() >= HEADERS)
                && !unread.is_empty()
            {
                let (group, rest) = unread.split_at(size.min(unread.len()));
                (unread, size) = (rest, HEADERS.min(size * 2));
                let read = self.headers(group).await?;
                for pending in self.with_parents(read).await? {
                    // There is room, and who counts does not go before us.
                    sender.send(pending).await.map_err(|_| Gone)?;
                }
                to_count = Some(sender);
            } else if ready.recv_many(&mut counted, WAITING).await > 0 {
                self.finish(&mut counted).await?;
            } else {
                return Ok(());
            }
        }
    }

    async fn headers(&mut self, ids: &[ObjectId]) -> Result<Vec<Pending>, Gone> {
        let found = self.lookup.ask(Question::Content(MAX_COMMIT), ids, header).await;
        let mut pending = Vec::with_capacity(ids.len());
        for (id, found) in ids.iter().zip(found) {
            match found.unwrap_or_else(|death| Err(failed(&death))) {
                Ok(object) => {
                    let parent = object.parents.first().copied();
                    pending.push(Pending { request: Request { commit: *id, parent }, object });
                }
                Err(outcome) => send(self.results, *id, outcome, Duration::ZERO).await?,
            }
        }
        Ok(pending)
    }

    /// Those whose first parent is there; without it there is nothing to compare with.
    async fn with_parents(&mut self, read: Vec<Pending>) -> Result<Vec<Pending>, Gone> {
        let known: HashSet<ObjectId> = read.iter().map(|it| it.request.commit).collect();
        let parents: HashSet<ObjectId> = read
            .iter()
            .filter_map(|it| it.request.parent)
            .filter(|id| !known.contains(id))
            .collect();
        let parents: Vec<ObjectId> = parents.into_iter().collect();
        let found = self.lookup.ask(Question::Info, &parents, is_commit).await;
        let mut unusable = HashMap::new();
        for (parent, found) in parents.iter().zip(found) {
            match found {
                Ok(true) => {}
                Ok(false) => drop(unusable.insert(*parent, None)),
                Err(death) => drop(unusable.insert(*parent, Some(death))),
            }
        }
        let boundary = if unusable.is_empty() { HashSet::new() } else { self.mirror.boundary() };
        let mut pending = Vec::with_capacity(read.len());
        for it in read {
            let Request { commit, parent } = it.request;
            let outcome = match parent.and_then(|parent| Some((parent, unusable.get(&parent)?))) {
                None => {
                    pending.push(it);
                    continue;
                }
                Some((_, Some(death))) => failed(death),
                Some((parent, None)) if boundary.contains(&commit) => Outcome::refused(
                    Refusal::ShallowBoundary,
                    format!("the source is shallow and lacks the parent {parent}"),
                ),
                Some((parent, None)) => Outcome::refused(
                    Refusal::RepoCorrupt,
                    format!("the parent {parent} is missing or no commit"),
                ),
            };
            send(self.results, commit, outcome, Duration::ZERO).await?;
        }
        Ok(pending)
    }

    /// Looks up the sizes for all of a group, puts the analyses together and sends them.
    async fn finish(&mut self, group: &mut Vec<Ready<'_>>) -> Result<(), Gone> {
        let Self { lookup, merges, results, .. } = self;
        let (known, deaths) = look_up(lookup, group).await;
        let mergeable = all_parents_there(lookup, group).await;
        for Ready { pending, counted, took, _room } in group.drain(..) {
            let id = pending.request.commit;
            let outcome = match counted {
                Err(outcome) => outcome,
                Ok((changes, depth)) => {
                    let profile = &lookup.spawner.profile;
                    match assemble(id, pending.object, changes, depth, &known, profile) {
                        Ok(mut analysis) => {
                            if depth == Depth::Full && mergeable.contains(&id) {
                                analysis.merge_extra_files =
                                    merges.count(&id, &analysis.parents).await;
                            }
                            Outcome::Analysed(Box::new(analysis))
                        }
                        Err(missing) => match deaths.iter().find(|(oid, _)| *oid == missing) {
                            Some((_, its)) => failed(its),
                            None => Outcome::refused(
                                Refusal::RepoCorrupt,
                                format!("the blob {missing} is missing"),
                            ),
                        },
                    }
                }
            };
            send(results, id, outcome, took).await?;
        }
        Ok(())
    }
}

fn is_commit(_: &ObjectId, found: Object) -> bool {
    matches!(found, Object::Found { kind, .. } if kind == "commit")
}

fn header(id: &ObjectId, found: Object) -> Result<CommitObject, Outcome> {
    match found {
        Object::Missing => {
            let detail = format!("the repository does not have the commit {id}");
            Err(Outcome::refused(Refusal::CommitGone, detail))
        }
        Object::Found { kind, size, content } if kind == "commit" => {
            commit(&content, size, id.format()).ok_or_else(|| {
                Outcome::refused(
                    Refusal::RepoCorrupt,
                    format!("{id} has no tree or too many parents"),
                )
            })
        }
        Object::Found { kind, .. } => {
            let detail = format!("{id} is no commit but a {kind}");
            Err(Outcome::refused(Refusal::CommitGone, detail))
        }
    }
}

/// What a death at a single object means: there is no way to ask for less.
fn failed(death: &Death) -> Outcome {
    match death.cause {
        Cause::Memory => Outcome::refused(Refusal::TooLarge, &*death.detail),
        Cause::Corrupt => Outcome::refused(Refusal::RepoCorrupt, &*death.detail),
        Cause::Killed | Cause::Other => Outcome::failed(&*death.detail),
    }
}

/// The merges of a group whose parents are all there.
async fn all_parents_there(lookup: &mut Lookup<'_>, group: &[Ready<'_>]) -> HashSet<ObjectId> {
    let merges = || {
        let parents =
            group.iter().map(|it| (it.pending.request.commit, &it.pending.object.parents));
        parents.filter(|(_, parents)| parents.len() > 1)
    };
    let others: HashSet<ObjectId> = merges().flat_map(|(_, parents)| parents).copied().collect();
    let others: Vec<ObjectId> = others.into_iter().collect();
    let found = lookup.ask(Question::Info, &others, is_commit).await;
    let there = others.iter().zip(found).filter(|(_, found)| matches!(found, Ok(true)));
    let there: HashSet<ObjectId> = there.map(|(id, _)| *id).collect();
    merges()
        .filter(|(_, parents)| parents.iter().all(|parent| there.contains(parent)))
        .map(|(id, _)| id)
        .collect()
}

/// What is known of the blobs of a group, and of which of them a child died.
async fn look_up(lookup: &mut Lookup<'_>, group: &[Ready<'_>]) -> (Blobs, Vec<(ObjectId, Death)>) {
    let changes =
        || group.iter().filter_map(|it| it.counted.as_ref().ok()).flat_map(|(changes, _)| changes);
    let mut known = Blobs::default();
    let mut deaths = Vec::new();
    let oids: HashSet<ObjectId> = changes().flat_map(blobs).collect();
    let oids: Vec<ObjectId> = oids.into_iter().collect();
    let found = lookup.ask(Question::Info, &oids, |_, found| found.size()).await;
    for (oid, found) in oids.iter().zip(found) {
        match found {
            Ok(Some(size)) => drop(known.sizes.insert(*oid, size)),
            Ok(None) => {}
            Err(death) => deaths.push((*oid, death)),
        }
    }
    let possible: HashSet<ObjectId> =
        changes().filter_map(|change| possible_pointer(change, &known)).collect();
    let possible: Vec<ObjectId> = possible.into_iter().collect();
    let points = |_: &ObjectId, found| matches!(found, Object::Found { content, .. } if is_pointer(&content));
    let found = lookup.ask(Question::Content(POINTER), &possible, points).await;
    for (oid, found) in possible.iter().zip(found) {
        match found {
            Ok(true) => drop(known.pointers.insert(*oid)),
            Ok(false) => {}
            // Its size was known, its content is not: without it the kind would be a guess.
            Err(death) => {
                known.sizes.remove(oid);
                deaths.push((*oid, death));
            }
        }
    }
    (known, deaths)
}

async fn send(
    results: &mpsc::Sender<Analysed>,
    id: ObjectId,
    outcome: Outcome,
    took: Duration,
) -> Result<(), Gone> {
    results.send(Analysed { id, outcome, took }).await.map_err(|_| Gone)
}

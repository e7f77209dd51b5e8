//! One task of some commits: look, lock, look again, analyse, write.
//!
//! The status of a commit is read before its lock is taken and again after, when its row is claimed.
//! Commits whose locks others hold are looked at again until they are done or free; a task that has
//! waited long enough for them is put off, which burns no attempt.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::locks::{Locks, Taken};
use super::unwritten::{Groups, Room};
use super::writer::{Tally, Writer};
use super::{GitHandlerOptions, GitParts, interrupted, leases_failed, results_failed};
use crate::domain::Failure;
use crate::handler::Run;
use crate::handler::git::analyst::analyse;
use crate::handler::git::mirror::Source;
use crate::handler::git::oid::ObjectId;
use crate::handler::git::results::{Claim, Place, ResultsError};

/// How often commits that others have are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Rounds in a row that may end without a result: their locks or fences went to others.
const IDLE_ROUNDS: u32 = 3;
/// What has to be given back when a run was interrupted is given this long.
const PARTING: Duration = Duration::from_secs(2);

/// A task at work.
pub(super) struct Batch<'a> {
    pub(super) parts: &'a GitParts,
    pub(super) options: &'a GitHandlerOptions,
    pub(super) source: &'a Source,
    pub(super) place: Place,
    pub(super) room: &'a Room,
    pub(super) run: &'a Run,
}

/// How a round ended.
enum End {
    /// All that was ours has a result, or is ours no more.
    Done,
    /// The run must stop.
    Interrupted,
    /// The results could not be written.
    Failed(ResultsError),
}

impl Batch<'_> {
    /// Does all of `commits`; answers what became of them.
    pub(super) async fn run(&self, mut commits: Vec<ObjectId>) -> Result<Value, Failure> {
        let count = commits.len();
        let mut tally = Tally::default();
        // A worker that died holds its locks for one lease.
        let patience = self.options.lease * 2;
        let mut last_progress = Instant::now();
        let mut idle_rounds = 0;
        loop {
            let results = &self.parts.stores.results;
            let known = results.terminal(self.place, &commits).await;
            let known = known.map_err(|error| results_failed(&error))?;
            commits.retain(|commit| !known.contains(commit));
            tally.known += known.len();
            if commits.is_empty() {
                break;
            }
            let taken = Locks::take(&self.parts.stores.leases, self.source.name(), &commits).await;
            let Taken { locks, wait } = taken.map_err(|error| leases_failed(&error))?;
            if locks.commits().is_empty() {
                let wait = wait.unwrap_or(LOOK_EVERY);
                self.wait(wait, last_progress + patience, commits.len()).await?;
                continue;
            }
            let settled = Box::pin(self.round(&locks, &mut tally)).await?;
            commits.retain(|commit| !settled.contains(commit));
            if !settled.is_empty() {
                (last_progress, idle_rounds) = (Instant::now(), 0);
                continue;
            }
            idle_rounds += 1;
            if idle_rounds > IDLE_ROUNDS {
                let message = format!("the locks of {} commits were lost again", commits.len());
                return Err(Failure::postponed(message, self.options.lease));
            }
        }
        match tally.first_failure {
            Some((commit, detail)) => Err(Failure::retry(format!(
                "{} of {count} commits could not be analysed; the first, {commit}: {detail}",
                tally.failed
            ))),
            None => Ok(json!({
                "commits": count,
                "analysed": tally.analysed,
                "refused": tally.refused,
                "known": tally.known,
            })),
        }
    }

    /// Waits for others who have the commits that are left.
    async fn wait(&self, most: Duration, patience: Instant, left: usize) -> Result<(), Failure> {
        if Instant::now() >= patience {
            let message = format!("other workers have the locks of {left} commits");
            return Err(Failure::postponed(message, most.min(self.options.lease)));
        }
        tokio::select! {
            biased;
            () = self.run.cancel.cancelled() => Err(interrupted()),
            () = tokio::time::sleep(most.min(LOOK_EVERY)) => Ok(()),
        }
    }

    /// With the locks in hand: claim, analyse, write. Answers which commits have a result; whatever
    /// happens, nothing is held afterwards.
    async fn round(&self, locks: &Locks, tally: &mut Tally) -> Result<HashSet<ObjectId>, Failure> {
        let commits = locks.commits();
        let results = &self.parts.stores.results;
        let claims = match results.claim(self.place, &commits, self.run.task.id.as_str()).await {
            Ok(claims) => claims,
            Err(error) => {
                locks.release_all().await;
                return Err(results_failed(&error));
            }
        };
        let mut writer = Writer {
            results,
            place: self.place,
            locks,
            open: claims.iter().map(|claim| (claim.id, *claim)).collect(),
            settled: HashSet::new(),
            tally,
        };
        // What is not ours now was finished between the two looks, and the next look counts it.
        let done: Vec<ObjectId> =
            commits.into_iter().filter(|commit| !writer.open.contains_key(commit)).collect();
        locks.release(done).await;
        let end = Box::pin(self.analyse(&claims, &mut writer)).await;
        let (open, settled) = (std::mem::take(&mut writer.open), writer.settled);
        self.part(locks, open).await;
        match end {
            End::Done => Ok(settled),
            End::Interrupted => Err(interrupted()),
            End::Failed(error) => Err(results_failed(&error)),
        }
    }

    /// Analyses and writes. When the run must stop, what is known by then is still written.
    async fn analyse(&self, claims: &[Claim], writer: &mut Writer<'_>) -> End {
        let commits: Vec<ObjectId> = claims.iter().map(|claim| claim.id).collect();
        let locks = writer.locks;
        let (sender, receiver) = mpsc::channel(1);
        let (weighed, groups) = Groups::channel();
        let GitParts { mirrors, engine, .. } = self.parts;
        let analysing = async move {
            // With the sender goes the word that there is no more to come.
            let sender = sender;
            tokio::select! {
                biased;
                () = self.run.cancel.cancelled() => End::Interrupted,
                () = analyse(&**mirrors, &**engine, self.source, &commits, &sender) => End::Done,
            }
        };
        // Each ends when the one before it does, or nobody takes what it has: the writer that fails
        // takes the groups along, and whoever analyses for it is to stop.
        let passing_on = self.room.pass_on(receiver, weighed);
        let writing = writer.run(groups);
        tokio::select! {
            biased;
            (end, (), written) = async { tokio::join!(analysing, passing_on, writing) } => match written {
                Ok(()) => end,
                Err(error) => End::Failed(error),
            },
            () = locks.keep(self.options.heartbeat) => End::Done,
        }
    }

    /// Gives back what has no result.
    async fn part(&self, locks: &Locks, open: HashMap<ObjectId, Claim>) {
        let open: Vec<Claim> = open.into_values().collect();
        let parting = async {
            if !open.is_empty() {
                // Who claims them next needs no word of ours.
                let _ = self.parts.stores.results.give_back(&open).await;
            }
            locks.release_all().await;
        };
        let _ = timeout(PARTING, parting).await;
    }
}

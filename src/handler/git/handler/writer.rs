//! Writes results as they come, several commits to a transaction.
//!
//! A commit that Postgres does not take, or not in time although it answers, fails alone: that counts,
//! while a Postgres that is away does not.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::slice;

use tokio::time::Instant;

use super::locks::Locks;
use super::unwritten::{Groups, Weighed};
use crate::handler::git::engine::Analysed;
use crate::handler::git::oid::ObjectId;
use crate::handler::git::outcome::Outcome;
use crate::handler::git::results::{Claim, Finished, Place, Results, ResultsError};

/// What became of the commits of a task.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Analysed now.
    pub(super) analysed: usize,
    /// Refused now, by name.
    pub(super) refused: BTreeMap<&'static str, usize>,
    /// Done or refused before.
    pub(super) known: usize,
    /// Not this time: how many, and what was said of the first.
    pub(super) failed: usize,
    pub(super) first_failure: Option<(ObjectId, String)>,
}

impl Tally {
    fn count(&mut self, commit: ObjectId, outcome: &Outcome) {
        match outcome {
            Outcome::Analysed(_) => self.analysed += 1,
            Outcome::Refused { reason, .. } => {
                *self.refused.entry(reason.as_str()).or_default() += 1;
            }
            Outcome::Failed { detail } => {
                self.failed += 1;
                self.first_failure.get_or_insert_with(|| (commit, detail.clone()));
            }
        }
    }
}

/// The writer of one round.
pub(super) struct Writer<'a> {
    pub(super) results: &'a Results,
    pub(super) place: Place,
    pub(super) locks: &'a Locks,
    /// What is ours and has no result yet.
    pub(super) open: HashMap<ObjectId, Claim>,
    /// What was written.
    pub(super) settled: HashSet<ObjectId>,
    pub(super) tally: &'a mut Tally,
}

impl Writer<'_> {
    /// Writes until there is no more to come.
    pub(super) async fn run(&mut self, mut groups: Groups) -> Result<(), ResultsError> {
        while let Some(group) = groups.next().await {
            self.write(&group).await?;
        }
        Ok(())
    }

    async fn write(&mut self, group: &[Weighed]) -> Result<(), ResultsError> {
        // Of those whose lock is another's by now, nothing is written.
        let finished: Vec<Finished<'_>> = group
            .iter()
            .filter(|one| self.locks.holds(&one.analysed.id))
            .filter_map(|Weighed { analysed, .. }| {
                let Analysed { id, outcome, took } = analysed;
                Some(Finished { claim: *self.open.get(id)?, outcome, took: *took })
            })
            .collect();
        let ids: Vec<ObjectId> = finished.iter().map(|one| one.claim.id).collect();
        if let Some(why) = self.attempt(&finished).await? {
            match &finished[..] {
                [one] => self.fail(one, why).await?,
                // One of them must not hold up the others.
                several => {
                    for one in several {
                        if let Some(why) = self.attempt(slice::from_ref(one)).await? {
                            self.fail(one, why).await?;
                        }
                    }
                }
            }
        }
        // What was not written had another fence: it is not ours to give back.
        self.open.retain(|id, _| !ids.contains(id));
        self.locks.release(ids).await;
        Ok(())
    }

    /// Writes all of them; or says why these cannot be written, if it is they.
    async fn attempt(&mut self, finished: &[Finished<'_>]) -> Result<Option<String>, ResultsError> {
        let asked = Instant::now();
        let error = match self.results.write(self.place, finished).await {
            Ok(written) => {
                self.note(finished, &written);
                return Ok(None);
            }
            Err(error) => error,
        };
        let is_theirs = match &error {
            ResultsError::Refused { .. } => true,
            ResultsError::Unavailable { .. } | ResultsError::Conflict { .. } => {
                // Late is also whoever asks a server that is silent.
                self.results.is_late(asked.elapsed()) && self.results.check().await.is_ok()
            }
            ResultsError::LoginRefused { .. } | ResultsError::Schema { .. } => false,
        };
        if !is_theirs {
            return Err(error);
        }
        let paths: usize = finished
            .iter()
            .filter_map(|one| one.outcome.analysis())
            .map(|it| it.changes.len())
            .sum();
        let took = asked.elapsed().as_secs_f64();
        Ok(Some(format!("{paths} changed paths not written after {took:.1} s: {error}")))
    }

    /// Notes that a commit could not be written.
    async fn fail(&mut self, one: &Finished<'_>, why: String) -> Result<(), ResultsError> {
        let failed = [Finished { outcome: &Outcome::failed(why), ..*one }];
        let written = self.results.write(self.place, &failed).await?;
        self.note(&failed, &written);
        Ok(())
    }

    fn note(&mut self, finished: &[Finished<'_>], written: &HashSet<i64>) {
        for one in finished.iter().filter(|one| written.contains(&one.claim.key)) {
            self.settled.insert(one.claim.id);
            self.tally.count(one.claim.id, one.outcome);
        }
    }
}

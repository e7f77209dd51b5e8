//! Writes results as they come, several commits to a transaction.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::locks::Locks;
use crate::handler::git::engine::Analysed;
use crate::handler::git::oid::ObjectId;
use crate::handler::git::outcome::Outcome;
use crate::handler::git::results::{Claim, Finished, Place, Results, ResultsError};

/// Commits of one transaction.
const CHUNK: usize = 64;
/// Changed paths after which a transaction is large enough.
const HEAVY: usize = 20_000;
/// What is there waits so long for more.
const GATHER: Duration = Duration::from_millis(50);

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
    pub(super) async fn run(
        &mut self,
        results: &mut mpsc::Receiver<Analysed>,
    ) -> Result<(), ResultsError> {
        let mut chunk = Vec::with_capacity(CHUNK);
        while results.recv_many(&mut chunk, CHUNK).await > 0 {
            let until = Instant::now() + GATHER;
            while chunk.len() < CHUNK && weight(&chunk) < HEAVY {
                let room = CHUNK - chunk.len();
                match timeout_at(until, results.recv_many(&mut chunk, room)).await {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => break,
                }
            }
            self.write(std::mem::take(&mut chunk)).await?;
        }
        Ok(())
    }

    async fn write(&mut self, chunk: Vec<Analysed>) -> Result<(), ResultsError> {
        let ids: Vec<ObjectId> = chunk.iter().map(|one| one.id).collect();
        let finished: Vec<Finished> = chunk
            .into_iter()
            .filter(|one| self.locks.holds(&one.id))
            .filter_map(|Analysed { id, outcome, took }| {
                Some(Finished { claim: self.open.remove(&id)?, outcome, took })
            })
            .collect();
        match self.results.write(self.place, &finished).await {
            Ok(written) => self.note(&finished, &written),
            // One value that is refused must not hold up the others.
            Err(ResultsError::Refused { .. }) => {
                for one in finished {
                    self.write_one(one).await?;
                }
            }
            Err(error) => {
                self.open.extend(finished.iter().map(|one| (one.claim.id, one.claim)));
                return Err(error);
            }
        }
        self.locks.release(ids).await;
        Ok(())
    }

    async fn write_one(&mut self, one: Finished) -> Result<(), ResultsError> {
        let one = match self.results.write(self.place, std::slice::from_ref(&one)).await {
            Ok(written) => {
                self.note(std::slice::from_ref(&one), &written);
                return Ok(());
            }
            Err(error @ ResultsError::Refused { .. }) => {
                Finished { outcome: Outcome::failed(error.to_string()), ..one }
            }
            Err(error) => return Err(error),
        };
        let written = self.results.write(self.place, std::slice::from_ref(&one)).await?;
        self.note(&[one], &written);
        Ok(())
    }

    fn note(&mut self, finished: &[Finished], written: &HashSet<i64>) {
        for one in finished.iter().filter(|one| written.contains(&one.claim.key)) {
            self.settled.insert(one.claim.id);
            self.tally.count(one.claim.id, &one.outcome);
        }
    }
}

fn weight(chunk: &[Analysed]) -> usize {
    chunk.iter().filter_map(|one| one.outcome.analysis()).map(|it| it.changes.len()).sum()
}

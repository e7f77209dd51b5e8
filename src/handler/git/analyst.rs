//! From a source and ids to outcomes: a mirror, the engine, and a second look where the first found
//! something missing or damaged.
//!
//! The usual case asks nothing but the engine. Only what is missing is fetched, and only what is
//! damaged costs a new clone; what is still so then is an outcome.

use tokio::sync::mpsc;

use super::engine::{Analysed, Engine};
use super::mirror::{Mirror, Mirrors, Source};
use super::oid::ObjectId;
use super::outcome::{Outcome, Refusal};

/// Results under way from the engine to whoever waits for them: each may be large.
const UNDER_WAY: usize = 1;

/// Analyses `commits` of `source` and sends exactly one result for each of them, a duplicate included
/// once. Returns when all were sent, or soon after the receiver is gone.
pub async fn analyse(
    mirrors: &dyn Mirrors,
    engine: &dyn Engine,
    source: &Source,
    commits: &[ObjectId],
    results: &mpsc::Sender<Analysed>,
) {
    // An error says that nobody waits for results.
    let _ = Analyst { mirrors, engine, source, results }.analyse(commits).await;
}

/// Nobody waits for results any more.
struct Gone;

/// What was found missing or damaged, with what was said of it.
#[derive(Default)]
struct Doubtful {
    missing: Vec<Analysed>,
    damaged: Vec<Analysed>,
}

struct Analyst<'a> {
    mirrors: &'a dyn Mirrors,
    engine: &'a dyn Engine,
    source: &'a Source,
    results: &'a mpsc::Sender<Analysed>,
}

impl Analyst<'_> {
    async fn analyse(&self, commits: &[ObjectId]) -> Result<(), Gone> {
        let mut mirror = match self.mirrors.open(self.source, &[]).await {
            Ok(mirror) => mirror,
            Err(error) => return self.send_all(commits, &error.outcome()).await,
        };
        let mut doubtful = self.attempt(&mirror, commits).await?;
        if !doubtful.missing.is_empty() {
            let missing = ids(&doubtful.missing);
            let first = mirror.generation().to_owned();
            drop(mirror);
            mirror = match self.mirrors.open(self.source, &missing).await {
                Ok(mirror) => mirror,
                Err(error) => {
                    self.send_all(&missing, &error.outcome()).await?;
                    // The damaged ones wait for another attempt as well.
                    let outcome = Outcome::failed(error.to_string());
                    return self.send_all(&ids(&doubtful.damaged), &outcome).await;
                }
            };
            let mut again = missing;
            if mirror.generation() != first {
                // What was damaged there may be whole here.
                again.extend(ids(&std::mem::take(&mut doubtful.damaged)));
            }
            let again = self.attempt(&mirror, &again).await?;
            self.send_these(again.missing).await?;
            doubtful.damaged.extend(again.damaged);
        }
        if doubtful.damaged.is_empty() {
            return Ok(());
        }
        self.mend(mirror, doubtful.damaged).await
    }

    /// Looks at the damaged ones in a mirror cloned anew.
    async fn mend(&self, mirror: Mirror, damaged: Vec<Analysed>) -> Result<(), Gone> {
        let wanted = ids(&damaged);
        let replaced = match self.mirrors.replace(self.source, mirror).await {
            Ok(mirror) => {
                drop(mirror);
                self.mirrors.open(self.source, &wanted).await
            }
            Err(error) => Err(error),
        };
        match replaced {
            Ok(mirror) => {
                let again = self.attempt(&mirror, &wanted).await?;
                self.send_these(again.missing).await?;
                self.send_these(again.damaged).await
            }
            // What was found damaged says more than that there is nothing better.
            Err(error) if error.outcome().refusal() == Some(Refusal::RepoCorrupt) => {
                self.send_these(damaged).await
            }
            Err(error) => self.send_all(&wanted, &error.outcome()).await,
        }
    }

    /// Passes on what is certain, and returns the rest.
    async fn attempt(&self, mirror: &Mirror, commits: &[ObjectId]) -> Result<Doubtful, Gone> {
        let (sender, mut receiver) = mpsc::channel::<Analysed>(UNDER_WAY);
        let work = async move { self.engine.analyse(mirror, commits, &sender).await };
        let pass_on = async {
            let mut doubtful = Doubtful::default();
            loop {
                let Ok(place) = self.results.reserve().await else {
                    // The engine notices that nobody takes what it sends.
                    receiver.close();
                    return Err(Gone);
                };
                let Some(analysed) = receiver.recv().await else { break };
                match analysed.outcome.refusal() {
                    Some(Refusal::CommitGone) => doubtful.missing.push(analysed),
                    Some(Refusal::RepoCorrupt) => doubtful.damaged.push(analysed),
                    Some(
                        Refusal::ShallowBoundary | Refusal::RepoUnreadable | Refusal::TooLarge,
                    )
                    | None => place.send(analysed),
                }
            }
            Ok(doubtful)
        };
        tokio::join!(work, pass_on).1
    }

    async fn send_these(&self, results: Vec<Analysed>) -> Result<(), Gone> {
        for analysed in results {
            self.results.send(analysed).await.map_err(|_| Gone)?;
        }
        Ok(())
    }

    async fn send_all(&self, commits: &[ObjectId], outcome: &Outcome) -> Result<(), Gone> {
        let mut seen = std::collections::HashSet::with_capacity(commits.len());
        for id in commits.iter().filter(|id| seen.insert(**id)) {
            let took = std::time::Duration::ZERO;
            let analysed = Analysed { id: *id, outcome: outcome.clone(), took };
            self.results.send(analysed).await.map_err(|_| Gone)?;
        }
        Ok(())
    }
}

fn ids(results: &[Analysed]) -> Vec<ObjectId> {
    results.iter().map(|analysed| analysed.id).collect()
}

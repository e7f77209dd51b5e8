//! From a source and ids to outcomes: a mirror, the engine, and a second look where the first found
//! something missing, cut off or damaged.
//!
//! The usual case asks nothing but the engine. What is missing, or lies where a shallow source ended,
//! is fetched; what is damaged costs a new clone, and that comes first, since a damaged mirror may be
//! in the way of a fetch. What is still so then is an outcome.

use tokio::sync::mpsc;

use super::engine::{Analysed, Engine};
use super::mirror::{Mirror, MirrorError, Mirrors, Source};
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

/// What was found, with what was said of it, and may be found otherwise at a second look.
#[derive(Default)]
struct Doubtful {
    /// Missing, or without a parent to compare with.
    absent: Vec<Analysed>,
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
        let mirror = match self.mirrors.open(self.source, &[]).await {
            Ok(mirror) => mirror,
            Err(error) => return self.send_all(commits, &error.outcome()).await,
        };
        let doubtful = self.attempt(&mirror, commits).await?;
        let absent = if doubtful.damaged.is_empty() {
            drop(mirror);
            doubtful.absent
        } else {
            self.mend(mirror, doubtful).await?
        };
        if absent.is_empty() {
            return Ok(());
        }
        let wanted = ids(&absent);
        let mirror = match self.fetched(&absent).await {
            Ok(mirror) => mirror,
            Err(error) => return self.send_all(&wanted, &error.outcome()).await,
        };
        let Doubtful { absent, damaged } = self.attempt(&mirror, &wanted).await?;
        self.send_these(absent).await?;
        if !damaged.is_empty() {
            self.mend(mirror, Doubtful { absent: Vec::new(), damaged }).await?;
        }
        Ok(())
    }

    /// The mirror with what is absent, if the source has it.
    async fn fetched(&self, absent: &[Analysed]) -> Result<Mirror, MirrorError> {
        // A commit where the mirror ends is there: only a fetch tells whether the source still ends there.
        let is_end = |it: &Analysed| it.outcome.refusal() == Some(Refusal::ShallowBoundary);
        if absent.iter().any(is_end) {
            drop(self.mirrors.refresh(self.source).await?);
        }
        self.mirrors.open(self.source, &ids(absent)).await
    }

    /// Looks at all that is doubtful in a mirror cloned anew. If there can be none, the damaged ones are
    /// refused, and those that are absent are handed back.
    async fn mend(&self, mirror: Mirror, doubtful: Doubtful) -> Result<Vec<Analysed>, Gone> {
        let mut wanted = ids(&doubtful.damaged);
        wanted.extend(ids(&doubtful.absent));
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
                self.send_these(again.absent).await?;
                self.send_these(again.damaged).await?;
            }
            // What was found damaged says more than that there is nothing better.
            Err(error) if error.outcome().refusal() == Some(Refusal::RepoCorrupt) => {
                self.send_these(doubtful.damaged).await?;
                return Ok(doubtful.absent);
            }
            Err(error) => self.send_all(&wanted, &error.outcome()).await?,
        }
        Ok(Vec::new())
    }

    /// Passes on what is certain, and returns the rest.
    async fn attempt(&self, mirror: &Mirror, commits: &[ObjectId]) -> Result<Doubtful, Gone> {
        let (sender, mut receiver) = mpsc::channel::<Analysed>(UNDER_WAY);
        let work = async move { self.engine.analyse(mirror, commits, &sender).await };
        let pass_on = async {
            let mut doubtful = Doubtful::default();
            while let Some(analysed) = receiver.recv().await {
                match analysed.outcome.refusal() {
                    Some(Refusal::CommitGone | Refusal::ShallowBoundary) => {
                        doubtful.absent.push(analysed);
                    }
                    Some(Refusal::RepoCorrupt) => doubtful.damaged.push(analysed),
                    Some(Refusal::RepoUnreadable | Refusal::TooLarge) | None => {
                        if self.results.send(analysed).await.is_err() {
                            // The engine notices that nobody takes what it sends.
                            receiver.close();
                            return Err(Gone);
                        }
                    }
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

//! Which dead letters a command is about: named ones, or all that match.

use std::collections::HashSet;

use crate::domain::QueueName;
use crate::ledger::{DeadLetterId, LetterFilter, PostgresLedger};

/// Letters in one transaction.
const PAGE: usize = 1_000;

/// Which letters
#[derive(Debug, clap::Args)]
pub(super) struct Selection {
    /// The letters' ids, as `dead list` shows them
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<DeadLetterId>,
    /// All of them
    #[arg(long)]
    pub(super) all: bool,
    /// With --all: only those of this queue
    #[arg(long, requires = "all")]
    queue: Option<QueueName>,
    /// With --all: only those with this reason
    #[arg(long, requires = "all", value_parser = super::reasons())]
    reason: Option<String>,
}

/// What became of the letters.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Those that the command was done to.
    pub(super) done: Vec<DeadLetterId>,
    /// The others, and why.
    pub(super) passed_over: Vec<(DeadLetterId, String)>,
}

impl Selection {
    /// Does something to each page of the letters, until a page holds nothing new. `requeued` asks
    /// for those already requeued too; `keep` may leave out more.
    pub(super) async fn each_page(
        &self,
        ledger: &PostgresLedger,
        requeued: bool,
        keep: impl Fn(&crate::ledger::DeadLetter) -> bool,
        mut act: impl AsyncFnMut(&[DeadLetterId], &mut Outcome) -> anyhow::Result<()>,
    ) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome::default();
        if !self.all {
            let mut seen = HashSet::new();
            let ids: Vec<DeadLetterId> =
                self.ids.iter().copied().filter(|id| seen.insert(*id)).collect();
            for page in ids.chunks(PAGE) {
                act(page, &mut outcome).await?;
            }
            return Ok(outcome);
        }
        let mut seen: HashSet<DeadLetterId> = HashSet::new();
        loop {
            let filter = LetterFilter {
                queue: self.queue.as_ref().map(ToString::to_string),
                reason: self.reason.clone(),
                requeued,
                limit: u32::try_from(PAGE.saturating_add(seen.len())).unwrap_or(u32::MAX),
            };
            let letters = ledger.letters(&filter).await?;
            let fresh: Vec<_> =
                letters.iter().filter(|letter| seen.insert(letter.id)).take(PAGE).collect();
            if fresh.is_empty() {
                return Ok(outcome);
            }
            let page: Vec<DeadLetterId> =
                fresh.into_iter().filter(|letter| keep(letter)).map(|letter| letter.id).collect();
            if !page.is_empty() {
                act(&page, &mut outcome).await?;
            }
        }
    }
}

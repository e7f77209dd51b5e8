//! Which dead letters a command is about: named ones, or all that match; and whether it is meant.

use std::collections::HashSet;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::domain::QueueName;
use crate::ledger::{DeadLetterId, LetterFilter, PostgresLedger};

/// Letters in one transaction, and read at once.
pub(super) const PAGE: usize = 1_000;

/// Which letters
#[derive(Debug, clap::Args)]
pub(super) struct Selection {
    /// The letters' ids, as `dead list` shows them
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<DeadLetterId>,
    /// All of them; at a terminal it asks first
    #[arg(long)]
    pub(super) all: bool,
    /// With --all: do not ask; needed where there is no terminal
    #[arg(long)]
    yes: bool,
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
    /// The letters: each once. With --all those at least so old, and if `requeued` those that were
    /// requeued already too.
    pub(super) async fn find(
        &self,
        ledger: &PostgresLedger,
        requeued: bool,
        age: Duration,
    ) -> anyhow::Result<Vec<DeadLetterId>> {
        if !self.all {
            let mut seen = HashSet::new();
            return Ok(self.ids.iter().copied().filter(|id| seen.insert(*id)).collect());
        }
        let filter = LetterFilter {
            queue: self.queue.as_ref().map(ToString::to_string),
            reason: self.reason.clone(),
            requeued,
            limit: u32::try_from(PAGE).unwrap_or(u32::MAX),
        };
        let mut all = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or_default();
            let page = ledger.letter_ids(&filter, age, after).await?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    /// Asks whether the command is meant for that many letters, where it is for all and nobody has
    /// said so yet.
    pub(super) fn confirm(&self, command: &str, count: usize) -> anyhow::Result<()> {
        if !self.all || self.yes || count == 0 {
            return Ok(());
        }
        let letters = if count == 1 { "letter" } else { "letters" };
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            bail!(
                "--all is about to {command} {count} dead {letters}: say --yes if that is meant, or \
                 --dry-run to see which; nothing was done"
            );
        }
        let mut terminal = io::stderr();
        write!(terminal, "{command} {count} dead {letters}? [y/N] ")?;
        terminal.flush()?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).context("failed to read the answer")?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            bail!("nothing was done");
        }
        Ok(())
    }
}

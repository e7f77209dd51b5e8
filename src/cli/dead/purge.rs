//! `queue-worker dead purge`: letters that nobody needs any more.

use std::collections::HashSet;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use super::selection::{Outcome, PAGE, Selection};
use crate::config::parse_duration;
use crate::ledger::{DeadLetterId, PostgresLedger};

/// Throw dead letters away
///
/// With their payloads and evidence. The rows of their tasks stay until they are old, so that a
/// duplicate of a task that failed is still recognised. A letter that waits to be put back into the
/// stream is passed over.
#[derive(Debug, clap::Args)]
pub(super) struct Purge {
    #[command(flatten)]
    selection: Selection,
    /// With --all: only those at least this old ("30d")
    #[arg(long, requires = "all", value_parser = parse_duration)]
    older_than: Option<Duration>,
    /// Say what would be thrown away, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object: purged (ids), passed_over (ids), dry_run
    #[arg(long)]
    json: bool,
}

impl Purge {
    pub(super) async fn run(
        self,
        ledger: &PostgresLedger,
        out: &mut impl Write,
    ) -> anyhow::Result<ExitCode> {
        let age = self.older_than.unwrap_or_default();
        let letters = self.selection.find(ledger, true, age).await?;
        if !self.dry_run {
            self.selection.confirm("purge", letters.len())?;
        }
        let mut outcome = Outcome::default();
        for page in letters.chunks(PAGE) {
            if self.dry_run {
                try_page(ledger, page, &mut outcome).await?;
            } else {
                purge_page(ledger, page, &mut outcome).await?;
            }
        }
        if self.json {
            let passed_over: Vec<_> = outcome.passed_over.iter().map(|(id, _)| id).collect();
            writeln!(
                out,
                "{}",
                json!({"purged": outcome.done, "passed_over": passed_over, "dry_run": self.dry_run})
            )?;
        } else {
            let word = if self.dry_run { "would purge" } else { "purged" };
            for id in &outcome.done {
                writeln!(out, "{word} {id}")?;
            }
            for (id, why) in &outcome.passed_over {
                writeln!(out, "passed over {id}: {why}")?;
            }
            if outcome.done.is_empty() && outcome.passed_over.is_empty() {
                writeln!(out, "no dead letters to purge")?;
            }
        }
        let good = self.selection.all || outcome.passed_over.is_empty();
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

async fn try_page(
    ledger: &PostgresLedger,
    page: &[DeadLetterId],
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    for &id in page {
        match ledger.letter(id).await? {
            Some(_) => outcome.done.push(id),
            None => outcome.passed_over.push((id, UNKNOWN.to_owned())),
        }
    }
    Ok(())
}

async fn purge_page(
    ledger: &PostgresLedger,
    page: &[DeadLetterId],
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let gone: HashSet<_> = ledger.purge(page).await?.into_iter().collect();
    for &id in page {
        if gone.contains(&id) {
            outcome.done.push(id);
        } else {
            outcome.passed_over.push((id, PASSED_OVER.to_owned()));
        }
    }
    Ok(())
}

const UNKNOWN: &str = "there is no such dead letter";
const PASSED_OVER: &str =
    "there is no such dead letter, or it waits to be put back into the stream";

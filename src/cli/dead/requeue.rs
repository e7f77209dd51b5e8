//! `queue-worker dead requeue`: back to work, and an account of what was not.
//!
//! A page of letters is requeued in one transaction. A task starts with no failures and no crashes;
//! a refused entry goes back into the stream as it was.

use std::collections::HashSet;
use std::io::Write;
use std::process::ExitCode;

use serde_json::json;

use super::super::text::rfc3339;
use crate::domain::QueueName;
use crate::ledger::{DeadLetterId, LetterFilter, PostgresLedger};

/// Letters in one transaction.
const PAGE: usize = 1_000;

/// Put dead letters back to work
///
/// A task becomes due at once, without failures and crashes, and a worker brings it back into the
/// stream. A refused entry goes back as it was, for instance after the queue allows more bytes.
/// Passed over are letters that were requeued before and those whose task has moved on. Exits with
/// 1 if a letter named by its id was passed over.
#[derive(Debug, clap::Args)]
#[command(override_usage = USAGE)]
pub(super) struct Requeue {
    /// The letters' ids, as `dead list` shows them
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<DeadLetterId>,
    /// All that were not requeued yet
    #[arg(long)]
    all: bool,
    /// With --all: only those of this queue
    #[arg(long, requires = "all")]
    queue: Option<QueueName>,
    /// With --all: only those with this reason
    #[arg(long, requires = "all", value_parser = super::reasons())]
    reason: Option<String>,
    /// Print one JSON object: requeued (ids), passed_over (id, why)
    #[arg(long)]
    json: bool,
}

const USAGE: &str = "\
queue-worker dead requeue [OPTIONS] <ID>...
       queue-worker dead requeue [OPTIONS] --all";

/// What became of the letters.
#[derive(Debug, Default)]
struct Outcome {
    requeued: Vec<DeadLetterId>,
    passed_over: Vec<(DeadLetterId, String)>,
}

impl Requeue {
    pub(super) async fn run(
        self,
        ledger: &PostgresLedger,
        out: &mut impl Write,
    ) -> anyhow::Result<ExitCode> {
        let mut outcome = Outcome::default();
        if self.all {
            self.requeue_all(ledger, &mut outcome).await?;
        } else {
            let mut seen = HashSet::new();
            let ids: Vec<DeadLetterId> =
                self.ids.iter().copied().filter(|id| seen.insert(*id)).collect();
            for page in ids.chunks(PAGE) {
                outcome.requeue(ledger, page).await?;
            }
        }
        self.tell(&outcome, out)?;
        let good = self.all || outcome.passed_over.is_empty();
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Pages of what is open, until a page holds nothing but what was passed over.
    async fn requeue_all(
        &self,
        ledger: &PostgresLedger,
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        let mut passed_over: HashSet<DeadLetterId> = HashSet::new();
        loop {
            let filter = LetterFilter {
                queue: self.queue.as_ref().map(ToString::to_string),
                reason: self.reason.clone(),
                requeued: false,
                limit: u32::try_from(PAGE.saturating_add(passed_over.len())).unwrap_or(u32::MAX),
            };
            let letters = ledger.letters(&filter).await?;
            let page: Vec<DeadLetterId> = letters
                .iter()
                .map(|letter| letter.id)
                .filter(|id| !passed_over.contains(id))
                .take(PAGE)
                .collect();
            if page.is_empty() {
                return Ok(());
            }
            outcome.requeue(ledger, &page).await?;
            passed_over = outcome.passed_over.iter().map(|(id, _)| *id).collect();
        }
    }

    fn tell(&self, outcome: &Outcome, out: &mut impl Write) -> anyhow::Result<()> {
        let Outcome { requeued, passed_over } = outcome;
        if self.json {
            let passed_over: Vec<_> =
                passed_over.iter().map(|(id, why)| json!({"id": id, "why": why})).collect();
            writeln!(out, "{}", json!({"requeued": requeued, "passed_over": passed_over}))?;
            return Ok(());
        }
        for id in requeued {
            writeln!(out, "requeued {id}")?;
        }
        for (id, why) in passed_over {
            writeln!(out, "passed over {id}: {why}")?;
        }
        if requeued.is_empty() && passed_over.is_empty() {
            writeln!(out, "no dead letters to requeue")?;
        }
        Ok(())
    }
}

impl Outcome {
    /// Requeues one page in one transaction.
    async fn requeue(
        &mut self,
        ledger: &PostgresLedger,
        page: &[DeadLetterId],
    ) -> anyhow::Result<()> {
        let done: HashSet<DeadLetterId> = ledger.requeue(page).await?.into_iter().collect();
        for &id in page {
            if done.contains(&id) {
                self.requeued.push(id);
            } else {
                self.passed_over.push((id, why(ledger, id).await?));
            }
        }
        Ok(())
    }
}

/// Why a letter was passed over.
async fn why(ledger: &PostgresLedger, id: DeadLetterId) -> anyhow::Result<String> {
    let Some(letter) = ledger.letter(id).await? else {
        return Ok("there is no such dead letter".to_owned());
    };
    if let Some(at) = letter.requeued_at_ms {
        return Ok(format!("it was requeued at {}", rfc3339(at)));
    }
    let Some(task_id) = letter.task_id else {
        return Ok("it belongs to no task".to_owned());
    };
    Ok(match ledger.task(&task_id).await? {
        Some(task) => format!("its task {task_id} is {} by now", task.status.as_str()),
        None => format!("its task {task_id} is not known any more"),
    })
}

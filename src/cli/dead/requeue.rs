//! `queue-worker dead requeue`: back to work, and an account of what was not.
//!
//! A page of letters is requeued in one transaction. A task starts with no failures and no crashes;
//! a refused entry goes back into the stream as it was.

use std::collections::HashSet;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use super::super::text::rfc3339;
use super::selection::{Outcome, PAGE, Selection};
use crate::ledger::{DeadLetterId, PostgresLedger, Status};

/// Put dead letters back to work
///
/// A task becomes due at once, without failures and crashes, and a worker brings it back into the
/// stream. A refused entry goes back as it was, for instance after the queue allows more bytes.
/// Passed over are letters that were requeued before, those whose task has moved on or has another
/// payload by now, and those of entries of which only a part was kept. Exits with 1 if a letter named by its id was passed over.
#[derive(Debug, clap::Args)]
pub(super) struct Requeue {
    #[command(flatten)]
    selection: Selection,
    /// Say what would be done and what is committed already, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object: requeued (ids), passed_over (id, why), dry_run
    #[arg(long)]
    json: bool,
}

impl Requeue {
    pub(super) async fn run(
        self,
        ledger: &PostgresLedger,
        out: &mut impl Write,
    ) -> anyhow::Result<ExitCode> {
        let letters = self.selection.find(ledger, false, Duration::ZERO).await?;
        if !self.dry_run {
            self.selection.confirm("requeue", letters.len())?;
        }
        let mut outcome = Outcome::default();
        for page in letters.chunks(PAGE) {
            let answer = if self.dry_run {
                ledger.would_requeue(page).await?
            } else {
                ledger.requeue(page).await?
            };
            let done: HashSet<DeadLetterId> = answer.into_iter().collect();
            for &id in page {
                if done.contains(&id) {
                    outcome.done.push(id);
                } else {
                    outcome.passed_over.push((id, why(ledger, id).await?));
                }
            }
        }
        self.tell(ledger, &outcome, out).await?;
        let good = self.selection.all || outcome.passed_over.is_empty();
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn tell(
        &self,
        ledger: &PostgresLedger,
        outcome: &Outcome,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let Outcome { done, passed_over } = outcome;
        if self.json {
            let passed_over: Vec<_> =
                passed_over.iter().map(|(id, why)| json!({"id": id, "why": why})).collect();
            let told =
                json!({"requeued": done, "passed_over": passed_over, "dry_run": self.dry_run});
            writeln!(out, "{told}")?;
            return Ok(());
        }
        for &id in done {
            if self.dry_run {
                writeln!(out, "would requeue {id}: {}", committed(ledger, id).await?)?;
            } else {
                writeln!(out, "requeued {id}")?;
            }
        }
        for (id, why) in passed_over {
            writeln!(out, "passed over {id}: {why}")?;
        }
        if done.is_empty() && passed_over.is_empty() {
            writeln!(out, "no dead letters to requeue")?;
        }
        Ok(())
    }
}

/// What is committed of a letter's task.
async fn committed(ledger: &PostgresLedger, id: DeadLetterId) -> anyhow::Result<String> {
    let letter = ledger.letter(id).await?;
    let Some(task_id) = letter.as_ref().and_then(|letter| letter.task_id.clone()) else {
        return Ok("nothing is committed, the entry was never run".to_owned());
    };
    if letter.is_some_and(|letter| letter.fields.is_some()) {
        return Ok("nothing is committed, the entry was never run".to_owned());
    }
    Ok(match ledger.task(&task_id).await? {
        Some(task) => format!(
            "its task {task_id} is {} after {} failures, last under fence {}; no transactional \
             effect is committed, external ones of those attempts may exist",
            task.status.as_str(),
            task.attempts,
            task.fence
        ),
        None => format!("its task {task_id} is not known any more"),
    })
}

/// Why a letter was passed over.
async fn why(ledger: &PostgresLedger, id: DeadLetterId) -> anyhow::Result<String> {
    let Some(letter) = ledger.letter(id).await? else {
        return Ok("there is no such dead letter".to_owned());
    };
    if let Some(at) = letter.requeued_at_ms {
        return Ok(format!("it was requeued at {}", rfc3339(at)));
    }
    if letter.is_cut() {
        return Ok("it holds only a part of an entry that was too large".to_owned());
    }
    let Some(task_id) = letter.task_id else {
        return Ok("it belongs to no task".to_owned());
    };
    Ok(match ledger.task(&task_id).await? {
        Some(task) if matches!(task.status, Status::Failed | Status::Dead) => {
            format!("its task {task_id} has another payload or kind by now: the id was used again")
        }
        Some(task) => format!("its task {task_id} is {} by now", task.status.as_str()),
        None => format!("its task {task_id} is not known any more"),
    })
}

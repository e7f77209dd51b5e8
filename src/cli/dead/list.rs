//! `queue-worker dead list`. Only reads.

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::super::table::{Side, Table};
use super::super::text::{one_line, rfc3339};
use crate::domain::QueueName;
use crate::ledger::{DeadLetter, LetterFilter, PostgresLedger};

/// Characters of a message in a list.
const MESSAGE_WIDTH: usize = 80;

/// List dead letters, newest first
#[derive(Debug, clap::Args)]
#[command(after_long_help = FIELDS)]
pub(super) struct List {
    /// Only those of this queue
    #[arg(long)]
    queue: Option<QueueName>,
    /// Only those with this reason
    #[arg(long, value_parser = super::reasons())]
    reason: Option<String>,
    /// Those too that were requeued already
    #[arg(long)]
    requeued: bool,
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    limit: u32,
    /// Print one JSON object for each letter, one a line
    #[arg(long)]
    json: bool,
}

const FIELDS: &str = "\
Fields of --json; null if there is none:
  id, created_at, requeued_at, queue, reason, task_id, kind, entry, message, status,
  attempts (failures recorded), crashes (in a row), worker";

impl List {
    pub(super) async fn run(
        self,
        ledger: &PostgresLedger,
        out: &mut impl Write,
    ) -> anyhow::Result<ExitCode> {
        let letters = ledger
            .letters(&LetterFilter {
                queue: self.queue.as_ref().map(ToString::to_string),
                reason: self.reason.clone(),
                requeued: self.requeued,
                limit: self.limit,
            })
            .await?;
        if self.json {
            letters
                .iter()
                .try_for_each(|letter| writeln!(out, "{}", Value::from(summary(letter))))?;
        } else if letters.is_empty() {
            writeln!(out, "no dead letters")?;
        } else {
            self.table(&letters).write(out)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn table(&self, letters: &[DeadLetter]) -> Table {
        let mut columns = vec![
            ("DEAD LETTER", Side::Left),
            ("SINCE", Side::Left),
            ("QUEUE", Side::Left),
            ("REASON", Side::Left),
            ("TASK", Side::Left),
            ("KIND", Side::Left),
            ("STATUS", Side::Left),
        ];
        if self.requeued {
            columns.push(("REQUEUED", Side::Left));
        }
        columns.push(("MESSAGE", Side::Left));
        let mut table = Table::new(&columns);
        for letter in letters {
            let mut cells = vec![
                letter.id.to_string(),
                rfc3339(letter.created_at_ms),
                letter.queue.clone(),
                letter.reason.clone(),
                letter.task_id.clone().unwrap_or_default(),
                letter.kind.clone().unwrap_or_default(),
                letter.status.clone().unwrap_or_default(),
            ];
            if self.requeued {
                cells.push(letter.requeued_at_ms.map(rfc3339).unwrap_or_default());
            }
            cells.push(one_line(&letter.message, MESSAGE_WIDTH));
            table.row(cells);
        }
        table
    }
}

/// A letter without its bytes.
pub(super) fn summary(letter: &DeadLetter) -> Map<String, Value> {
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("id", json!(letter.id));
    put("created_at", rfc3339(letter.created_at_ms).into());
    put("requeued_at", json!(letter.requeued_at_ms.map(rfc3339)));
    put("queue", json!(letter.queue));
    put("reason", json!(letter.reason));
    put("task_id", json!(letter.task_id));
    put("kind", json!(letter.kind));
    put("entry", json!(letter.entry));
    put("message", json!(letter.message));
    put("status", json!(letter.status));
    put("attempts", letter.attempts.into());
    put("crashes", letter.crashes.into());
    put("worker", json!(letter.worker));
    object
}

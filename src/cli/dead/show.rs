//! `queue-worker dead show`: one letter with its evidence and its bytes. Only reads.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Map, Value};

use super::super::table::write_facts;
use super::super::text::{insert_bytes, rfc3339, write_block};
use super::list::summary;
use crate::ledger::{DeadLetter, DeadLetterId, PostgresLedger};

/// Show a dead letter: why, the evidence, and the payload
///
/// Of an entry that was refused every field is kept, byte for byte, up to 8 MiB; of a larger one the
/// message tells what is missing, with length and SHA-256 of the whole. Exits with 1 if there is no such
/// letter.
#[derive(Debug, clap::Args)]
#[command(after_long_help = FIELDS)]
pub(super) struct Show {
    /// The letter's id, as `dead list` shows it
    id: DeadLetterId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the payload's bytes and nothing else
    #[arg(long, conflicts_with = "json")]
    payload: bool,
}

const FIELDS: &str = "\
Fields of --json: those of `dead list --json`, and
  tail     the last of what the task wrote to standard error, or of the response
  payload  of a task
  fields   of a refused entry: a list of objects with name and value, in the entry's order
What is not UTF-8 is called tail_hex, payload_hex, name_hex or value_hex, in hexadecimal digits.";

impl Show {
    pub(super) async fn run(
        self,
        ledger: &PostgresLedger,
        out: &mut impl Write,
    ) -> anyhow::Result<ExitCode> {
        let letter = ledger.letter(self.id).await?.with_context(|| {
            format!("there is no dead letter {}; `queue-worker dead list` shows all", self.id)
        })?;
        if self.payload {
            let payload = payload(&letter).context(
                "the refused entry has no field `payload`; without --payload all its fields are shown",
            )?;
            out.write_all(payload)?;
        } else if self.json {
            writeln!(out, "{}", details(&letter))?;
        } else {
            write_letter(out, &letter)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Names and values of a refused entry.
fn fields(letter: &DeadLetter) -> Option<impl Iterator<Item = (&[u8], &[u8])>> {
    let flat = letter.fields.as_ref()?;
    Some(flat.chunks_exact(2).map(|pair| (pair[0].as_slice(), pair[1].as_slice())))
}

fn payload(letter: &DeadLetter) -> Option<&[u8]> {
    match &letter.payload {
        Some(payload) => Some(payload),
        None => fields(letter)?.find(|(name, _)| *name == b"payload").map(|(_, value)| value),
    }
}

fn details(letter: &DeadLetter) -> Value {
    let mut object = summary(letter);
    insert_bytes(&mut object, "tail", letter.tail.as_deref());
    insert_bytes(&mut object, "payload", letter.payload.as_deref());
    let field = |(name, value): (&[u8], &[u8])| {
        let mut field = Map::new();
        insert_bytes(&mut field, "name", Some(name));
        insert_bytes(&mut field, "value", Some(value));
        Value::from(field)
    };
    let fields: Option<Vec<Value>> = fields(letter).map(|fields| fields.map(field).collect());
    object.insert("fields".to_owned(), fields.into());
    object.into()
}

fn write_letter(out: &mut impl Write, letter: &DeadLetter) -> io::Result<()> {
    write_facts(
        out,
        &[
            ("dead letter", Some(letter.id.to_string())),
            ("since", Some(rfc3339(letter.created_at_ms))),
            ("requeued", letter.requeued_at_ms.map(rfc3339)),
            ("queue", Some(letter.queue.clone())),
            ("task", letter.task_id.clone()),
            ("kind", letter.kind.clone()),
            ("entry", letter.entry.clone()),
            ("reason", Some(letter.reason.clone())),
            ("message", Some(letter.message.clone())),
            ("status", letter.status.clone()),
            ("failures", Some(letter.attempts.to_string())),
            ("crashes in a row", Some(letter.crashes.to_string())),
            ("worker", letter.worker.map(|worker| worker.to_string())),
        ],
    )?;
    if let Some(tail) = letter.tail.as_deref().filter(|tail| !tail.is_empty()) {
        writeln!(out)?;
        write_block(out, "its last words", tail, "--json shows all of it")?;
    }
    if let Some(payload) = &letter.payload {
        writeln!(out)?;
        write_block(out, "payload", payload, "--payload writes all of it")?;
    }
    for (name, value) in fields(letter).into_iter().flatten() {
        writeln!(out)?;
        let title = format!("field {}", crate::telemetry::escaped(&String::from_utf8_lossy(name)));
        write_block(out, &title, value, "--json shows all of it")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter() -> DeadLetter {
        DeadLetter {
            id: DeadLetterId::nil(),
            task_id: None,
            queue: "q".into(),
            kind: None,
            entry: Some("1-0".into()),
            reason: "malformed".into(),
            message: "no kind".into(),
            status: None,
            attempts: 0,
            crashes: 0,
            worker: None,
            created_at_ms: 0,
            requeued_at_ms: None,
            tail: None,
            payload: None,
            fields: None,
        }
    }

    #[test]
    fn the_payload_of_a_refused_entry_is_its_field() {
        assert_eq!(payload(&letter()), None);
        let fields = [b"x".to_vec(), b"payload".to_vec(), b"payload".to_vec(), vec![0, 255]];
        let entry = DeadLetter { fields: Some(fields.to_vec()), ..letter() };
        assert_eq!(payload(&entry), Some([0, 255].as_slice()));
        assert_eq!(details(&entry)["fields"][1]["value_hex"], "00ff");
        let task = DeadLetter { payload: Some(Vec::new()), ..letter() };
        assert_eq!(payload(&task), Some([].as_slice()));
    }
}

//! One line of a file of tasks: JSON with the fields of the producer contract.
//!
//! An unknown field is an error here, other than in the stream: a person's typing mistake is told.

use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use serde::Deserialize;

use crate::domain::{Kind, LockKey, TaskId};
use crate::queue::codec::NewTask;

/// One line of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    pub(super) task_id: Option<String>,
    kind: Option<String>,
    payload: Option<serde_json::Value>,
    payload_hex: Option<String>,
    lock_key: Option<String>,
    max_attempts: Option<u32>,
    timeout_ms: Option<u64>,
    not_before_ms: Option<i64>,
    traceparent: Option<String>,
}

impl Line {
    /// The task that it describes; with a new random id if it names none.
    pub(super) fn task(self, default_kind: Option<&Kind>) -> anyhow::Result<NewTask> {
        let kind = match (self.kind, default_kind) {
            (Some(kind), _) => Kind::new(&kind)?,
            (None, Some(kind)) => kind.clone(),
            (None, None) => bail!("`kind` is missing; add it, or give --kind for all"),
        };
        let payload = match (self.payload, self.payload_hex) {
            (Some(_), Some(_)) => bail!("both `payload` and `payload_hex`; keep one"),
            (Some(serde_json::Value::String(text)), None) => Bytes::from(text),
            (Some(value), None) => Bytes::from(serde_json::to_vec(&value)?),
            (None, Some(hex)) => unhex(&hex)?,
            (None, None) => bail!("`payload` is missing; an empty one is \"\""),
        };
        let mut task = NewTask::new(kind, payload);
        if let Some(id) = self.task_id {
            task.id = TaskId::new(&id)?;
        }
        task.lock_key = self.lock_key.map(|key| LockKey::new(&key)).transpose()?;
        task.max_attempts = self.max_attempts;
        task.timeout = self.timeout_ms.map(Duration::from_millis);
        task.not_before_ms = self.not_before_ms;
        task.traceparent = self.traceparent;
        Ok(task)
    }
}

fn unhex(text: &str) -> anyhow::Result<Bytes> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    match digits {
        Some(digits) if digits.len() % 2 == 0 => {
            Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
        }
        _ => bail!("`payload_hex` is not an even number of hexadecimal digits"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(line: &str) -> anyhow::Result<NewTask> {
        serde_json::from_str::<Line>(line)?.task(None)
    }

    #[test]
    fn payloads_are_text_json_or_bytes() {
        let payload = |line: &str| task(line).expect("a good line").payload;
        assert_eq!(payload(r#"{"kind":"k","payload":"é"}"#), "é".as_bytes());
        assert_eq!(payload(r#"{"kind":"k","payload":{"a":[1]}}"#), r#"{"a":[1]}"#.as_bytes());
        assert_eq!(payload(r#"{"kind":"k","payload_hex":"00fF"}"#), [0, 255].as_slice());
    }

    #[test]
    fn bad_lines_name_the_field() {
        for (line, named) in [
            (r#"{"payload":""}"#, "kind"),
            (r#"{"kind":"k"}"#, "payload"),
            (r#"{"kind":"k","payload":"","payload_hex":""}"#, "payload_hex"),
            (r#"{"kind":"k","payload_hex":"0"}"#, "payload_hex"),
            (r#"{"kind":"k","payload":"","task_id":""}"#, "task_id"),
            (r#"{"kind":"k","payload":"","atempts":3}"#, "atempts"),
        ] {
            let error = format!("{:#}", task(line).expect_err(line));
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}

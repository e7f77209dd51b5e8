//! Answers of Redis (RESP3, and what scripts return) as entries. Pure; values are moved, not copied.

use bytes::Bytes;
use redis::Value;

use crate::domain::{EntryId, RawEntry};

/// An entry as a stream command shows it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: EntryId,
    /// `None` if the entry is pending, but gone from the stream.
    pub(super) raw: Option<RawEntry>,
}

/// One page of `XAUTOCLAIM`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) cursor: EntryId,
    pub(super) entries: Vec<Found>,
    /// Whether Redis 6.2 showed entries that the stream has lost.
    pub(super) has_lost: bool,
}

/// The answer of `XREADGROUP` for one stream: a map, or nothing.
pub(super) fn of_stream(answer: Value) -> Result<Vec<Found>, String> {
    match answer {
        Value::Nil => Ok(Vec::new()),
        Value::Map(streams) => match streams.into_iter().next() {
            Some((_, value)) => Ok(entries(value)?.0),
            None => Ok(Vec::new()),
        },
        other => Err(unexpected("a map of streams", &other)),
    }
}

/// A list of entries, and whether nameless lost ones were among them.
pub(super) fn entries(answer: Value) -> Result<(Vec<Found>, bool), String> {
    let mut has_lost = false;
    let mut found = Vec::new();
    for value in list(answer)? {
        match value {
            Value::Nil => has_lost = true,
            value => found.push(entry(value)?),
        }
    }
    Ok((found, has_lost))
}

/// The answer of `XAUTOCLAIM`: cursor, entries, and from Redis 7 on the ids of lost ones.
pub(super) fn page(answer: Value) -> Result<Page, String> {
    let mut parts = list(answer)?.into_iter();
    let (Some(cursor), Some(claimed)) = (parts.next(), parts.next()) else {
        return Err("a cursor and entries are missing".into());
    };
    let cursor = id(&cursor)?;
    let (entries, has_lost) = entries(claimed)?;
    Ok(Page { cursor, entries, has_lost })
}

/// The id of the first line of a long `XPENDING`, if there is one.
pub(super) fn first_pending(answer: Value) -> Result<Option<EntryId>, String> {
    let Some(line) = list(answer)?.into_iter().next() else { return Ok(None) };
    id(&list(line)?.into_iter().next().unwrap_or_default()).map(Some)
}

/// An entry id.
pub(super) fn id(answer: &Value) -> Result<EntryId, String> {
    match answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| unexpected("an entry id", answer)),
        Value::SimpleString(text) => text.parse().map_err(|_| unexpected("an entry id", answer)),
        _ => Err(unexpected("an entry id", answer)),
    }
}

/// A list of integers, as scripts answer.
pub(super) fn numbers(answer: Value) -> Result<Vec<i64>, String> {
    list(answer)?
        .into_iter()
        .map(|value| match value {
            Value::Int(number) => Ok(number),
            other => Err(unexpected("a number", &other)),
        })
        .collect()
}

fn entry(answer: Value) -> Result<Found, String> {
    let mut parts = list(answer)?.into_iter();
    let id = id(&parts.next().unwrap_or_default())?;
    let raw = match parts.next().unwrap_or_default() {
        Value::Nil => None,
        fields => Some(raw_entry(fields)?),
    };
    Ok(Found { id, raw })
}

fn raw_entry(answer: Value) -> Result<RawEntry, String> {
    let flat = list(answer)?;
    let mut fields = Vec::with_capacity(flat.len() / 2);
    let mut flat = flat.into_iter();
    while let (Some(name), Some(value)) = (flat.next(), flat.next()) {
        fields.push((bytes(name)?, bytes(value)?));
    }
    Ok(RawEntry { fields })
}

fn bytes(answer: Value) -> Result<Bytes, String> {
    match answer {
        Value::BulkString(bytes) => Ok(bytes.into()),
        Value::SimpleString(text) => Ok(text.into()),
        other => Err(unexpected("a string", &other)),
    }
}

pub(super) fn list(answer: Value) -> Result<Vec<Value>, String> {
    match answer {
        Value::Array(items) => Ok(items),
        other => Err(unexpected("a list", &other)),
    }
}

/// Names the kind of the value only: its content may be a payload.
fn unexpected(wanted: &str, found: &Value) -> String {
    let found = match found {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) => "a string",
        Value::Array(_) => "a list",
        Value::Map(_) => "a map",
        _ => "something else",
    };
    format!("unexpected answer: {found} instead of {wanted}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_stream_with_a_live_and_a_lost_entry() {
        let answer = Value::Map(vec![(
            text("qw:{q}:tasks"),
            Value::Array(vec![
                Value::Array(vec![text("5-1"), Value::Array(vec![text("k"), text("v")])]),
                Value::Array(vec![text("5-2"), Value::Nil]),
            ]),
        )]);
        let found = of_stream(answer).expect("well-formed");
        assert_eq!(found[0].id, EntryId { ms: 5, seq: 1 });
        assert_eq!(found[0].raw.as_ref().map(RawEntry::bytes), Some(2));
        assert_eq!(found[1], Found { id: EntryId { ms: 5, seq: 2 }, raw: None });
        assert_eq!(of_stream(Value::Nil), Ok(Vec::new()));
    }

    #[test]
    fn a_page_of_redis_6_2_with_lost_entries() {
        let answer = Value::Array(vec![text("0-0"), Value::Array(vec![Value::Nil])]);
        let page = page(answer).expect("well-formed");
        assert!(page.has_lost && page.entries.is_empty());
    }

    #[test]
    fn the_first_pending_entry_has_an_id() {
        let line = Value::Array(vec![text("5-1"), text("worker"), Value::Int(9), Value::Int(1)]);
        let first = first_pending(Value::Array(vec![line]));
        assert_eq!(first, Ok(Some(EntryId { ms: 5, seq: 1 })));
        assert_eq!(first_pending(Value::Array(Vec::new())), Ok(None));
        assert!(first_pending(Value::Array(vec![text("5-1")])).is_err());
    }

    #[test]
    fn errors_do_not_repeat_content() {
        let error = of_stream(text("secret payload")).expect_err("not a map");
        assert!(!error.contains("secret"), "{error}");
    }
}

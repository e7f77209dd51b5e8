//! The wire format of a task: the fields of a stream entry. Pure: bytes in, value or refusal out.
//!
//! | field | |
//! | --- | --- |
//! | `task_id` | required: the idempotency key, at most 255 bytes |
//! | `kind` | required: which handler runs it |
//! | `payload` | required, may be empty: opaque bytes |
//! | `lock_key` | the shared resource that at most one task works on at a time; none of the queue's own keys |
//! | `max_attempts` | 1 to 1000 |
//! | `timeout_ms` | 1 to 7 days |
//! | `not_before_ms` | milliseconds since the epoch, up to the year 9999 |
//! | `traceparent` | W3C trace context, handed on as it is |
//! | `version` | `1`, which is also what its absence means |
//!
//! An optional field that is there but empty counts as absent. Fields of other names are ignored,
//! so that a producer may be newer than the worker; a known field that is there twice is refused.

use std::time::Duration;

use bytes::Bytes;

use crate::domain::{
    Delivery, IdError, Kind, LockKey, Malformed, MalformedReason, PayloadHash, RawEntry, Task,
    TaskId,
};

/// The version of the wire format that this program reads and writes.
pub const VERSION: u64 = 1;
/// The most attempts that a task may ask for.
pub const MAX_ATTEMPTS: u64 = 1000;
/// The longest time limit that a task may ask for.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);
/// The last millisecond of the year 9999.
pub const MAX_NOT_BEFORE_MS: u64 = 253_402_300_799_999;
/// The longest `traceparent`; version 00 of the standard has 55 bytes.
pub const MAX_TRACEPARENT: usize = 128;

const NAMES: [&str; 9] = [
    "task_id",
    "kind",
    "payload",
    "lock_key",
    "max_attempts",
    "timeout_ms",
    "not_before_ms",
    "traceparent",
    "version",
];

/// Reads the task that an entry describes. `max_payload` is in bytes.
pub fn decode(delivery: &Delivery, max_payload: usize) -> Result<Task, Malformed> {
    let [id, kind, payload, lock_key, attempts, timeout, not_before, trace, version] =
        known_fields(&delivery.raw)?;
    if let Some(found) = optional(version) {
        number("version", found, VERSION, VERSION).map_err(|_| {
            malformed(format!("version {} is not supported, only {VERSION} is", excerpt(found)))
        })?;
    }
    let id = TaskId::from_bytes(required("task_id", id)?).map_err(|error| refused(&error))?;
    let kind = Kind::from_bytes(required("kind", kind)?).map_err(|error| refused(&error))?;
    let payload = required("payload", payload)?;
    if payload.len() > max_payload {
        return Err(Malformed {
            reason: MalformedReason::Oversized,
            message: format!("payload has {} bytes, more than {max_payload}", payload.len()),
        });
    }
    let lock_key = optional(lock_key).map(resource).transpose()?;
    let max_attempts = optional(attempts)
        .map(|value| number("max_attempts", value, 1, MAX_ATTEMPTS))
        .transpose()?
        .and_then(|value| u32::try_from(value).ok());
    let longest = u64::try_from(MAX_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
    let timeout = optional(timeout)
        .map(|value| number("timeout_ms", value, 1, longest))
        .transpose()?
        .map(Duration::from_millis);
    let not_before_ms = optional(not_before)
        .map(|value| number("not_before_ms", value, 0, MAX_NOT_BEFORE_MS))
        .transpose()?
        .and_then(|value| i64::try_from(value).ok());
    let traceparent = optional(trace).map(traceparent).transpose()?;
    let hash = PayloadHash::of(&kind, payload, lock_key.as_ref());
    Ok(Task {
        id,
        queue: delivery.queue.clone(),
        kind,
        payload: payload.clone(),
        lock_key,
        max_attempts,
        timeout,
        not_before_ms,
        traceparent,
        hash,
    })
}

/// The values of the known fields, in the order of [`NAMES`].
fn known_fields(raw: &RawEntry) -> Result<[Option<&Bytes>; NAMES.len()], Malformed> {
    let mut values = [None; NAMES.len()];
    for (name, value) in &raw.fields {
        let Some(at) = NAMES.iter().position(|known| known.as_bytes() == &name[..]) else {
            continue;
        };
        if values[at].replace(value).is_some() {
            return Err(malformed(format!("{} is there twice", NAMES[at])));
        }
    }
    Ok(values)
}

fn required<'a>(name: &str, value: Option<&'a Bytes>) -> Result<&'a Bytes, Malformed> {
    value.ok_or_else(|| malformed(format!("{name} is missing")))
}

fn optional(value: Option<&Bytes>) -> Option<&Bytes> {
    value.filter(|value| !value.is_empty())
}

/// A decimal number without sign, space or fraction.
fn number(name: &str, value: &[u8], min: u64, max: u64) -> Result<u64, Malformed> {
    std::str::from_utf8(value)
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| {
            malformed(format!("{name} is {}, not a number from {min} to {max}", excerpt(value)))
        })
}

fn resource(value: &Bytes) -> Result<LockKey, Malformed> {
    let key = LockKey::from_bytes(value).map_err(|error| refused(&error))?;
    match key.reserved() {
        None => Ok(key),
        Some(prefix) => Err(malformed(format!(
            "lock_key begins with {prefix:?}, as keys of the queue itself do; give it a prefix of \
             its own"
        ))),
    }
}

fn traceparent(value: &Bytes) -> Result<String, Malformed> {
    if value.len() > MAX_TRACEPARENT {
        let len = value.len();
        return Err(malformed(format!("traceparent has {len} bytes, more than {MAX_TRACEPARENT}")));
    }
    match std::str::from_utf8(value) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(text.to_owned()),
        _ => Err(malformed("traceparent contains something else than printable ASCII".into())),
    }
}

fn refused(error: &IdError) -> Malformed {
    malformed(error.to_string())
}

fn malformed(message: String) -> Malformed {
    Malformed { reason: MalformedReason::Malformed, message }
}

/// The beginning of a foreign value, safe to show.
fn excerpt(value: &[u8]) -> String {
    const SHOWN: usize = 32;
    let shown = value[..value.len().min(SHOWN)].escape_ascii();
    if value.len() > SHOWN { format!("\"{shown}…\"") } else { format!("\"{shown}\"") }
}

/// A task to be enqueued: what a producer says. Its id is a new UUID v7 unless it is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// The idempotency key.
    pub id: TaskId,
    /// Which handler runs it.
    pub kind: Kind,
    /// Opaque bytes for the handler.
    pub payload: Bytes,
    /// The shared resource, if the task names one.
    pub lock_key: Option<LockKey>,
    /// Overrides the handler's number of attempts.
    pub max_attempts: Option<u32>,
    /// Overrides the handler's time limit.
    pub timeout: Option<Duration>,
    /// Not to be run before this wall-clock time, in milliseconds since the epoch.
    pub not_before_ms: Option<i64>,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

impl NewTask {
    /// A task of this kind with a new id and no options.
    pub fn new(kind: Kind, payload: impl Into<Bytes>) -> Self {
        let id = TaskId::new(&uuid::Uuid::now_v7().to_string()).expect("a UUID is a valid task id");
        Self {
            id,
            kind,
            payload: payload.into(),
            lock_key: None,
            max_attempts: None,
            timeout: None,
            not_before_ms: None,
            traceparent: None,
        }
    }

    /// The same task with an id of the producer's choice.
    #[must_use]
    pub fn with_id(mut self, id: TaskId) -> Self {
        self.id = id;
        self
    }

    /// The same task, working on a shared resource.
    #[must_use]
    pub fn with_lock_key(mut self, key: LockKey) -> Self {
        self.lock_key = Some(key);
        self
    }

    /// The entry that says so.
    pub fn encode(&self) -> RawEntry {
        let mut fields = vec![
            (Bytes::from_static(b"task_id"), Bytes::copy_from_slice(self.id.as_str().as_bytes())),
            (Bytes::from_static(b"kind"), Bytes::copy_from_slice(self.kind.as_str().as_bytes())),
            (Bytes::from_static(b"payload"), self.payload.clone()),
        ];
        let mut option = |name: &'static str, value: Option<String>| {
            fields.extend(value.map(|value| (Bytes::from_static(name.as_bytes()), value.into())));
        };
        option("lock_key", self.lock_key.as_ref().map(|key| key.as_str().to_owned()));
        option("max_attempts", self.max_attempts.map(|value| value.to_string()));
        option("timeout_ms", self.timeout.map(|value| value.as_millis().to_string()));
        option("not_before_ms", self.not_before_ms.map(|value| value.to_string()));
        option("traceparent", self.traceparent.clone());
        RawEntry { fields }
    }
}

#[cfg(test)]
mod tests;

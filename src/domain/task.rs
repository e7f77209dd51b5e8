//! A task, and the stream entry that brought it.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::ids::{EntryId, Kind, LockKey, QueueName, TaskId};

/// SHA-256 over kind, payload and lock key, each with its length: the same id with another hash is
/// another task, and is refused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PayloadHash(pub [u8; 32]);

impl PayloadHash {
    /// The hash of what a task *is*; its delivery options do not count.
    pub fn of(kind: &Kind, payload: &[u8], lock_key: Option<&LockKey>) -> Self {
        use sha2::{Digest, Sha256};
        let mut hasher = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hasher.update((bytes.len() as u64).to_be_bytes());
            hasher.update(bytes);
        };
        part(kind.as_str().as_bytes());
        part(payload);
        part(lock_key.map_or(b"", |key| key.as_str().as_bytes()));
        Self(hasher.finalize().into())
    }
}

impl fmt::Debug for PayloadHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A unit of work, decoded and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The idempotency key, unique over all queues.
    pub id: TaskId,
    /// The queue that it came through.
    pub queue: QueueName,
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
    /// W3C Trace Context `traceparent`, handed to the handler as it is.
    pub traceparent: Option<String>,
    /// See [`PayloadHash`].
    pub hash: PayloadHash,
}

impl Task {
    /// The name of the lock that covers the task: `lock:task:ID`, or its lock key as it is.
    pub fn lock_name(&self) -> String {
        match &self.lock_key {
            Some(key) => key.as_str().to_owned(),
            None => format!("lock:task:{}", self.id),
        }
    }

    /// The fields of a stream entry that brings this task, in the form that producers use. A
    /// `not_before_ms` is left out where it is `None`, so that a promoted task does not wait again.
    pub fn to_raw(&self) -> RawEntry {
        let owned = |name: &'static str, value: String| {
            (Bytes::from_static(name.as_bytes()), Bytes::from(value))
        };
        let mut fields = vec![
            owned("version", "1".to_owned()),
            owned("task_id", self.id.as_str().to_owned()),
            owned("kind", self.kind.as_str().to_owned()),
            (Bytes::from_static(b"payload"), self.payload.clone()),
        ];
        fields.extend(self.lock_key.as_ref().map(|key| owned("lock_key", key.as_str().to_owned())));
        fields.extend(self.max_attempts.map(|limit| owned("max_attempts", limit.to_string())));
        fields.extend(
            self.timeout.map(|timeout| owned("timeout_ms", timeout.as_millis().to_string())),
        );
        fields.extend(self.not_before_ms.map(|ms| owned("not_before_ms", ms.to_string())));
        fields.extend(self.traceparent.as_ref().map(|trace| owned("traceparent", trace.clone())));
        RawEntry { fields }
    }
}

/// How an entry reached this worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Never delivered before.
    Fresh,
    /// Delivered before, to a worker that died or gave it back, or to us without our seeing it.
    Reclaimed,
}

/// The field and value pairs of a stream entry, as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawEntry {
    /// In the order of the entry; a name may be there twice.
    pub fields: Vec<(Bytes, Bytes)>,
}

impl RawEntry {
    /// The size of all names and values, in bytes.
    pub fn bytes(&self) -> usize {
        self.fields.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

/// An entry of the stream in our hands.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The queue that it came through.
    pub queue: QueueName,
    /// Its id in the stream.
    pub entry: EntryId,
    /// How it came.
    pub origin: Origin,
    /// What it says.
    pub raw: RawEntry,
}

/// Why an entry can never be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MalformedReason {
    /// A field is missing, of the wrong form, or there twice.
    Malformed,
    /// The payload is larger than the queue allows.
    Oversized,
    /// The same id was used before for another kind, payload or lock key.
    Refused,
}

impl MalformedReason {
    /// The word stored with the dead letter.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Oversized => "oversized",
            Self::Refused => "refused",
        }
    }
}

/// An entry that goes to the dead letters at once, with its bytes exact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// Which kind of refusal.
    pub reason: MalformedReason,
    /// One sentence: which field, and what is wrong with it.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promoted_task_does_not_say_when_it_was_due() {
        let kind = Kind::new("greet").unwrap();
        let payload = Bytes::from_static(b"\0\xff");
        let mut task = Task {
            id: TaskId::new("a").unwrap(),
            queue: QueueName::new("default").unwrap(),
            hash: PayloadHash::of(&kind, &payload, None),
            kind,
            payload,
            lock_key: None,
            max_attempts: None,
            timeout: None,
            not_before_ms: None,
            traceparent: None,
        };
        let names = |task: &Task| {
            let fields = task.to_raw().fields;
            fields.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
        };
        let always: Vec<String> = names(&task);
        assert_eq!(always, ["version", "task_id", "kind", "payload"]);
        task.lock_key = Some(LockKey::new("repo").unwrap());
        task.max_attempts = Some(3);
        task.timeout = Some(Duration::from_secs(2));
        task.not_before_ms = Some(7);
        let all: Vec<String> = names(&task);
        assert_eq!(all[4..], ["lock_key", "max_attempts", "timeout_ms", "not_before_ms"]);
        let timeout = (Bytes::from_static(b"timeout_ms"), Bytes::from_static(b"2000"));
        assert!(task.to_raw().fields.contains(&timeout));
    }
}

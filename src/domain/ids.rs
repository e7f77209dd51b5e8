//! Names and ids, checked at the edge.
//!
//! A value of one of these types is valid UTF-8, non-empty, at most 255 bytes long and free of
//! control characters, so that no later layer has to ask again: Postgres `text` refuses NUL, and a
//! newline in an id would forge a log line.

use std::fmt;
use std::sync::Arc;

/// Why a name or id was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Nothing in it.
    #[error("{0} is empty")]
    Empty(&'static str),
    /// Longer than the limit, in bytes.
    #[error("{what} has {len} bytes, more than {max}")]
    TooLong {
        /// Which field.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// Not valid UTF-8.
    #[error("{0} is not valid UTF-8")]
    NotUtf8(&'static str),
    /// A character that the field does not allow.
    #[error("{what} contains {found:?}, which is not allowed there")]
    Forbidden {
        /// Which field.
        what: &'static str,
        /// The first character refused.
        found: char,
    },
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, max = $max:literal, allow = $allow:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The longest value, in bytes.
            pub const MAX_BYTES: usize = $max;

            /// Checks and wraps a string.
            pub fn new(text: &str) -> Result<Self, IdError> {
                if text.is_empty() {
                    return Err(IdError::Empty($what));
                }
                if text.len() > Self::MAX_BYTES {
                    return Err(IdError::TooLong { what: $what, len: text.len(), max: Self::MAX_BYTES });
                }
                let allow: fn(char) -> bool = $allow;
                match text.chars().find(|c| !allow(*c)) {
                    Some(found) => Err(IdError::Forbidden { what: $what, found }),
                    None => Ok(Self(text.into())),
                }
            }

            /// Checks and wraps bytes as they came from the stream.
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, IdError> {
                Self::new(std::str::from_utf8(bytes).map_err(|_| IdError::NotUtf8($what))?)
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;

            fn from_str(s: &str) -> Result<Self, IdError> {
                Self::new(s)
            }
        }
    };
}

text_id!(
    /// The idempotency key of a task, unique over all queues.
    TaskId, "task_id", max = 255, allow = |c| !c.is_control()
);
text_id!(
    /// The name of a queue: letters, digits, `.`, `_`, `-` and `:`.
    QueueName, "queue name", max = 128,
    allow = |c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':')
);
text_id!(
    /// The kind of a task: which handler runs it.
    Kind, "kind", max = 255, allow = |c| !c.is_control()
);
text_id!(
    /// The name of a shared resource that at most one task works on at a time.
    LockKey, "lock_key", max = 255, allow = |c| !c.is_control()
);

impl LockKey {
    /// What the names of keys in Redis begin with that are not for lock keys: the streams with all
    /// that belongs to them, and the locks of single tasks.
    pub const RESERVED: [&str; 2] = ["qw:", "lock:"];

    /// The reserved beginning, if the key has one: its lock would be a key of somebody else.
    pub fn reserved(&self) -> Option<&'static str> {
        Self::RESERVED.into_iter().find(|prefix| self.as_str().starts_with(prefix))
    }
}

/// The id of an entry in a Redis stream: milliseconds and a sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Milliseconds, by the clock of the Redis that took the entry.
    pub ms: u64,
    /// The sequence within that millisecond.
    pub seq: u64,
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl std::str::FromStr for EntryId {
    type Err = IdError;

    fn from_str(s: &str) -> Result<Self, IdError> {
        let bad = |found| IdError::Forbidden { what: "stream entry id", found };
        let (ms, seq) = s.split_once('-').ok_or(IdError::Empty("stream entry id"))?;
        Ok(Self {
            ms: ms.parse().map_err(|_| bad(ms.chars().next().unwrap_or('-')))?,
            seq: seq.parse().map_err(|_| bad(seq.chars().next().unwrap_or('-')))?,
        })
    }
}

/// One start of one worker process: a fresh UUID each time, so that what an earlier process left
/// pending is never mistaken for our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub uuid::Uuid);

impl WorkerId {
    /// A new random id.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4())
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

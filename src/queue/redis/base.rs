//! What all parts of the queue share: the link, our name, the names in Redis, one answer per group.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisWrite, Value};

use super::super::QueueError;
use crate::connection::{RedisConnection, RedisError, RedisLink};
use crate::domain::{EntryId, QueueName};

/// The consumer group of all workers.
pub(super) const GROUP: &str = "qw";

/// The consumer that holds what was given back; written in `give_back.lua` and
/// `reap_consumers.lua` too.
pub(super) const NOBODY: &str = "given-back";

/// How often a command is tried again after the consumer group was found missing and made.
pub(super) const GROUP_TRIES: usize = 3;

/// The slowest that entries may come in, in bytes a second, half of what a link of 1 Gbit/s carries:
/// with one deadline for all sizes, a large payload would never arrive.
const SLOWEST: u32 = 50_000_000;

/// The stream of a queue. The braces are a hash tag: all keys of a queue live in one slot.
pub(super) fn stream_key(queue: &QueueName) -> String {
    format!("qw:{{{queue}}}:tasks")
}

/// The pattern of all streams.
pub(super) const ANY_STREAM: &str = "qw:{*}:tasks";

/// The queue of a stream's key, if it is one of ours.
pub(super) fn queue_of(key: &[u8]) -> Option<QueueName> {
    let name = std::str::from_utf8(key).ok()?.strip_prefix("qw:{")?.strip_suffix("}:tasks")?;
    QueueName::new(name).ok()
}

/// Shared by the parts. Cheap to clone.
#[derive(Clone)]
pub(super) struct Base {
    pub(super) link: RedisLink,
    pub(super) consumer: Arc<str>,
    pub(super) min_idle: Duration,
    pub(super) max_payload: usize,
}

impl Base {
    /// Starts the arguments of a script on one stream: its key, the group, our name.
    pub(super) fn script_args(&self, cmd: &mut Cmd, queue: &QueueName) {
        cmd.arg(1).arg(stream_key(queue)).arg(GROUP).arg(&*self.consumer);
    }

    /// Creates the consumer group (and the stream) where it is missing; from 0, so that entries
    /// added before it are delivered too.
    pub(super) async fn create_group(&self, queue: &QueueName) -> Result<(), QueueError> {
        let mut cmd = redis::cmd("XGROUP");
        cmd.arg("CREATE").arg(stream_key(queue)).arg(GROUP).arg("0").arg("MKSTREAM");
        match self.link.query(&cmd, "XGROUP CREATE").await {
            Err(RedisError::Refused { message, .. }) if message.contains("BUSYGROUP") => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// An answer that this program does not understand.
    pub(super) fn misread(&self, command: &'static str) -> impl FnOnce(String) -> QueueError {
        let address = self.link.address().to_owned();
        move |message| RedisError::Refused { address, command, message }
    }

    /// How much longer than another a command may take that answers with so many entries.
    pub(super) fn patience(&self, entries: usize) -> Duration {
        patience(entries.saturating_mul(self.max_payload))
    }

    /// How many entries to ask for, so that payloads of the largest size stay within `bytes`.
    pub(super) fn chunk(&self, entries: usize, bytes: usize) -> usize {
        (bytes / self.max_payload.max(1)).clamp(1, entries.max(1))
    }
}

/// An answer that is under way on a link of its reader's own. Unless it has come, its connection is
/// closed: what is still to arrive would hold up the next.
pub(super) struct UnderWay<'a> {
    link: &'a RedisLink,
    connection: &'a Arc<RedisConnection>,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The caller has gone; the answer is still to come.
    Cancelled,
    /// The server did not answer.
    Failed,
    /// The connection is free for the next command.
    Answered,
}

impl<'a> UnderWay<'a> {
    pub(super) fn on(link: &'a RedisLink, connection: &'a Arc<RedisConnection>) -> Self {
        Self { link, connection, end: End::Cancelled }
    }

    pub(super) fn ends_with(mut self, answer: &Result<Value, QueueError>) {
        self.end = match answer {
            Err(
                RedisError::Timeout { .. }
                | RedisError::Unavailable { .. }
                | RedisError::Replica { .. },
            ) => End::Failed,
            Ok(_) | Err(_) => End::Answered,
        };
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.end != End::Answered {
            self.link.discard(self.connection, self.end == End::Failed);
        }
    }
}

/// How much longer than another a command may take that carries so many bytes.
pub(super) fn patience(bytes: usize) -> Duration {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    Duration::from_millis(bytes / u64::from(SLOWEST / 1000))
}

/// Whether the stream or its group is missing. Redis 7.0 answers `UNBLOCKED` to a reader whose
/// stream is deleted, later versions and all other commands `NOGROUP`.
pub(super) fn is_missing_group(error: &QueueError) -> bool {
    match error {
        RedisError::Refused { message, .. } => {
            message.contains("NOGROUP") || message.contains("UNBLOCKED")
        }
        RedisError::Unavailable { .. }
        | RedisError::Replica { .. }
        | RedisError::Timeout { .. }
        | RedisError::Unsure { .. }
        | RedisError::Misconfigured { .. } => false,
    }
}

/// Appends an entry id without a string of its own.
pub(super) fn push_id(cmd: &mut Cmd, id: EntryId) {
    cmd.write_arg_fmt(id);
}

/// Milliseconds for Redis.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The members of a group by queue, in order of appearance; a group meets few queues.
pub(super) fn by_queue<'a, T>(
    members: impl Iterator<Item = (&'a QueueName, T)>,
) -> Vec<(&'a QueueName, Vec<T>)> {
    let mut queues: Vec<(&QueueName, Vec<T>)> = Vec::new();
    for (queue, member) in members {
        match queues.iter_mut().find(|(known, _)| *known == queue) {
            Some((_, members)) => members.push(member),
            None => queues.push((queue, vec![member])),
        }
    }
    queues
}

//! How full a queue is, and the consumers that come and go with the workers.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Value};

use super::super::QueueError;
use super::base::{
    ANY_STREAM, Base, GROUP, NOBODY, is_missing_group, millis, queue_of, stream_key,
};
use super::parse;
use crate::connection::{LuaScript, RedisError};
use crate::domain::{EntryId, QueueName};

static BACKLOG: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new("backlog.lua", include_str!("backlog.lua")));

static REAP: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new("reap_consumers.lua", include_str!("reap_consumers.lua")));

/// How full a queue is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueDepth {
    /// Entries in the stream: waiting, or being worked on.
    pub length: u64,
    /// Entries delivered to a worker and not yet settled.
    pub pending: u64,
    /// Entries never delivered; not told by Redis before version 7, nor after deletions by hand.
    pub lag: Option<u64>,
    /// Consumers of the group, without the one that holds what was given back: one per worker
    /// process that has read from the queue.
    pub consumers: u64,
}

pub(super) async fn depth(base: &Base, queue: &QueueName) -> Result<QueueDepth, QueueError> {
    let key = stream_key(queue);
    let mut pipeline = redis::pipe();
    pipeline.cmd("XLEN").arg(&key);
    pipeline.cmd("XINFO").arg("GROUPS").arg(&key);
    pipeline.cmd("XINFO").arg("CONSUMERS").arg(&key).arg(GROUP);
    let answers = base.link.pipeline(&pipeline, "XINFO GROUPS").await?;
    let [length, groups, consumers] = answers.try_into().unwrap_or_default();
    let refused = |message| base.misread("XLEN")(message);
    let length = length.extract_error().map_err(|error| refused(error.to_string()))?;
    let mut depth = QueueDepth { length: number(&length).unwrap_or(0), ..QueueDepth::default() };
    // `XINFO` answers an error where there is no stream: nothing is there, then.
    let Value::Array(groups) = groups else { return Ok(depth) };
    let ours = groups.iter().find(|group| {
        matches!(field(group, "name"), Some(Value::BulkString(name)) if name == GROUP.as_bytes())
    });
    if let Some(group) = ours {
        let read = |name| field(group, name).and_then(number);
        depth.pending = read("pending").unwrap_or(0);
        // Who may not list them learns how many there are all the same.
        depth.consumers = match &consumers {
            Value::Array(found) => workers(found).count() as u64,
            _ => read("consumers").unwrap_or(0),
        };
        depth.lag = read("lag");
    }
    Ok(depth)
}

/// The oldest entry in the stream.
pub(super) async fn oldest(base: &Base, queue: &QueueName) -> Result<Option<EntryId>, QueueError> {
    let mut cmd = redis::cmd("XRANGE");
    cmd.arg(stream_key(queue)).arg("-").arg("+").arg("COUNT").arg(1);
    let answer = base.link.query(&cmd, "XRANGE").await?;
    let (found, _) = parse::entries(answer).map_err(base.misread("XRANGE"))?;
    Ok(found.first().map(|entry| entry.id))
}

/// What waits in a stream, as a metric asks: one small answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Entries in the stream: waiting, or being worked on.
    pub length: u64,
    /// Entries delivered to a worker and not yet settled.
    pub pending: u64,
    /// The oldest entry that was never delivered.
    pub oldest: Option<EntryId>,
}

pub(super) async fn backlog(base: &Base, queue: &QueueName) -> Result<Backlog, QueueError> {
    let fill = |cmd: &mut Cmd| {
        cmd.arg(1).arg(stream_key(queue)).arg(GROUP);
    };
    let answer = base.link.script(&BACKLOG, fill).await?;
    let answer = parse::list(answer).map_err(base.misread("EVALSHA"))?;
    let count = |at| answer.get(at).and_then(number).unwrap_or(0);
    Ok(Backlog {
        length: count(0),
        pending: count(1),
        oldest: answer.get(2).and_then(|id| parse::id(id).ok()),
    })
}

/// Keys looked through by one SCAN.
const SCANNED: u32 = 1_000;

/// The most of these for one question: a million keys.
const MOST_SCANS: usize = 1_000;

/// The queues that have a stream, in the order of their names; none where a user may not ask.
pub(super) async fn streams(base: &Base) -> Result<Vec<QueueName>, QueueError> {
    let mut names = BTreeSet::new();
    let mut cursor = "0".to_owned();
    for _ in 0..MOST_SCANS {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(&cursor).arg("MATCH").arg(ANY_STREAM).arg("COUNT").arg(SCANNED);
        cmd.arg("TYPE").arg("stream");
        let answer = match base.link.query(&cmd, "SCAN").await {
            Err(RedisError::Refused { message, .. }) if message.contains("NOPERM") => break,
            answer => answer?,
        };
        let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer)
            .map_err(|error| base.misread("SCAN")(error.to_string()))?;
        names.extend(keys.iter().filter_map(|key| queue_of(key)));
        if next == "0" {
            break;
        }
        cursor = next;
    }
    Ok(names.into_iter().collect())
}

/// A consumer of a queue's group: a worker process that has read from the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// The id of that worker's start.
    pub name: String,
    /// Entries delivered to it and not yet settled.
    pub pending: u64,
    /// Since it last asked Redis for entries of this queue.
    pub idle: Duration,
}

/// The worker processes among the consumers of the queue's group; none where there is no group.
pub(super) async fn consumers(base: &Base, queue: &QueueName) -> Result<Vec<Consumer>, QueueError> {
    let mut cmd = redis::cmd("XINFO");
    cmd.arg("CONSUMERS").arg(stream_key(queue)).arg(GROUP);
    let answer = match base.link.query(&cmd, "XINFO CONSUMERS").await {
        Err(error) if is_missing_stream(&error) => return Ok(Vec::new()),
        answer => answer?,
    };
    let found = parse::list(answer).map_err(base.misread("XINFO CONSUMERS"))?;
    Ok(workers(&found).collect())
}

/// The worker processes in an answer to `XINFO CONSUMERS`.
fn workers(found: &[Value]) -> impl Iterator<Item = Consumer> {
    found.iter().filter_map(consumer).filter(|consumer| consumer.name != NOBODY)
}

fn consumer(answer: &Value) -> Option<Consumer> {
    let Some(Value::BulkString(name)) = field(answer, "name") else { return None };
    let read = |name| field(answer, name).and_then(number).unwrap_or(0);
    Some(Consumer {
        name: String::from_utf8_lossy(name).into_owned(),
        pending: read("pending"),
        idle: Duration::from_millis(read("idle")),
    })
}

/// Deletes consumers without pending entries: ours, and others idle for `stale_after`.
pub(super) async fn reap(
    base: &Base,
    queue: &QueueName,
    stale_after: Duration,
) -> Result<u64, QueueError> {
    let fill = |cmd: &mut Cmd| {
        base.script_args(cmd, queue);
        cmd.arg(millis(stale_after));
    };
    match base.link.script(&REAP, fill).await {
        Ok(gone) => Ok(number(&gone).unwrap_or(0)),
        Err(error) if is_missing_stream(&error) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Whether there is no stream of this name, or no group on it.
fn is_missing_stream(error: &QueueError) -> bool {
    let no_key = matches!(error, RedisError::Refused { message, .. }
        if message.contains("no such key"));
    no_key || is_missing_group(error)
}

fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    map.as_map_iter()?.find_map(|(key, value)| {
        matches!(key, Value::BulkString(key) if key == name.as_bytes()).then_some(value)
    })
}

fn number(value: &Value) -> Option<u64> {
    if let Value::Int(number) = value { u64::try_from(*number).ok() } else { None }
}

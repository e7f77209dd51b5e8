//! The lock commands on one Redis node: for a whole group at once, one answer per lock.
//!
//! The keys of a group may lie in any slot, so a node is a single server, not a Redis Cluster.
//! Every function works on a connection and until a deadline that the caller chose. What several
//! nodes together mean is not decided here.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisWrite, Value};
use tokio::time::Instant;

use crate::connection::{LuaScript, RedisConnection, RedisError};
use crate::domain::LockToken;
use crate::protocol::quorum::Vote;

const ACQUIRE_TEXT: &str = include_str!("acquire.lua");
const EXTEND_TEXT: &str = include_str!("extend.lua");
const RELEASE_TEXT: &str = include_str!("release.lua");

static ACQUIRE: LazyLock<LuaScript> = LazyLock::new(|| LuaScript::new("acquire.lua", ACQUIRE_TEXT));
static EXTEND: LazyLock<LuaScript> = LazyLock::new(|| LuaScript::new("extend.lua", EXTEND_TEXT));
static RELEASE: LazyLock<LuaScript> = LazyLock::new(|| LuaScript::new("release.lua", RELEASE_TEXT));

/// A key and the token that is, or shall be, its value.
pub(super) type Key<'a> = (&'a str, LockToken);

/// What an extension found at a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Our token: extended.
    Ours,
    /// Another token.
    Foreign,
    /// Nothing.
    Gone,
}

/// Tries once to take all locks. On an error nobody knows which were set: then their deletion is
/// submitted behind the attempt on the same connection, so that a late attempt is undone.
pub(super) async fn acquire(
    connection: &RedisConnection,
    deadline: Instant,
    ttl: Duration,
    keys: &[Key<'_>],
) -> Result<Vec<Vote>, RedisError> {
    match connection.script(&ACQUIRE, deadline, |cmd| fill(cmd, keys, Some(ttl))).await {
        Ok(answer) => Ok(one_per_key(connection, answer, keys)?.into_iter().map(vote).collect()),
        Err(error) => {
            if !connection.is_broken() || matches!(error, RedisError::Timeout { .. }) {
                connection.submit_script(&RELEASE, |cmd| fill(cmd, keys, None)).await;
            }
            Err(error)
        }
    }
}

/// Extends the locks that are ours. Sets nothing and may be repeated.
pub(super) async fn extend(
    connection: &RedisConnection,
    deadline: Instant,
    ttl: Duration,
    keys: &[Key<'_>],
) -> Result<Vec<Found>, RedisError> {
    let answer = connection.script(&EXTEND, deadline, |cmd| fill(cmd, keys, Some(ttl))).await?;
    let found = |answer| match answer {
        Value::Int(1) => Found::Ours,
        Value::Int(-1) => Found::Gone,
        _ => Found::Foreign,
    };
    Ok(one_per_key(connection, answer, keys)?.into_iter().map(found).collect())
}

/// Deletes the locks that are still ours. May be repeated.
pub(super) async fn release(
    connection: &RedisConnection,
    deadline: Instant,
    keys: &[Key<'_>],
) -> Result<(), RedisError> {
    connection.script(&RELEASE, deadline, |cmd| fill(cmd, keys, None)).await.map(drop)
}

/// Makes the scripts known, so that no call has to be sent a second time.
pub(super) fn load_scripts(pipeline: &mut Pipeline) {
    for text in [ACQUIRE_TEXT, EXTEND_TEXT, RELEASE_TEXT] {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(text);
    }
}

/// The number of keys, the keys, the time to live where the script wants one, the tokens.
fn fill(cmd: &mut Cmd, keys: &[Key<'_>], ttl: Option<Duration>) {
    cmd.arg(keys.len());
    for (name, _) in keys {
        cmd.arg(*name);
    }
    if let Some(ttl) = ttl {
        cmd.arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    }
    for (_, token) in keys {
        cmd.write_arg_fmt(token);
    }
}

fn one_per_key(
    connection: &RedisConnection,
    answer: Value,
    keys: &[Key<'_>],
) -> Result<Vec<Value>, RedisError> {
    match answer {
        Value::Array(items) if items.len() == keys.len() => Ok(items),
        _ => Err(RedisError::Refused {
            address: connection.address().to_owned(),
            command: "the lock script",
            message: "unexpected answer".into(),
        }),
    }
}

fn vote(answer: Value) -> Vote {
    if answer == Value::Int(1) {
        return Vote::Granted;
    }
    let (left, token) = match answer {
        Value::Array(items) => match items.as_slice() {
            [Value::Int(left), Value::BulkString(token)] => (Some(*left), token.clone()),
            _ => (None, Vec::new()),
        },
        _ => (None, Vec::new()),
    };
    let mut hasher = DefaultHasher::new();
    token.hash(&mut hasher);
    let remaining = left.and_then(|left| u64::try_from(left).ok()).map(Duration::from_millis);
    Vote::Taken { rival: hasher.finish(), remaining }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_votes() {
        let taken = |left, token: &[u8]| {
            vote(Value::Array(vec![Value::Int(left), Value::BulkString(token.to_vec())]))
        };
        assert_eq!(vote(Value::Int(1)), Vote::Granted);
        let Vote::Taken { rival, remaining } = taken(1500, b"a") else { panic!("not taken") };
        assert_eq!(remaining, Some(Duration::from_millis(1500)));
        assert!(
            matches!(taken(-1, b"a"), Vote::Taken { rival: same, remaining: None } if same == rival)
        );
        assert!(matches!(taken(1, b"b"), Vote::Taken { rival: other, .. } if other != rival));
        assert!(matches!(vote(Value::Nil), Vote::Taken { remaining: None, .. }));
    }
}

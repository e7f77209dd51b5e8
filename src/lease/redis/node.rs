//! The lock commands on one Redis node: for a whole group at once, one answer per lock.
//!
//! The keys of a group may lie in any slot, so a node is a single server, not a Redis Cluster.
//! What several nodes together mean is not decided here.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, RedisWrite, Value};

use crate::connection::{LuaScript, RedisError, RedisLink};
use crate::domain::LockToken;
use crate::lease::Renewal;

/// What `acquire.lua` answers for a lock that is now ours.
const GRANTED: i64 = -3;

static ACQUIRE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new("acquire.lua", include_str!("acquire.lua")));
static RELEASE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new("release.lua", include_str!("release.lua")));
static RENEW: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new("renew.lua", include_str!("renew.lua")));

/// A key and the token that is, or shall be, its value.
pub(super) type Key<'a> = (&'a str, LockToken);

/// A node's answer to the attempt to take a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    /// The lock is ours on this node.
    Granted,
    /// Somebody else's for this long; `None` if it has no end.
    Taken(Option<Duration>),
}

/// One Redis that holds locks.
#[derive(Clone)]
pub(super) struct Node {
    link: RedisLink,
    ttl: Duration,
}

impl Node {
    pub(super) fn new(link: RedisLink, ttl: Duration) -> Self {
        Self { link, ttl }
    }

    pub(super) fn address(&self) -> &str {
        self.link.address()
    }

    /// Tries once to take all locks. On an error nobody knows which were set: then their deletion is
    /// submitted behind the attempt on the same connection, so that a late attempt is undone.
    pub(super) async fn acquire(&self, keys: &[Key<'_>]) -> Result<Vec<Vote>, RedisError> {
        let deadline = self.link.deadline();
        let connection = self.link.connection(deadline).await?;
        let fill = |cmd: &mut Cmd| fill(cmd, keys, Some(self.ttl));
        match connection.script(&ACQUIRE, deadline, fill).await {
            Ok(answer) => Ok(self.numbers(answer, &ACQUIRE, keys.len())?.map(vote).collect()),
            Err(error) => {
                if !connection.is_broken() || matches!(error, RedisError::Timeout { .. }) {
                    connection.submit_script(&RELEASE, |cmd| self::fill(cmd, keys, None)).await;
                }
                Err(error)
            }
        }
    }

    /// Deletes the locks that are still ours.
    pub(super) async fn release(&self, keys: &[Key<'_>]) -> Result<(), RedisError> {
        self.link.script_twice(&RELEASE, |cmd| fill(cmd, keys, None)).await.map(drop)
    }

    /// Extends the locks that are ours and sets those that are gone.
    pub(super) async fn renew(&self, keys: &[Key<'_>]) -> Result<Vec<Renewal>, RedisError> {
        let answer = self.link.script_twice(&RENEW, |cmd| fill(cmd, keys, Some(self.ttl))).await?;
        let renewal = |answer| if answer == 1 { Renewal::Renewed } else { Renewal::Foreign };
        Ok(self.numbers(answer, &RENEW, keys.len())?.map(renewal).collect())
    }

    fn numbers(
        &self,
        answer: Value,
        script: &LuaScript,
        expected: usize,
    ) -> Result<impl Iterator<Item = i64> + use<>, RedisError> {
        match answer {
            Value::Array(items) if items.len() == expected => Ok(items
                .into_iter()
                .map(|item| if let Value::Int(number) = item { number } else { 0 })),
            _ => Err(RedisError::Refused {
                address: self.address().to_owned(),
                command: script.name(),
                message: "unexpected answer".into(),
            }),
        }
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

fn vote(answer: i64) -> Vote {
    match answer {
        GRANTED => Vote::Granted,
        left => Vote::Taken(u64::try_from(left).ok().map(Duration::from_millis)),
    }
}

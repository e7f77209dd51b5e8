//! One of several lock nodes: its connection, its past and its right to vote.
//!
//! Invariants: no call waits longer than the node's timeout, and a node that could not be reached
//! when last tried fails at once; connecting goes on in the background ([`Member::keep`]), under a
//! limit of its own. A connection is used only after the node has said how long it has been up.
//!
//! A node that restarted may have forgotten locks that others still hold (nothing here asks for
//! persistence with every write). Until every such lock has ended its answers do not count, though
//! it takes part in everything else. See "Performance, crash recovery and fsync" in
//! <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use super::node::{self, Found, Key};
use crate::clock::{BootInstant, Clock};
use crate::connection::{RedisConnection, RedisError, RedisLink, RedisTarget};
use crate::protocol::quorum::{Hold, Vote, silence_after_start};

/// Groups that may wait for one node to answer. A node that is paused is given up after a few
/// timeouts; until then this bounds what piles up before it.
const MAX_WAITING: usize = 64;

/// Times and the clock of a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How long locks live.
    pub(super) ttl: Duration,
    /// How long a call may wait for the node.
    pub(super) node_timeout: Duration,
    /// How long connecting may take, in the background.
    pub(super) connect_timeout: Duration,
    /// What ages are measured on.
    pub(super) clock: Clock,
}

/// What the last attempt to connect has led to.
enum Standing {
    /// There is none, or it is under way.
    Connecting,
    /// A connection, and when the node has a vote.
    Connected(Arc<RedisConnection>, BootInstant),
    /// It failed.
    Away(RedisError),
}

impl Standing {
    fn is_usable(&self) -> bool {
        matches!(self, Self::Connected(connection, _) if !connection.is_broken())
    }
}

/// Which start of the server was met last.
#[derive(Default)]
struct Past {
    run_id: Option<String>,
    votes_from: Option<BootInstant>,
}

/// One node's answers to the attempt to take a group of locks.
pub(super) struct Answers {
    /// One for each lock.
    pub(super) votes: Vec<Vote>,
    /// Whether they count.
    pub(super) counts: bool,
}

/// An attempt failed.
pub(super) struct Failed {
    /// Why.
    pub(super) error: RedisError,
    /// Whether something was sent that may be carried out later.
    pub(super) sent: bool,
}

/// One node.
pub(super) struct Member {
    link: RedisLink,
    limits: Limits,
    standing: watch::Sender<Standing>,
    wanted: Notify,
    waiting: Semaphore,
    told_away: AtomicBool,
}

impl Member {
    pub(super) fn new(target: RedisTarget, limits: Limits) -> Self {
        Self {
            link: RedisLink::new(target, limits.connect_timeout),
            limits,
            standing: watch::Sender::new(Standing::Connecting),
            wanted: Notify::new(),
            waiting: Semaphore::new(MAX_WAITING),
            told_away: AtomicBool::new(false),
        }
    }

    pub(super) fn address(&self) -> &str {
        self.link.address()
    }

    /// Connects whenever somebody misses the connection; never ends. Called once.
    pub(super) async fn keep(&self) {
        let mut past = Past::default();
        loop {
            self.wanted.notified().await;
            if self.standing.borrow().is_usable() {
                continue;
            }
            self.standing.send_if_modified(|standing| {
                let lost = matches!(standing, Standing::Connected(..));
                if lost {
                    *standing = Standing::Connecting;
                }
                lost
            });
            self.standing.send_replace(match self.meet(&mut past).await {
                Ok((connection, votes_from)) => Standing::Connected(connection, votes_from),
                Err(error) => Standing::Away(error),
            });
        }
    }

    /// Tries once to take all locks, unless `closed` comes before anything is sent: an attempt that
    /// nobody counts must not overtake a release.
    pub(super) async fn acquire(
        &self,
        keys: &[Key<'_>],
        closed: impl Future<Output = ()>,
    ) -> Result<Answers, Failed> {
        let unsent = |error| Failed { error, sent: false };
        let Ok(_permit) = self.waiting.try_acquire() else {
            return Err(unsent(self.unavailable("too many calls wait for it")));
        };
        let deadline = self.deadline();
        let (connection, counts) = tokio::select! {
            biased;
            reached = self.reach(deadline) => reached.map_err(unsent)?,
            () = closed => return Err(unsent(self.unavailable("the others were faster"))),
        };
        match node::acquire(&connection, deadline, self.limits.ttl, keys).await {
            Ok(votes) => Ok(Answers { votes, counts }),
            Err(error) => Err(Failed { error, sent: true }),
        }
    }

    /// Deletes the locks that are still ours.
    pub(super) async fn release(&self, keys: &[Key<'_>]) -> Result<(), RedisError> {
        let deadline = self.deadline();
        let once = async || {
            let (connection, _) = self.reach(deadline).await?;
            node::release(&connection, deadline, keys).await
        };
        match once().await {
            Err(RedisError::Unavailable { .. } | RedisError::Replica { .. })
                if Instant::now() < deadline =>
            {
                once().await
            }
            answer => answer,
        }
    }

    /// Extends the locks that are ours, and then sets those that are gone; answers whether the node
    /// has a vote, and what it said about each. Setting undoes itself where it is late.
    pub(super) async fn renew(&self, keys: &[Key<'_>]) -> Result<(bool, Vec<Hold>), RedisError> {
        let (counts, found) = self.extend(keys).await?;
        let gone = keys.iter().zip(&found).filter(|(_, found)| **found == Found::Gone);
        let gone: Vec<Key<'_>> = gone.map(|(key, _)| *key).collect();
        let set = if gone.is_empty() {
            Vec::new()
        } else {
            let set = self.acquire(&gone, std::future::pending()).await;
            set.map(|answers| answers.votes).unwrap_or_default()
        };
        let mut set = set.into_iter();
        let hold = |found| match found {
            Found::Ours => Hold::Ours,
            Found::Foreign => Hold::Foreign,
            Found::Gone => match set.next() {
                Some(Vote::Granted) => Hold::Ours,
                Some(Vote::Taken { .. }) => Hold::Foreign,
                None => Hold::Unknown,
            },
        };
        Ok((counts, found.into_iter().map(hold).collect()))
    }

    async fn extend(&self, keys: &[Key<'_>]) -> Result<(bool, Vec<Found>), RedisError> {
        let deadline = self.deadline();
        let once = async || {
            let (connection, counts) = self.reach(deadline).await?;
            let found = node::extend(&connection, deadline, self.limits.ttl, keys).await?;
            Ok((counts, found))
        };
        match once().await {
            Err(RedisError::Unavailable { .. } | RedisError::Replica { .. })
                if Instant::now() < deadline =>
            {
                once().await
            }
            answer => answer,
        }
    }

    /// Whether the node answers and has a vote, connecting included.
    pub(super) async fn check(&self) -> Result<(), RedisError> {
        let (connection, counts) = self.try_reach().await?;
        let deadline = Instant::now() + self.limits.connect_timeout;
        connection.query(&redis::cmd("PING"), "PING", deadline).await?;
        if counts { Ok(()) } else { Err(self.too_young()) }
    }

    /// What is to be told about a node that cannot vote at the moment.
    pub(super) fn too_young(&self) -> RedisError {
        self.unavailable(
            "restarted less than lease.ttl ago and may have forgotten locks: it has no vote yet",
        )
    }

    /// Whether the last attempt to connect failed, if that is news since the last call.
    pub(super) fn news(&self) -> Option<Result<(), RedisError>> {
        let standing = match &*self.standing.borrow() {
            Standing::Connecting => return None,
            Standing::Connected(..) => Ok(()),
            Standing::Away(error) => Err(error.clone()),
        };
        let away = standing.is_err();
        (self.told_away.swap(away, Ordering::Relaxed) != away).then_some(standing)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.limits.node_timeout
    }

    fn unavailable(&self, message: &str) -> RedisError {
        RedisError::Unavailable { address: self.address().to_owned(), message: message.to_owned() }
    }

    /// The connection, and whether the node has a vote. Asks for a new one where there is none, and
    /// waits for it only if the last attempt did not fail.
    async fn reach(&self, deadline: Instant) -> Result<(Arc<RedisConnection>, bool), RedisError> {
        // The connection's own task runs now, and notices a server that has hung up.
        tokio::task::yield_now().await;
        if let Standing::Away(error) = &*self.standing.borrow() {
            self.wanted.notify_one();
            return Err(error.clone());
        }
        match tokio::time::timeout_at(deadline, self.try_reach()).await {
            Ok(reached) => reached,
            Err(_) => Err(self.unavailable("no connection within lease.node_timeout")),
        }
    }

    /// The connection, or what comes of an attempt to connect that ends after this call began.
    async fn try_reach(&self) -> Result<(Arc<RedisConnection>, bool), RedisError> {
        let mut standing = self.standing.subscribe();
        while !standing.borrow_and_update().is_usable() {
            self.wanted.notify_one();
            // The sender lives in `self`: this cannot fail.
            let _ = standing.changed().await;
            if let Standing::Away(error) = &*standing.borrow() {
                return Err(error.clone());
            }
        }
        match &*standing.borrow() {
            Standing::Connected(connection, votes_from) => {
                Ok((Arc::clone(connection), self.limits.clock.now() >= *votes_from))
            }
            Standing::Connecting | Standing::Away(_) => {
                Err(self.unavailable("the connection broke at once"))
            }
        }
    }

    /// Connects and asks the node who it is and since when.
    async fn meet(
        &self,
        past: &mut Past,
    ) -> Result<(Arc<RedisConnection>, BootInstant), RedisError> {
        let Limits { ttl, connect_timeout, clock, .. } = self.limits;
        // The link has this limit too, and says better what went wrong.
        let deadline = Instant::now() + connect_timeout * 2;
        let connection = self.link.connection(deadline).await?;
        let mut pipeline = redis::pipe();
        pipeline.cmd("INFO").arg("server");
        node::load_scripts(&mut pipeline);
        let deadline = Instant::now() + connect_timeout;
        let answers = connection.pipeline(&pipeline, "INFO", deadline).await;
        let answers = answers.inspect_err(|_| self.link.discard(&connection, true))?;
        let Some((run_id, uptime)) = answers.first().and_then(introduction) else {
            self.link.discard(&connection, true);
            return Err(RedisError::Misconfigured {
                address: self.address().to_owned(),
                message: "does not tell how long it has been up: allow the user INFO".into(),
            });
        };
        let votes_from = match (&past.run_id, past.votes_from) {
            (Some(known), Some(votes_from)) if *known == run_id => votes_from,
            // Another server than before, be it a new start or a replica that took over: what it
            // has not seen, it cannot know, however long it has been up.
            (Some(_), _) => clock.now() + silence_after_start(ttl, Duration::ZERO),
            (None, _) => clock.now() + silence_after_start(ttl, uptime),
        };
        *past = Past { run_id: Some(run_id), votes_from: Some(votes_from) };
        Ok((connection, votes_from))
    }
}

/// The id of the server's run and its age, from `INFO server`.
fn introduction(answer: &Value) -> Option<(String, Duration)> {
    let text = match answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::VerbatimString { text, .. } => text,
        _ => return None,
    };
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let uptime = field("uptime_in_seconds")?.trim().parse().ok()?;
    Some((field("run_id")?.trim().to_owned(), Duration::from_secs(uptime)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_introduces_itself() {
        let info = b"# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\nuptime_in_seconds:61\r\n";
        let expected = Some(("abc".to_owned(), Duration::from_secs(61)));
        assert_eq!(introduction(&Value::BulkString(info.to_vec())), expected);
        assert_eq!(introduction(&Value::BulkString(b"run_id:abc\r\n".to_vec())), None);
        assert_eq!(introduction(&Value::Nil), None);
    }
}

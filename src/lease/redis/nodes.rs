//! The lock nodes together: what a majority of them says, and who of them is away.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinSet;

use super::member::Member;
use super::node::Key;
use crate::clock::Clock;
use crate::connection::RedisError;
use crate::lease::{Acquired, LeaseError, Renewal};
use crate::protocol::quorum::{Hold, confirm, majority};

/// The nodes, and the tasks that put a group to one of them each.
pub(super) struct Nodes {
    pub(super) members: Vec<Arc<Member>>,
    pub(super) ttl: Duration,
    pub(super) clock: Clock,
    voters: Mutex<JoinSet<()>>,
}

impl Nodes {
    pub(super) fn new(members: Vec<Arc<Member>>, ttl: Duration, clock: Clock) -> Self {
        Self { members, ttl, clock, voters: Mutex::default() }
    }

    pub(super) fn no_quorum(&self, away: Vec<String>) -> LeaseError {
        let nodes = self.members.len();
        LeaseError::NoQuorum { nodes, needed: majority(nodes), away }
    }

    /// An error unless a majority has none. One for each node.
    pub(super) fn need_majority<'a>(
        &self,
        errors: impl Iterator<Item = Option<&'a RedisError>>,
    ) -> Result<(), LeaseError> {
        let away: Vec<String> = errors.flatten().map(told).collect();
        let nodes = self.members.len();
        if nodes - away.len() >= majority(nodes) { Ok(()) } else { Err(self.no_quorum(away)) }
    }

    pub(super) fn taken(&self, remaining: Option<Duration>) -> Acquired {
        Acquired::Taken { remaining: remaining.unwrap_or(self.ttl) }
    }

    /// Starts a task of a group, and forgets those that have ended. A task lives for three node
    /// timeouts at most.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut voters = self.voters.lock().unwrap_or_else(PoisonError::into_inner);
        while voters.try_join_next().is_some() {}
        voters.spawn(task);
    }

    pub(super) async fn renew(&self, keys: &[Key<'_>]) -> Result<Vec<Renewal>, LeaseError> {
        let answers = join_all(self.members.iter().map(|member| member.renew(keys))).await;
        self.need_majority(answers.iter().map(|answer| answer.as_ref().err()))?;
        let renewal = |at: usize| {
            let hold = |answer: &Result<(bool, Vec<Hold>), RedisError>| match answer {
                Ok((true, holds)) => holds.get(at).copied().unwrap_or(Hold::Unknown),
                Ok((false, _)) | Err(_) => Hold::Unknown,
            };
            match confirm(&answers.iter().map(hold).collect::<Vec<_>>()) {
                Hold::Ours => Renewal::Renewed,
                Hold::Foreign => Renewal::Foreign,
                Hold::Unknown => Renewal::Unconfirmed,
            }
        };
        Ok((0..keys.len()).map(renewal).collect())
    }

    /// Tells once when a node goes away or comes back; the others go on without it.
    pub(super) fn tell_news(&self) {
        for member in &self.members {
            match member.news() {
                Some(Ok(())) => tracing::info!("lock node {} is back", member.address()),
                Some(Err(error)) => {
                    tracing::warn!("a lock node is away: {}", told(&error));
                }
                None => {}
            }
        }
    }
}

/// A node's error, with the names that the settings of nodes have.
pub(super) fn told(error: &RedisError) -> String {
    match error {
        RedisError::Unavailable { address, message } => format!("{address}: {message}"),
        RedisError::Misconfigured { address, message } => {
            format!("{address} {}", message.replace("`redis.", "`lease."))
        }
        RedisError::Timeout { address, .. } => {
            format!("{address}: no answer within lease.node_timeout")
        }
        RedisError::Refused { .. } => error.to_string(),
    }
}

//! Locks on a majority of independent Redis masters (Redlock).
//!
//! Taking a lock is a poll of the nodes, tried again when rivals have split the votes. Releases and
//! renewals wait for every node within its timeout: after them nothing may be under way that would
//! bring a released lock back. A failed renewal releases nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::task::JoinSet;

use super::member::{Limits, Member};
use super::node::Key;
use super::nodes::Nodes;
use super::poll::{self, Attempt};
use super::{MAX_GROUP, if_still_valid, key};
use crate::clock::Clock;
use crate::coalesce::{Coalescer, Pending};
use crate::connection::RedisTarget;
use crate::lease::{Acquired, LeaseError, LeaseStore, Lock, Renewal};
use crate::protocol::quorum::{Retry, majority};

/// How a store on several nodes is set up.
#[derive(Debug, Clone)]
pub struct QuorumLeaseOptions {
    /// Which servers: an odd number, at least three, none of them a replica of another.
    pub targets: Vec<RedisTarget>,
    /// How long a lock lives unless it is renewed.
    pub ttl: Duration,
    /// How long a call may wait for one node. Much shorter than `ttl`.
    pub node_timeout: Duration,
    /// How long connecting to a node may take, in the background.
    pub connect_timeout: Duration,
    /// What follows when rivals split the votes.
    pub retry: Retry,
    /// The most locks of one round trip; below 1000.
    pub group: usize,
    /// Groups that may be under way at once, for acquiring and for releasing each.
    pub committers: usize,
    /// The clock that validity is measured on.
    pub clock: Clock,
}

impl QuorumLeaseOptions {
    /// The defaults: locks live 5 s, 50 ms for a node, 2 s to connect, 3 retries after 50 to
    /// 100 ms, groups of 256, 2 committers.
    pub fn new(targets: Vec<RedisTarget>, clock: Clock) -> Self {
        let pause = Duration::from_millis(50);
        Self {
            targets,
            ttl: Duration::from_secs(5),
            node_timeout: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(2),
            retry: Retry { count: 3, delay: pause, jitter: pause },
            group: 256,
            committers: 2,
            clock,
        }
    }
}

/// Locks on a majority of several Redis masters.
pub struct QuorumLeases {
    nodes: Arc<Nodes>,
    retry: Retry,
    group: usize,
    acquiring: Coalescer<Arc<str>, Result<Attempt, LeaseError>>,
    releasing: Coalescer<Lock, Result<(), LeaseError>>,
    _keepers: JoinSet<()>,
}

impl QuorumLeases {
    /// A store that connects at its first call. Must be made within the runtime that uses it.
    pub fn new(options: QuorumLeaseOptions) -> Self {
        let QuorumLeaseOptions { ttl, node_timeout, connect_timeout, clock, .. } = options;
        let limits = Limits { ttl, node_timeout, connect_timeout, clock };
        let member = |target| Arc::new(Member::new(target, limits));
        let members: Vec<_> = options.targets.into_iter().map(member).collect();
        let mut keepers = JoinSet::new();
        for member in &members {
            let member = Arc::clone(member);
            keepers.spawn(async move { member.keep().await });
        }
        let nodes = Arc::new(Nodes::new(members, ttl, clock));
        let (acquirer, releaser) = (Arc::clone(&nodes), Arc::clone(&nodes));
        let group = options.group.clamp(1, MAX_GROUP);
        Self {
            nodes,
            retry: options.retry,
            group,
            acquiring: Coalescer::start(options.committers, group, move |group| {
                poll::acquire(Arc::clone(&acquirer), group)
            }),
            releasing: Coalescer::start(options.committers, group, move |group| {
                release(Arc::clone(&releaser), group)
            }),
            _keepers: keepers,
        }
    }

    fn stopped(&self) -> LeaseError {
        self.nodes.no_quorum(vec!["the lock store is being shut down".into()])
    }
}

#[async_trait]
impl LeaseStore for QuorumLeases {
    async fn acquire(&self, name: &str) -> Result<Acquired, LeaseError> {
        let mut done = 0;
        loop {
            let attempt = self.acquiring.call(name.into()).await;
            let last = match attempt.unwrap_or_else(|| Err(self.stopped()))? {
                Attempt::Granted(lock) => if_still_valid(self, lock, self.nodes.clock).await,
                Attempt::Taken(remaining) => return Ok(self.nodes.taken(remaining)),
                Attempt::Split(remaining) => Ok(self.nodes.taken(remaining)),
            };
            let again = !matches!(last, Ok(Acquired::Granted(_)));
            match self.retry.wait(done, rand::random()).filter(|_| again) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return last,
            }
            done += 1;
        }
    }

    async fn release(&self, lock: &Lock) -> Result<(), LeaseError> {
        self.releasing.call(lock.clone()).await.unwrap_or_else(|| Err(self.stopped()))
    }

    async fn renew(&self, locks: &[Lock]) -> Result<Vec<Renewal>, LeaseError> {
        let mut renewals = Vec::with_capacity(locks.len());
        for part in locks.chunks(self.group) {
            let keys: Vec<Key<'_>> = part.iter().map(key).collect();
            renewals.extend(self.nodes.renew(&keys).await?);
        }
        Ok(renewals)
    }

    async fn check(&self) -> Result<(), LeaseError> {
        let members = &self.nodes.members;
        let mut checks: FuturesUnordered<_> = members.iter().map(|one| one.check()).collect();
        let mut errors = Vec::new();
        let mut up = 0;
        while let Some(check) = checks.next().await {
            match check {
                Ok(()) => up += 1,
                Err(error) => errors.push(error),
            }
            if up == majority(members.len()) {
                return Ok(());
            }
        }
        self.nodes.need_majority(errors.iter().map(Some))
    }
}

async fn release(nodes: Arc<Nodes>, group: Vec<Pending<Lock, Result<(), LeaseError>>>) {
    let keys: Vec<Key<'_>> = group.iter().map(|one| key(&one.request)).collect();
    let answers = join_all(nodes.members.iter().map(|member| member.release(&keys))).await;
    drop(keys);
    let answer = nodes.need_majority(answers.iter().map(|answer| answer.as_ref().err()));
    for one in group {
        one.answer(answer.clone());
    }
}

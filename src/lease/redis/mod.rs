//! Locks in one Redis. Key and value are those of the common clients: the token as text under the
//! lock's name, set with `NX PX`, deleted by its owner only.
//!
//! Calls that wait at the same moment share one script call. A lock counts as ours from before the
//! command was sent, less a drift for clocks that tick unevenly. The scripts of a group touch keys
//! of any slot: this is for a single server (or one behind Sentinel), not for Redis Cluster.

mod node;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::node::{Key, Node, Vote};
use super::{Acquired, LeaseError, LeaseStore, Lock, Renewal};
use crate::clock::Clock;
use crate::coalesce::{Coalescer, Pending};
use crate::connection::{RedisError, RedisLink, RedisTarget};
use crate::domain::LockToken;

/// How the lock store is set up.
#[derive(Debug, Clone)]
pub struct RedisLeaseOptions {
    /// Which Redis.
    pub target: RedisTarget,
    /// How long a lock lives unless it is renewed.
    pub ttl: Duration,
    /// The deadline of each call, connecting included.
    pub call_timeout: Duration,
    /// The most locks of one round trip; below 1000.
    pub group: usize,
    /// Round trips that may be under way at once, for acquiring and for releasing each.
    pub committers: usize,
    /// The clock that validity is measured on.
    pub clock: Clock,
}

impl RedisLeaseOptions {
    /// The defaults: locks live 5 s, 500 ms a call, groups of 256, 2 committers.
    pub fn new(target: RedisTarget, clock: Clock) -> Self {
        Self {
            target,
            ttl: Duration::from_secs(5),
            call_timeout: Duration::from_millis(500),
            group: 256,
            committers: 2,
            clock,
        }
    }
}

/// Keeps the arguments of one script call and its latency small.
const MAX_GROUP: usize = 999;

/// Locks in Redis.
pub struct RedisLeases {
    node: Node,
    group: usize,
    acquiring: Coalescer<Arc<str>, Result<Acquired, LeaseError>>,
    releasing: Coalescer<Lock, Result<(), LeaseError>>,
}

impl RedisLeases {
    /// A store that connects at its first call. Must be made within the runtime that uses it.
    pub fn new(options: RedisLeaseOptions) -> Self {
        let RedisLeaseOptions { target, ttl, call_timeout, group, committers, clock } = options;
        let group = group.clamp(1, MAX_GROUP);
        let node = Node::new(RedisLink::new(target, call_timeout), ttl);
        let (acquirer, releaser) = (node.clone(), node.clone());
        Self {
            node,
            group,
            acquiring: Coalescer::start(committers, group, move |group| {
                acquire(acquirer.clone(), clock, ttl, group)
            }),
            releasing: Coalescer::start(committers, group, move |group| {
                release(releaser.clone(), group)
            }),
        }
    }

    fn stopped(&self) -> LeaseError {
        RedisError::Unavailable {
            address: self.node.address().to_owned(),
            message: "the lock store is being shut down".into(),
        }
    }
}

#[async_trait]
impl LeaseStore for RedisLeases {
    async fn acquire(&self, name: &str) -> Result<Acquired, LeaseError> {
        self.acquiring.call(name.into()).await.unwrap_or_else(|| Err(self.stopped()))
    }

    async fn release(&self, lock: &Lock) -> Result<(), LeaseError> {
        self.releasing.call(lock.clone()).await.unwrap_or_else(|| Err(self.stopped()))
    }

    async fn renew(&self, locks: &[Lock]) -> Result<Vec<Renewal>, LeaseError> {
        let mut renewals = Vec::with_capacity(locks.len());
        for part in locks.chunks(self.group) {
            let keys: Vec<Key<'_>> = part.iter().map(key).collect();
            renewals.extend(self.node.renew(&keys).await?);
        }
        Ok(renewals)
    }
}

async fn acquire(
    node: Node,
    clock: Clock,
    ttl: Duration,
    group: Vec<Pending<Arc<str>, Result<Acquired, LeaseError>>>,
) {
    let tokens: Vec<LockToken> = group.iter().map(|_| LockToken::random()).collect();
    let keys: Vec<Key<'_>> =
        group.iter().zip(&tokens).map(|(one, token)| (&*one.request, *token)).collect();
    let valid_until = clock.now() + validity(ttl);
    let votes = node.acquire(&keys).await;
    drop(keys);
    match votes {
        Err(error) => group.into_iter().for_each(|one| one.answer(Err(error.clone()))),
        Ok(votes) => {
            for ((one, token), vote) in group.into_iter().zip(tokens).zip(votes) {
                let acquired = match vote {
                    Vote::Granted => {
                        let name = one.request.as_ref().to_owned();
                        Acquired::Granted(Lock { name, token, valid_until })
                    }
                    Vote::Taken(remaining) => {
                        Acquired::Taken { remaining: remaining.unwrap_or(ttl) }
                    }
                };
                one.answer(Ok(acquired));
            }
        }
    }
}

async fn release(node: Node, group: Vec<Pending<Lock, Result<(), LeaseError>>>) {
    let keys: Vec<Key<'_>> = group.iter().map(|one| key(&one.request)).collect();
    let answer = node.release(&keys).await;
    drop(keys);
    for one in group {
        one.answer(answer.clone());
    }
}

fn key(lock: &Lock) -> Key<'_> {
    (&lock.name, lock.token)
}

/// How long a lock counts as ours: the time to live, less 1 % + 2 ms for clocks that tick unevenly.
/// See <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>.
fn validity(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_one_percent_and_two_milliseconds() {
        assert_eq!(validity(Duration::from_secs(5)), Duration::from_millis(4948));
        assert_eq!(validity(Duration::from_millis(1)), Duration::ZERO);
    }
}

//! Locks on one Redis server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::node::{self, Found, Key};
use super::{MAX_GROUP, if_still_valid, key};
use crate::clock::Clock;
use crate::coalesce::{Coalescer, Pending};
use crate::connection::{RedisError, RedisLink, RedisTarget};
use crate::domain::LockToken;
use crate::lease::{Acquired, LeaseError, LeaseStore, Lock, Renewal};
use crate::protocol::quorum::{Vote, validity};

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

/// Locks in one Redis.
pub struct RedisLeases {
    server: Server,
    clock: Clock,
    group: usize,
    acquiring: Coalescer<Arc<str>, Result<Acquired, LeaseError>>,
    releasing: Coalescer<Lock, Result<(), LeaseError>>,
}

impl RedisLeases {
    /// A store that connects at its first call. Must be made within the runtime that uses it.
    pub fn new(options: RedisLeaseOptions) -> Self {
        let RedisLeaseOptions { target, ttl, call_timeout, group, committers, clock } = options;
        let group = group.clamp(1, MAX_GROUP);
        let server = Server { link: RedisLink::new(target, call_timeout), ttl };
        let (acquirer, releaser) = (server.clone(), server.clone());
        Self {
            server,
            clock,
            group,
            acquiring: Coalescer::start(committers, group, move |group| {
                acquire(acquirer.clone(), clock, group)
            }),
            releasing: Coalescer::start(committers, group, move |group| {
                release(releaser.clone(), group)
            }),
        }
    }

    fn stopped(&self) -> LeaseError {
        LeaseError::Redis(RedisError::Unavailable {
            address: self.server.link.address().to_owned(),
            message: "the lock store is being shut down".into(),
        })
    }
}

#[async_trait]
impl LeaseStore for RedisLeases {
    async fn acquire(&self, name: &str) -> Result<Acquired, LeaseError> {
        let answer = self.acquiring.call(name.into()).await.unwrap_or_else(|| Err(self.stopped()));
        match answer? {
            Acquired::Granted(lock) => if_still_valid(self, lock, self.clock).await,
            taken @ Acquired::Taken { .. } => Ok(taken),
        }
    }

    async fn release(&self, lock: &Lock) -> Result<(), LeaseError> {
        self.releasing.call(lock.clone()).await.unwrap_or_else(|| Err(self.stopped()))
    }

    async fn renew(&self, locks: &[Lock]) -> Result<Vec<Renewal>, LeaseError> {
        let mut renewals = Vec::with_capacity(locks.len());
        for part in locks.chunks(self.group) {
            let keys: Vec<Key<'_>> = part.iter().map(key).collect();
            renewals.extend(self.server.renew(&keys).await?);
        }
        Ok(renewals)
    }

    async fn check(&self) -> Result<(), LeaseError> {
        Ok(self.server.link.query(&redis::cmd("PING"), "PING").await.map(drop)?)
    }
}

/// The server and how long locks live there.
#[derive(Clone)]
struct Server {
    link: RedisLink,
    ttl: Duration,
}

impl Server {
    /// Tries once more where the connection broke: with the same tokens, so that what the first try
    /// has set is ours and not a stranger's for as long as it lives.
    async fn acquire(&self, keys: &[Key<'_>]) -> Result<Vec<Vote>, RedisError> {
        let deadline = self.link.deadline();
        let once = async || {
            let connection = self.link.connection(deadline).await?;
            node::acquire(&connection, deadline, self.ttl, keys).await
        };
        match once().await {
            Err(error) if is_worth_another(&error, deadline) => once().await,
            answer => answer,
        }
    }

    async fn release(&self, keys: &[Key<'_>]) -> Result<(), RedisError> {
        let deadline = self.link.deadline();
        let once = async || {
            let connection = self.link.connection(deadline).await?;
            node::release(&connection, deadline, keys).await
        };
        match once().await {
            Err(error) if is_worth_another(&error, deadline) => once().await,
            answer => answer,
        }
    }

    async fn extend(&self, keys: &[Key<'_>]) -> Result<Vec<Found>, RedisError> {
        let deadline = self.link.deadline();
        let once = async || {
            let connection = self.link.connection(deadline).await?;
            node::extend(&connection, deadline, self.ttl, keys).await
        };
        match once().await {
            Err(error) if is_worth_another(&error, deadline) => once().await,
            answer => answer,
        }
    }

    /// Extends, and sets what is gone in a second step: an extension may be late, a setting that is
    /// late undoes itself.
    async fn renew(&self, keys: &[Key<'_>]) -> Result<Vec<Renewal>, RedisError> {
        let found = self.extend(keys).await?;
        let gone: Vec<Key<'_>> = keys
            .iter()
            .zip(&found)
            .filter(|(_, found)| **found == Found::Gone)
            .map(|(key, _)| *key)
            .collect();
        let set = if gone.is_empty() { Ok(Vec::new()) } else { self.acquire(&gone).await };
        let mut set = set.unwrap_or_default().into_iter();
        let renewal = |found| match found {
            Found::Ours => Renewal::Renewed,
            Found::Foreign => Renewal::Foreign,
            Found::Gone => match set.next() {
                Some(Vote::Granted) => Renewal::Renewed,
                Some(Vote::Taken { .. }) => Renewal::Foreign,
                None => Renewal::Unconfirmed,
            },
        };
        Ok(found.into_iter().map(renewal).collect())
    }
}

/// Whether a call that failed so is tried once more: its connection broke, and time is left. Both
/// tries share a deadline, so that a server that hangs costs nobody two.
fn is_worth_another(error: &RedisError, deadline: Instant) -> bool {
    matches!(error, RedisError::Unavailable { .. } | RedisError::Replica { .. })
        && Instant::now() < deadline
}

async fn acquire(
    server: Server,
    clock: Clock,
    group: Vec<Pending<Arc<str>, Result<Acquired, LeaseError>>>,
) {
    let tokens: Vec<LockToken> = group.iter().map(|_| LockToken::random()).collect();
    let keys: Vec<Key<'_>> =
        group.iter().zip(&tokens).map(|(one, token)| (&*one.request, *token)).collect();
    let valid_until = clock.now() + validity(server.ttl, Duration::ZERO);
    let votes = server.acquire(&keys).await;
    drop(keys);
    match votes {
        Err(error) => group.into_iter().for_each(|one| one.answer(Err(error.clone().into()))),
        Ok(votes) => {
            for ((one, token), vote) in group.into_iter().zip(tokens).zip(votes) {
                let acquired = match vote {
                    Vote::Granted => {
                        let name = one.request.as_ref().to_owned();
                        Acquired::Granted(Lock { name, token, valid_until })
                    }
                    Vote::Taken { remaining, .. } => {
                        Acquired::Taken { remaining: remaining.unwrap_or(server.ttl) }
                    }
                };
                one.answer(Ok(acquired));
            }
        }
    }
}

async fn release(server: Server, group: Vec<Pending<Lock, Result<(), LeaseError>>>) {
    let keys: Vec<Key<'_>> = group.iter().map(|one| key(&one.request)).collect();
    let answer = server.release(&keys).await.map_err(LeaseError::from);
    drop(keys);
    for one in group {
        one.answer(answer.clone());
    }
}

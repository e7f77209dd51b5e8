//! The locks of the commits of one task: `locks:git:repo:REPO:commit:ID`.
//!
//! They keep others from analysing a commit at the same time, and are never what correctness rests on:
//! that is the fence of the commit's row. Taking them goes to the lock store all at once, which makes
//! one step of it. While they are held they are renewed at the heartbeat's pace.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::MissedTickBehavior;

use crate::clock::Clock;
use crate::connection::RedisError;
use crate::domain::LockToken;
use crate::handler::git::oid::ObjectId;
use crate::lease::{Acquired, LeaseError, LeaseStore, Lock, Renewal};

/// The locks that we hold.
pub(super) struct Locks {
    leases: Arc<dyn LeaseStore>,
    held: Mutex<HashMap<ObjectId, Lock>>,
}

/// What taking locks came to.
pub(super) struct Taken {
    /// Ours.
    pub(super) locks: Locks,
    /// If others hold some: the shortest time until one of these may be free.
    pub(super) wait: Option<Duration>,
}

/// The key of a commit's lock.
pub(super) fn name(repo: &str, commit: &ObjectId) -> String {
    format!("locks:git:repo:{repo}:commit:{commit}")
}

impl Locks {
    /// Takes those that are free.
    pub(super) async fn take(
        leases: &Arc<dyn LeaseStore>,
        repo: &str,
        commits: &[ObjectId],
    ) -> Result<Taken, LeaseError> {
        let names: Vec<String> = commits.iter().map(|commit| name(repo, commit)).collect();
        let answers = join_all(names.iter().map(|name| leases.acquire(name))).await;
        let locks = Self { leases: Arc::clone(leases), held: Mutex::default() };
        let mut wait: Option<Duration> = None;
        let mut failed = None;
        for ((commit, name), answer) in commits.iter().zip(names).zip(answers) {
            match answer {
                Ok(Acquired::Granted(lock)) => drop(locks.held().insert(*commit, lock)),
                Ok(Acquired::Taken { remaining }) => {
                    wait = Some(wait.map_or(remaining, |wait| wait.min(remaining)));
                }
                // A Redis that is full takes no lock, and the fence decides without it too.
                Err(LeaseError::Redis(RedisError::Refused { .. })) => {
                    let (token, valid_until) = (LockToken::random(), Clock::System.now());
                    drop(locks.held().insert(*commit, Lock { name, token, valid_until }));
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => {
                locks.release_all().await;
                Err(error)
            }
            None => Ok(Taken { locks, wait }),
        }
    }

    /// The commits whose locks are ours.
    pub(super) fn commits(&self) -> Vec<ObjectId> {
        self.held().keys().copied().collect()
    }

    /// Whether the lock of a commit is ours.
    pub(super) fn holds(&self, commit: &ObjectId) -> bool {
        self.held().contains_key(commit)
    }

    /// Gives back the locks of commits that are finished.
    pub(super) async fn release(&self, commits: impl IntoIterator<Item = ObjectId>) {
        let locks: Vec<Lock> = {
            let mut held = self.held();
            commits.into_iter().filter_map(|commit| held.remove(&commit)).collect()
        };
        // Where this fails, their time to live ends as well.
        join_all(locks.iter().map(|lock| self.leases.release(lock))).await;
    }

    /// Gives back all.
    pub(super) async fn release_all(&self) {
        self.release(self.commits()).await;
    }

    /// Renews them until another has the last of them. A lock that another has is ours no more.
    pub(super) async fn keep(&self, every: Duration) {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let (commits, locks): (Vec<ObjectId>, Vec<Lock>) =
                self.held().iter().map(|(commit, lock)| (*commit, lock.clone())).unzip();
            // What cannot be renewed now may be at the next beat.
            let renewals = self.leases.renew(&locks).await.unwrap_or_default();
            let mut held = self.held();
            for ((commit, lock), renewal) in commits.iter().zip(&locks).zip(renewals) {
                if renewal == Renewal::Foreign && held.get(commit) == Some(lock) {
                    held.remove(commit);
                    tracing::warn!(lock = lock.name, "another worker has the lock of this commit");
                }
            }
            if held.is_empty() && !commits.is_empty() {
                return;
            }
        }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<ObjectId, Lock>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

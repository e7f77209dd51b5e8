//! The locks behind a link.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use queue_worker::lease::memory::MemoryLeases;
use queue_worker::lease::{Acquired, LeaseError, LeaseStore, Lock, Renewal};

use super::super::link::{Fault, Link, Side};
use super::super::mutation::Mutation;
use super::redis_error;

fn lease_error(fault: Fault) -> LeaseError {
    LeaseError::Redis(redis_error(fault))
}

pub(super) struct SimLeases {
    pub(super) link: Arc<Link>,
    pub(super) inner: MemoryLeases,
    /// The locks of the last renewal.
    pub(super) last: Mutex<Vec<Lock>>,
}

#[async_trait]
impl LeaseStore for SimLeases {
    async fn acquire(&self, name: &str) -> Result<Acquired, LeaseError> {
        let world = &self.link.world;
        let mut taken = None;
        let acquire = async {
            let answer = self.inner.acquire(name).await?;
            if let Acquired::Granted(lock) = &answer {
                taken = Some(lock.clone());
                world.check(|checker| checker.locked(self.link.worker, lock));
            }
            Ok(answer)
        };
        match self.link.call(Side::Redis, acquire).await {
            Ok(answer) => answer,
            Err(fault) => {
                // The store deletes what it may have set, if it still can.
                if let Some(lock) = taken
                    && world.with_faults(|faults| faults.chance.hit(0.5))
                {
                    self.inner.release(&lock).await?;
                }
                Err(lease_error(fault))
            }
        }
    }

    async fn check(&self) -> Result<(), LeaseError> {
        self.link.call(Side::Redis, async {}).await.map_err(lease_error)
    }

    async fn release(&self, lock: &Lock) -> Result<(), LeaseError> {
        let world = &self.link.world;
        let release = async {
            if world.is(Mutation::NoUnlock) {
                return Ok(());
            }
            let before = world.locks.token(&lock.name);
            if world.is(Mutation::UnlockWithoutCompare) {
                world.locks.forget(&lock.name);
            }
            let answer = self.inner.release(lock).await;
            world.check(|checker| checker.unlocked(lock, before));
            answer
        };
        self.link.call(Side::Redis, release).await.map_err(lease_error)?
    }

    async fn renew(&self, locks: &[Lock]) -> Result<Vec<Renewal>, LeaseError> {
        let world = &self.link.world;
        let last = std::mem::replace(&mut *self.last.lock().unwrap(), locks.to_vec());
        let mut all = locks.to_vec();
        if world.is(Mutation::BeatAfterRelease) {
            all.extend(last);
        }
        let renew = async {
            let before: Vec<_> = all.iter().map(|lock| world.locks.token(&lock.name)).collect();
            if world.is(Mutation::RenewLockWithoutCompare) {
                for lock in &all {
                    world.locks.forget(&lock.name);
                }
            }
            let mut answers = self.inner.renew(&all).await?;
            answers.truncate(locks.len());
            world.check(|checker| checker.relocked(&all, &before));
            Ok(answers)
        };
        self.link.call(Side::Redis, renew).await.map_err(lease_error)?
    }
}

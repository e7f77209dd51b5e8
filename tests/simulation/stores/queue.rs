//! The stream behind a link.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use queue_worker::domain::{Delivery, EntryId, QueueName, RawEntry};
use queue_worker::queue::memory::MemoryQueue;
use queue_worker::queue::{CutShort, Demand, Queue, QueueError, codec};

use super::super::link::{Fault, Link, Side};
use super::super::mutation::Mutation;
use super::super::world::{LEASE, MAX_PAYLOAD};
use super::{Brought, redis_error, unsure};

pub(super) struct SimQueue {
    pub(super) link: Arc<Link>,
    pub(super) inner: MemoryQueue,
    pub(super) interrupted: AtomicBool,
    pub(super) brought: Brought,
}

impl SimQueue {
    fn seen(&self, how: &str, deliveries: &[Delivery]) {
        let world = &self.link.world;
        for delivery in deliveries {
            world.note(self.link.worker, format_args!("{how} {}", delivery.entry));
            let (entry, raw) = (delivery.entry, &delivery.raw);
            world.check(|checker| checker.delivered(self.link.worker, entry, raw));
            if let Ok(task) = codec::decode(delivery, MAX_PAYLOAD) {
                let entry = (delivery.entry, delivery.raw.clone());
                self.brought.lock().unwrap().insert(task.id, entry);
            }
        }
    }

    /// Plays a worker that takes back what it has lost, if that is the mutation.
    fn steal(&self, entry: EntryId) {
        let world = &self.link.world;
        if world.is(Mutation::GiveBackWithoutOwner)
            && world.streams.owner(&world.queue, entry).is_some()
        {
            world.streams.give(&world.queue, entry, self.link.worker, LEASE);
        }
    }
}

#[async_trait]
impl Queue for SimQueue {
    async fn check(&self) -> Result<(), QueueError> {
        self.link.call(Side::Redis, async {}).await.map_err(redis_error)
    }

    async fn check_writes(&self) -> Result<(), QueueError> {
        self.link.call(Side::Redis, async {}).await.map_err(redis_error)
    }

    async fn fetch(
        &self,
        queue: &QueueName,
        demand: Demand,
        block: Duration,
    ) -> Result<Vec<Delivery>, CutShort> {
        self.interrupted.store(false, Ordering::SeqCst);
        let read = async {
            let interrupted = self.interrupted.load(Ordering::SeqCst);
            let block = if interrupted { Duration::ZERO } else { block };
            let deliveries = self.inner.fetch(queue, demand, block).await?;
            self.seen("fetches", &deliveries);
            Ok(deliveries)
        };
        self.link.call(Side::Redis, read).await.map_err(redis_error)?
    }

    async fn interrupt(&self, queue: &QueueName) {
        self.interrupted.store(true, Ordering::SeqCst);
        self.link.gate().await;
        self.inner.interrupt(queue).await;
    }

    async fn reclaim(&self, queue: &QueueName, demand: Demand) -> Result<Vec<Delivery>, CutShort> {
        let read = async {
            let deliveries = self.inner.reclaim(queue, demand).await?;
            self.seen("reclaims", &deliveries);
            Ok(deliveries)
        };
        self.link.call(Side::Redis, read).await.map_err(redis_error)?
    }

    async fn delivered(
        &self,
        queue: &QueueName,
        after: EntryId,
        demand: Demand,
    ) -> Result<Vec<Delivery>, CutShort> {
        let read = async {
            let deliveries = self.inner.delivered(queue, after, demand).await?;
            self.seen("finds", &deliveries);
            Ok(deliveries)
        };
        self.link.call(Side::Redis, read).await.map_err(redis_error)?
    }

    async fn settle(&self, queue: &QueueName, entry: EntryId) -> Result<(), QueueError> {
        let settle = async {
            self.link.world.note(self.link.worker, format_args!("settles {entry}"));
            self.link.world.check(|checker| checker.acks(self.link.worker, entry));
            self.inner.settle(queue, entry).await
        };
        self.link.call(Side::Redis, settle).await.map_err(redis_error)?
    }

    async fn hand_over(
        &self,
        queue: &QueueName,
        entry: EntryId,
        raw: &RawEntry,
    ) -> Result<(), QueueError> {
        let world = &self.link.world;
        let mut is_gone = false;
        let give = async {
            is_gone = world.streams.entry(queue, entry).is_none();
            world.note(self.link.worker, format_args!("hands over {entry}"));
            let before = world.check(|checker| checker.hands_over(self.link.worker, entry, raw));
            self.steal(entry);
            let answer = self.inner.hand_over(queue, entry, raw).await;
            world.check(|checker| checker.gave_back(self.link.worker, entry, before));
            answer
        };
        let answer = self.link.call(Side::Redis, give).await;
        answer.map_err(|fault| {
            if is_gone && fault == Fault::Lost { unsure() } else { redis_error(fault) }
        })?
    }

    async fn postpone(
        &self,
        queue: &QueueName,
        entry: EntryId,
        remaining: Duration,
    ) -> Result<(), QueueError> {
        let world = &self.link.world;
        let give = async {
            world.note(self.link.worker, format_args!("postpones {entry} by {remaining:?}"));
            let before = world.check(|checker| checker.pending(entry));
            world.check(|checker| checker.postpones(self.link.worker, entry));
            self.steal(entry);
            let answer = self.inner.postpone(queue, entry, remaining).await;
            world.check(|checker| checker.gave_back(self.link.worker, entry, before));
            answer
        };
        self.link.call(Side::Redis, give).await.map_err(redis_error)?
    }

    async fn touch(&self, entries: &[(QueueName, EntryId)]) -> Result<Vec<bool>, QueueError> {
        self.link.call(Side::Redis, self.inner.touch(entries)).await.map_err(redis_error)?
    }

    async fn append(&self, queue: &QueueName, raw: &RawEntry) -> Result<EntryId, QueueError> {
        let append = async {
            let entry = self.inner.append(queue, raw).await?;
            self.link.world.note(self.link.worker, format_args!("appends {entry}"));
            Ok(entry)
        };
        self.link.call(Side::Redis, append).await.map_err(redis_error)?
    }

    async fn contains(&self, queue: &QueueName, entry: EntryId) -> Result<bool, QueueError> {
        self.link.call(Side::Redis, self.inner.contains(queue, entry)).await.map_err(redis_error)?
    }

    async fn reap_consumers(
        &self,
        queue: &QueueName,
        stale_after: Duration,
    ) -> Result<u64, QueueError> {
        let world = &self.link.world;
        let reap = async {
            if world.is(Mutation::ReapWithPending) {
                for (entry, owner, _) in world.streams.pending(queue) {
                    if owner == self.link.worker {
                        world.streams.forget_pending(queue, entry);
                    }
                }
            }
            self.inner.reap_consumers(queue, stale_after).await
        };
        self.link.call(Side::Redis, reap).await.map_err(redis_error)?
    }
}

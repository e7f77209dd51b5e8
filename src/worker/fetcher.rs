//! One loop per queue that turns free places into deliveries.
//!
//! Reclaimed entries go before new ones, and both only as far as there is room. The loop ends when
//! the worker leaves: the blocked read is interrupted, and what it had brought is handed over, as is
//! what may have been delivered unseen before. While the worker goes on, that is looked for however full
//! it is, and handed over if there is no room. A look into the pending list may take as long as the
//! largest entry needs to arrive; it is given up then, and what it would have brought idles until
//! somebody reclaims it. The loop owns the executions that it starts, and waits for them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use super::executor::Executor;
use super::health::AFTER_REFUSAL;
use super::slots::Slots;
use super::{Context, Served};
use crate::clock::BootInstant;
use crate::domain::{Delivery, EntryId};
use crate::protocol::backoff;
use crate::queue::{CutShort, Demand, QueueError};

/// A blocked read comes back this often, also to show that the loop is alive.
const BLOCK: Duration = Duration::from_secs(2);

/// No read asks for more: the group size that measured best.
const MOST_PER_READ: usize = 256;

/// What each step of a look through everything that is pending for our name brings. Most of it is in
/// flight and needs no room; the rest is beyond what room there is, for a moment.
const LOOK: Demand = Demand { entries: MOST_PER_READ, bytes: 8 * 1024 * 1024 };

/// How long a leaving worker still waits for a look into the pending list, to hand over what it
/// brings instead of leaving it to idle.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Fetches and starts the deliveries of one queue.
pub struct Fetcher {
    context: Context,
    served: Served,
    slots: Arc<Slots>,
    executor: Arc<Executor>,
    running: TaskTracker,
    next_sweep: BootInstant,
    /// Entries may have been delivered to us on a connection that broke.
    unseen: bool,
}

impl Fetcher {
    /// A fetcher for a queue.
    pub fn new(context: Context, served: Served, slots: Arc<Slots>) -> Self {
        let executor = Arc::new(Executor::new(context.clone(), served.clone()));
        let next_sweep = context.clock.now();
        Self {
            context,
            served,
            slots,
            executor,
            running: TaskTracker::new(),
            next_sweep,
            unseen: false,
        }
    }

    /// Fetches until the worker leaves, then waits for what runs.
    pub async fn run(mut self) {
        let leaving = self.context.stop.leaving.clone();
        while !leaving.is_cancelled() {
            self.context.progress.came_round();
            tokio::select! {
                biased;
                () = leaving.cancelled() => break,
                () = self.until_something_is_to_do() => {}
            }
            if let Err(error) = self.turn().await {
                self.context.health.redis.doubt(&error);
                self.unseen = true;
                let pause =
                    if error.is_transient() { self.context.limits.sweep } else { AFTER_REFUSAL };
                tokio::select! {
                    biased;
                    () = leaving.cancelled() => break,
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
        if self.unseen {
            self.last_look().await;
        }
        self.running.close();
        self.running.wait().await;
    }

    /// Waits while the worker is quiet or a store is away. For what was delivered unseen Redis alone
    /// is enough: it can be handed over.
    async fn until_something_is_to_do(&self) {
        let health = &self.context.health;
        loop {
            let pulling = async {
                if self.unseen {
                    return health.redis.until_up().await;
                }
                while !self.may_pull() {
                    health.until_ready().await;
                    self.context.phase.wait_for(|phase| phase.pulls()).await;
                }
            };
            // Comes back now and then only to show that the loop is alive.
            if tokio::time::timeout(BLOCK, pulling).await.is_ok() {
                return;
            }
            self.context.progress.came_round();
        }
    }

    fn may_pull(&self) -> bool {
        self.context.phase.get().pulls() && self.context.health.is_ready()
    }

    /// One turn: what nobody saw, then orphans, then new entries.
    async fn turn(&mut self) -> Result<(), QueueError> {
        if self.unseen {
            return self.look_for_unseen().await;
        }
        let Some(ask) = self.slots.ask(MOST_PER_READ, self.served.max_payload) else {
            tokio::select! {
                biased;
                () = self.context.stop.leaving.cancelled() => {}
                () = self.slots.freed() => {}
                () = tokio::time::sleep(self.context.limits.sweep) => {}
            }
            return Ok(());
        };
        let now = self.context.clock.now();
        if now >= self.next_sweep && self.sweep(ask.demand(), now).await? {
            return Ok(());
        }
        let block = BLOCK.min(self.next_sweep.saturating_since(now));
        self.fetch(ask.demand(), block).await
    }

    /// Takes over what idles; answers whether the turn is over with it.
    async fn sweep(&mut self, demand: Demand, now: BootInstant) -> Result<bool, QueueError> {
        let queue = Arc::clone(&self.context.stores.queue);
        let look = queue.reclaim(&self.served.name, demand);
        let Some(orphans) = self.unless_leaving(look).await else {
            // It may have taken some already, and was told of none.
            self.unseen = true;
            return Ok(true);
        };
        let (orphans, ended) = CutShort::split(orphans);
        let sweep = self.context.limits.sweep;
        // Not at once again after a few: what is just given back here would come and go for ever.
        if orphans.len() < demand.entries {
            self.next_sweep =
                now + backoff::between(sweep / 2, sweep, self.context.dice.fraction());
        }
        let found = orphans.len();
        self.executor.counts.reclaimed.inc_by(found as u64);
        self.start(orphans);
        ended.map(|()| found > 0)
    }

    /// Reads new entries. When the worker stops pulling, the read is interrupted, and what it had
    /// brought goes to the executor, which hands it over if the worker leaves.
    async fn fetch(&mut self, demand: Demand, block: Duration) -> Result<(), QueueError> {
        let queue = Arc::clone(&self.context.stores.queue);
        let name = self.served.name.clone();
        let phase = Arc::clone(&self.context.phase);
        if !phase.get().pulls() {
            return Ok(());
        }
        let mut fetch = queue.fetch(&name, demand, block);
        let interrupted = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| !phase.pulls()) => None,
            deliveries = self.context.progress.waiting(&mut fetch) => Some(deliveries),
        };
        let deliveries = if let Some(deliveries) = interrupted {
            deliveries
        } else {
            let ended = async { tokio::join!(&mut fetch, queue.interrupt(&name)).0 };
            self.context.progress.waiting(ended).await
        };
        drop(fetch);
        let (deliveries, ended) = CutShort::split(deliveries);
        self.start(deliveries);
        ended
    }

    /// Looks through everything that is pending for our name. What is not in flight is started where
    /// there is room, and handed over where there is none: nobody else would look at it for a lease.
    async fn look_for_unseen(&mut self) -> Result<(), QueueError> {
        let queue = Arc::clone(&self.context.stores.queue);
        let mut after = EntryId { ms: 0, seq: 0 };
        loop {
            let look = queue.delivered(&self.served.name, after, LOOK);
            // Of a look that takes long nothing more is hoped for.
            let Some(page) = self.unless_leaving(look).await else { break };
            let (page, ended) = CutShort::split(page);
            let last = page.last().map(|delivery| delivery.entry);
            for delivery in page {
                self.start_or_hand_over(delivery);
            }
            ended?;
            let Some(last) = last else { break };
            after = last;
        }
        self.unseen = false;
        Ok(())
    }

    /// Hands over what a leaving worker was delivered unseen, as far as it comes in time.
    async fn last_look(&mut self) {
        let look = tokio::time::timeout(LAST_LOOK, self.look_for_unseen());
        if let Ok(Err(error)) = look.await {
            self.context.health.redis.doubt(&error);
        }
    }

    /// What a look into the pending list brings; `None` if the worker leaves and it takes long.
    async fn unless_leaving<T>(&self, look: impl Future<Output = T>) -> Option<T> {
        let gives_up = async {
            self.context.stop.leaving.cancelled().await;
            tokio::time::sleep(LAST_LOOK).await;
        };
        tokio::select! {
            biased;
            found = self.context.progress.waiting(look) => Some(found),
            () = gives_up => None,
        }
    }

    /// Starts a delivery each; those that are in flight here already are dropped. A leaving worker
    /// starts them too: the executor hands them over.
    fn start(&self, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            let Some(place) = self.slots.take(&delivery) else { continue };
            let executor = Arc::clone(&self.executor);
            self.running.spawn(async move { executor.execute(delivery, place).await });
        }
    }

    /// A store that is in doubt is no reason to hand over: a giant is in hand at last, and makes Redis
    /// slow.
    fn start_or_hand_over(&self, delivery: Delivery) {
        if self.context.phase.get().pulls() && self.slots.has_room() {
            return self.start(vec![delivery]);
        }
        let Some(place) = self.slots.take(&delivery) else { return };
        let executor = Arc::clone(&self.executor);
        self.running.spawn(async move { executor.hand_over(delivery, place).await });
    }
}

#[cfg(test)]
mod tests;

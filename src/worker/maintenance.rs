//! Promotes what is due, reaps consumers that have nothing left, and prunes what is old.
//!
//! A due row's entry goes into the stream first and the row is marked after that: a crash between
//! the two leaves one entry too many, which the ledger answers as done or running; the other order
//! would lose the task.

use std::sync::Arc;
use std::time::Duration;

use super::Context;
use crate::domain::QueueName;
use crate::ledger::Due;
use crate::protocol::backoff;

/// At most this many rows per look.
const DUE_PER_LOOK: usize = 256;

/// Between two looks for stale consumers.
const REAP_EVERY: Duration = Duration::from_secs(60);

/// A consumer that has nothing pending and was idle this long belongs to a worker that is gone.
pub const STALE_CONSUMER: Duration = Duration::from_secs(600);

/// Batches that one round of pruning deletes at most; the next round goes on.
const MOST_BATCHES: u32 = 100;

/// Sweeps until the worker leaves.
pub struct Maintenance {
    context: Context,
    queues: Vec<QueueName>,
}

impl Maintenance {
    /// Maintenance of the queues that this worker serves (and of every delayed row).
    pub const fn new(context: Context, queues: Vec<QueueName>) -> Self {
        Self { context, queues }
    }

    /// Sweeps and prunes until the worker leaves.
    pub async fn run(self) {
        tokio::join!(self.sweep(), self.prune_now_and_then());
    }

    async fn prune_now_and_then(&self) {
        let mut prune = tokio::time::interval(self.context.limits.prune_every);
        prune.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.context.stop.leaving.cancelled() => return,
                _ = prune.tick() => {}
            }
            tokio::select! {
                biased;
                () = self.context.stop.leaving.cancelled() => return,
                () = self.context.health.until_ready() => self.prune().await,
            }
        }
    }

    async fn sweep(&self) {
        let leaving = self.context.stop.leaving.clone();
        let mut reap = tokio::time::interval(REAP_EVERY);
        reap.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let sweep = self.context.limits.sweep;
            let pause = backoff::between(sweep / 2, sweep, self.context.dice.fraction());
            tokio::select! {
                biased;
                () = leaving.cancelled() => return,
                _ = reap.tick() => {
                    self.reap().await;
                    self.find_strays().await;
                }
                () = tokio::time::sleep(pause) => {}
            }
            tokio::select! {
                biased;
                () = leaving.cancelled() => return,
                () = self.context.health.until_ready() => {}
            }
            self.promote().await;
        }
    }

    async fn promote(&self) {
        loop {
            let due = match self.context.stores.ledger.due(DUE_PER_LOOK).await {
                Ok(due) => due,
                Err(error) => return self.context.health.postgres.doubt(&error),
            };
            let full = due.len() == DUE_PER_LOOK;
            let promotions = due.into_iter().map(|due| self.promote_one(due));
            let done = futures_util::future::join_all(promotions).await;
            // What failed stays as it is until its reservation ends by itself.
            if !full || done.contains(&false) || self.context.stop.leaving.is_cancelled() {
                return;
            }
        }
    }

    /// Puts one row's entry into the stream, and says whether both stores took it.
    async fn promote_one(&self, due: Due) -> bool {
        let queue = Arc::clone(&self.context.stores.queue);
        let still_there = match due.entry {
            Some(entry) => {
                queue.contains(&due.queue, entry).await.map(|there| there.then_some(entry))
            }
            None => Ok(None),
        };
        let entry = match still_there {
            Ok(Some(entry)) => Ok(entry),
            Ok(None) => queue.append(&due.queue, &due.raw).await,
            Err(error) => Err(error),
        };
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                self.context.health.redis.doubt(&error);
                return false;
            }
        };
        match self.context.stores.ledger.promoted(&due, entry).await {
            Ok(()) => {
                self.context.counts.promoted.inc();
                true
            }
            Err(error) => {
                self.context.health.postgres.doubt(&error);
                false
            }
        }
    }

    async fn find_strays(&self) {
        match self.context.stores.ledger.find_strays().await {
            Ok(0) => {}
            Ok(strays) => tracing::warn!("{strays} claimed tasks were left behind; taken up again"),
            Err(error) => self.context.health.postgres.doubt(&error),
        }
    }

    async fn prune(&self) {
        for _ in 0..MOST_BATCHES {
            match self.context.stores.ledger.prune(&self.context.limits.retention).await {
                Ok(pruned) if pruned.more && !self.context.stop.leaving.is_cancelled() => {}
                Ok(_) => return,
                Err(error) => return self.context.health.postgres.doubt(&error),
            }
        }
    }

    async fn reap(&self) {
        for queue in &self.queues {
            if let Err(error) =
                self.context.stores.queue.reap_consumers(queue, STALE_CONSUMER).await
            {
                self.context.health.redis.doubt(&error);
            }
        }
    }
}

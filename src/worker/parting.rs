//! What becomes of the stream's entry when its delivery is over, and of tasks that are not run.

use std::sync::Arc;
use std::time::Duration;

use super::executor::Executor;
use super::health::StoreError;
use crate::clock::BootInstant;
use crate::domain::{Delivery, Malformed, MalformedReason, Task};
use crate::lease::Lock;
use crate::ledger::{Claimed, DelayReason, Delayed, Recorded};
use crate::protocol::backoff::{Backoff, Growing};

/// A task whose resource is busy waits between these before it asks again, ever longer.
const CONTENTION: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A task of an unknown kind waits between these for a worker that knows it, ever longer.
const UNKNOWN_KIND: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A suspect that found no turn here waits between these before it is looked at again, ever longer:
/// meanwhile the worker goes on with others.
const SUSPECT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A row that moved on under our hands is looked at again after this. With a sweep on top it stays
/// well within the second that a recovery may take beyond the lease.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// While the worker leaves, an acknowledgement is tried this often: its outcome is committed, and
/// whoever gets the entry next finds it done.
const PARTING_TRIES: u32 = 3;

/// What would let others take the lock waits for so many tries of deleting it.
const LOCK_FIRST: u32 = 2;

/// What becomes of the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// Committed in the ledger: acknowledge and delete it.
    Acknowledge,
    /// Ours no longer: at once claimable by anyone.
    HandOver,
    /// Another worker has the task for this long: claimable after that.
    Postpone(Duration),
    /// Nothing can be said about it: it idles, and is reclaimed.
    Leave,
    /// Its task has crashed workers and has to run alone; it has waited for this long.
    Suspect(Duration),
}

impl Executor {
    /// Leaves the entry as `exit` says, and releases the lock: after an acknowledgement has been
    /// committed in any order, before a hand-over first, so that the next one finds it free.
    pub(super) async fn part(&self, delivery: &Delivery, exit: Exit, lock: Option<Lock>) {
        match exit {
            Exit::Acknowledge => {
                tokio::join!(self.acknowledge(delivery), self.unlock(lock));
            }
            Exit::Leave => Box::pin(self.after_release(lock, async {})).await,
            Exit::HandOver | Exit::Suspect(_) => {
                Box::pin(self.after_release(lock, self.hand_back(delivery))).await;
            }
            Exit::Postpone(remaining) => {
                Box::pin(self.after_release(lock, self.postpone(delivery, remaining))).await;
            }
        }
    }

    /// Gives the entry back, to be claimable at once.
    async fn hand_back(&self, delivery: &Delivery) {
        let queue = &self.context.stores.queue;
        self.insist(|| queue.hand_over(&delivery.queue, delivery.entry, &delivery.raw)).await;
    }

    /// Gives the entry back, to be claimable `remaining` from now.
    pub(super) async fn postpone(&self, delivery: &Delivery, remaining: Duration) {
        let queue = &self.context.stores.queue;
        let until = self.context.clock.now() + remaining;
        let give = || {
            let left = until.saturating_since(self.context.clock.now());
            queue.postpone(&delivery.queue, delivery.entry, left)
        };
        self.insist(give).await;
    }

    /// Deletes the lock, and does then what lets others take it. That waits for two tries of the
    /// first at most: while the lock stands, others only put the task off.
    pub(super) async fn after_release<T>(
        &self,
        lock: Option<Lock>,
        then: impl Future<Output = T>,
    ) -> T {
        let Some(lock) = lock else { return then.await };
        let free_by_itself = self.context.clock.now() + self.context.limits.lease;
        let release = || self.context.stores.leases.release(&lock);
        for tries in 1..=LOCK_FIRST {
            if !self.is_to_be_repeated(release().await, free_by_itself) {
                return then.await;
            }
            if tries < LOCK_FIRST {
                self.pause(tries).await;
            }
        }
        let releasing = async {
            self.pause(LOCK_FIRST).await;
            self.insist_until(release, free_by_itself, LOCK_FIRST).await;
        };
        tokio::join!(releasing, then).1
    }

    /// Gives something back until Redis takes it, for as long as that is sooner than waiting until it
    /// is free by itself: taken over and not given back, an entry idles for a second lease, and so
    /// does a lock that nobody holds.
    async fn insist<F, E>(&self, give: impl Fn() -> F)
    where
        F: Future<Output = Result<(), E>>,
        E: StoreError,
    {
        let free_by_itself = self.context.clock.now() + self.context.limits.lease;
        self.insist_until(give, free_by_itself, 0).await;
    }

    /// As [`Self::insist`], after so many `tries`.
    async fn insist_until<F, E>(&self, give: impl Fn() -> F, until: BootInstant, mut tries: u32)
    where
        F: Future<Output = Result<(), E>>,
        E: StoreError,
    {
        while self.is_to_be_repeated(give().await, until) {
            tries += 1;
            self.pause(tries).await;
        }
    }

    /// Whether what was answered calls for another try. A worker that leaves has no time to lose; what
    /// others would meet too, or what may have been applied and must not be twice, is left as it is.
    fn is_to_be_repeated(
        &self,
        answer: Result<(), impl StoreError>,
        free_by_itself: BootInstant,
    ) -> bool {
        let Err(error) = answer else { return false };
        self.context.health.redis.doubt(&error);
        error.is_transient()
            && !self.context.stop.leaving.is_cancelled()
            && self.context.clock.now() < free_by_itself
    }

    /// Waits before the next try: until Redis answers again, or else ever longer.
    async fn pause(&self, tries: u32) {
        tokio::select! {
            biased;
            () = self.context.stop.leaving.cancelled() => {}
            () = self.context.health.redis.until_back() => {}
            () = tokio::time::sleep(Backoff::STORE.wait(tries, self.context.dice.fraction())) => {}
        }
    }

    /// Keeps the acknowledgement until Redis takes it.
    async fn acknowledge(&self, delivery: &Delivery) {
        let mut tries = 0;
        while let Err(error) =
            self.context.stores.queue.settle(&delivery.queue, delivery.entry).await
        {
            self.context.health.redis.doubt(&error);
            tries += 1;
            if self.context.stop.leaving.is_cancelled() && tries >= PARTING_TRIES {
                return;
            }
            tokio::select! {
                biased;
                () = self.context.stop.abandon.cancelled() => return,
                () = tokio::time::sleep(Backoff::STORE.wait(tries, self.context.dice.fraction())) => {}
            }
        }
    }

    /// Deletes the lock of a task that has ended; where that fails, its time to live does.
    async fn unlock(&self, lock: Option<Lock>) {
        if let Some(lock) = lock
            && let Err(error) = self.context.stores.leases.release(&lock).await
        {
            self.context.health.redis.doubt(&error);
        }
    }

    /// What a refused claim means for the entry.
    pub(super) async fn not_claimed(
        &self,
        delivery: &Delivery,
        task: &Arc<Task>,
        refused: Claimed,
    ) -> Exit {
        match refused {
            Claimed::Done(_) | Claimed::Delayed => {
                self.counts_of(task).duplicate.inc();
                Exit::Acknowledge
            }
            Claimed::Running { remaining } => Exit::Postpone(remaining),
            Claimed::Contended { .. } => self.contended(delivery, task).await,
            Claimed::Poisoned { crashes } => self.condemn(task, crashes).await,
            Claimed::Conflict => self.refuse(delivery, task).await,
            Claimed::Suspect { crashes, waited } => {
                tracing::warn!(
                    TASK_ID = %task.id, QUEUE = %task.queue, KIND = %task.kind,
                    "its worker went away {crashes} times in a row while it ran: it runs alone now"
                );
                Exit::Suspect(waited)
            }
            Claimed::Granted(_) => Exit::HandOver,
        }
    }

    /// The id belongs to another task.
    async fn refuse(&self, delivery: &Delivery, task: &Task) -> Exit {
        let message = format!(
            "task_id {:?} was used before for another kind, payload or lock_key; enqueue under a \
             new id",
            task.id.as_str()
        );
        let reason = MalformedReason::Refused;
        self.bury(delivery, &Malformed { reason, message }).await
    }

    /// Stores an entry that can never run among the dead letters.
    pub(super) async fn bury(&self, delivery: &Delivery, malformed: &Malformed) -> Exit {
        let ledger = &self.context.stores.ledger;
        match ledger.bury(&delivery.queue, delivery.entry, &delivery.raw, malformed).await {
            Ok(()) => {
                self.counts.refused(malformed.reason.as_str());
                tracing::warn!(
                    QUEUE = %delivery.queue,
                    "entry {} dead-lettered as {}: {}",
                    delivery.entry,
                    malformed.reason.as_str(),
                    malformed.message
                );
                Exit::Acknowledge
            }
            Err(error) => self.ledger_failed(&error),
        }
    }

    /// How long the task must not run yet.
    pub(super) fn not_before(&self, task: &Task) -> Option<Duration> {
        let ahead = task.not_before_ms?.saturating_sub(self.context.clock.wall_ms());
        u64::try_from(ahead).ok().filter(|ms| *ms > 0).map(Duration::from_millis)
    }

    /// No handler here knows the kind; in a rolling deploy another worker may.
    pub(super) async fn delay_unknown(&self, delivery: &Delivery, task: &Arc<Task>) -> Exit {
        let wait = Growing::new(UNKNOWN_KIND.0, UNKNOWN_KIND.1, self.context.dice.fraction());
        let give_up = self.context.limits.unknown_kind_give_up;
        self.delay(delivery, task, wait, DelayReason::UnknownKind { give_up }).await
    }

    /// The task's resource is busy: it waits without burning anything.
    pub(super) async fn contended(&self, delivery: &Delivery, task: &Arc<Task>) -> Exit {
        let wait = Growing::new(CONTENTION.0, CONTENTION.1, self.context.dice.fraction());
        self.delay(delivery, task, wait, DelayReason::Contended).await
    }

    /// A suspect found no turn to run alone here.
    pub(super) async fn delay_suspect(&self, delivery: &Delivery, task: &Arc<Task>) -> Exit {
        let wait = Growing::new(SUSPECT.0, SUSPECT.1, self.context.dice.fraction());
        self.delay(delivery, task, wait, DelayReason::Suspect).await
    }

    /// Puts the task into Postgres until later.
    pub(super) async fn delay(
        &self,
        delivery: &Delivery,
        task: &Arc<Task>,
        wait: Growing,
        reason: DelayReason,
    ) -> Exit {
        match self.context.stores.ledger.delay(task, wait, reason).await {
            Ok(answer @ (Delayed::Committed | Delayed::Still)) => {
                if answer == Delayed::Committed
                    && let DelayReason::UnknownKind { .. } = reason
                {
                    tracing::warn!(
                        TASK_ID = %task.id, QUEUE = %task.queue, KIND = %task.kind,
                        "no handler for this kind; left for a worker that has [handler.{}]",
                        task.kind
                    );
                }
                self.counts_of(task).delayed.inc();
                self.counts.delayed(reason);
                Exit::Acknowledge
            }
            Ok(Delayed::Done) => {
                self.counts_of(task).duplicate.inc();
                Exit::Acknowledge
            }
            Ok(Delayed::GaveUp) => {
                self.counts_of(task).dead.inc();
                self.counts.dead_letter("unknown_kind");
                tracing::warn!(
                    TASK_ID = %task.id, QUEUE = %task.queue, KIND = %task.kind,
                    "dead: no worker knew its kind in time"
                );
                Exit::Acknowledge
            }
            Ok(Delayed::Conflict) => self.refuse(delivery, task).await,
            // By another entry: what keeps its resource busy may be the very task.
            Ok(Delayed::Running { remaining }) => Exit::Postpone(remaining),
            Ok(Delayed::Stale) => Exit::Postpone(LOOK_AGAIN),
            Err(error) => self.ledger_failed(&error),
        }
    }

    /// The task crashed too many workers in a row.
    async fn condemn(&self, task: &Arc<Task>, crashes: u32) -> Exit {
        match self.context.stores.ledger.condemn(task).await {
            Ok(Recorded::Committed) => {
                self.counts_of(task).dead.inc();
                self.counts.dead_letter("crashed");
                tracing::error!(
                    TASK_ID = %task.id, QUEUE = %task.queue, KIND = %task.kind,
                    "dead: its worker went away {crashes} times in a row while it ran"
                );
                Exit::Acknowledge
            }
            Ok(Recorded::Stale) => Exit::Postpone(LOOK_AGAIN),
            Err(error) => self.ledger_failed(&error),
        }
    }
}

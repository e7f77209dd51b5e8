//! Rank 2: the stream of ready work. A hint that proves nothing: the ledger decides.
//!
//! [`Queue`] is what the worker needs of it. The per-task calls look single; the store gathers the
//! calls that are waiting now and sends one command for all of them.

pub mod codec;
pub mod memory;
mod redis;

use std::time::Duration;

use async_trait::async_trait;

pub use self::redis::{Backlog, Consumer, QueueDepth, RedisQueue, RedisQueueOptions};
use crate::domain::{Delivery, EntryId, QueueName, RawEntry};

/// How much a fetch may bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// At most this many entries.
    pub entries: usize,
    /// Stop after the entry that reaches this many bytes.
    pub bytes: usize,
}

/// A read that was cut short. Whoever has called it, and whatever becomes of the error, runs or gives
/// back what is in hand.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct CutShort {
    /// What had come before the error: delivered to our name.
    pub in_hand: Vec<Delivery>,
    /// What ended the read. More may have been delivered unseen: [`Queue::delivered`] finds it.
    pub error: QueueError,
}

impl CutShort {
    /// What a read has brought, and how it ended.
    pub fn split(read: Result<Vec<Delivery>, Self>) -> (Vec<Delivery>, Result<(), QueueError>) {
        match read {
            Ok(deliveries) => (deliveries, Ok(())),
            Err(Self { in_hand, error }) => (in_hand, Err(error)),
        }
    }

    /// The answer of a read that has brought these, and `ended` like this.
    fn join(in_hand: Vec<Delivery>, ended: Result<(), QueueError>) -> Result<Vec<Delivery>, Self> {
        match ended {
            Ok(()) => Ok(in_hand),
            Err(error) => Err(Self { in_hand, error }),
        }
    }
}

impl From<QueueError> for CutShort {
    /// With nothing in hand.
    fn from(error: QueueError) -> Self {
        Self { in_hand: Vec::new(), error }
    }
}

/// Ready work: read it, keep it, settle it, hand it over.
#[async_trait]
pub trait Queue: Send + Sync + 'static {
    /// Whether Redis answers, lets us in, and is set up so that nothing is evicted.
    async fn check(&self) -> Result<(), QueueError>;

    /// Whether Redis takes writes: it answers and refuses them when it is full, cannot persist, or
    /// misses its replicas. Writes nothing.
    async fn check_writes(&self) -> Result<(), QueueError>;

    /// Waits up to `block` for entries that nobody has seen, and takes them. Creates the consumer
    /// group (from 0) where it is missing. After an [`Queue::interrupt`] it answers at once, with what
    /// was delivered in the meantime. After an error, or when the call was cancelled, entries may
    /// have been delivered to our name unseen: [`Queue::delivered`] finds them.
    async fn fetch(
        &self,
        queue: &QueueName,
        demand: Demand,
        block: Duration,
    ) -> Result<Vec<Delivery>, CutShort>;

    /// Ends the [`Queue::fetch`] of this queue that is under way, if there is one. To be polled
    /// together with it: it waits until the read has come back or was given up.
    async fn interrupt(&self, queue: &QueueName);

    /// Takes over entries that have idled for `min_idle` in the pending list, of whatever worker.
    /// Each call scans on from where the last one stopped. After an error, or when the call was
    /// cancelled, entries may be ours unseen, as after [`Queue::fetch`].
    async fn reclaim(&self, queue: &QueueName, demand: Demand) -> Result<Vec<Delivery>, CutShort>;

    /// All entries delivered to this worker's name and still pending, after `after`: to find those
    /// that a broken connection swallowed. The caller drops the ones that it knows.
    async fn delivered(
        &self,
        queue: &QueueName,
        after: EntryId,
        demand: Demand,
    ) -> Result<Vec<Delivery>, CutShort>;

    /// Acknowledges and deletes the entry. Only after the outcome is committed.
    async fn settle(&self, queue: &QueueName, entry: EntryId) -> Result<(), QueueError>;

    /// Hands the entry over: nobody's, at once claimable by anyone, its delivery count as if we had
    /// never had it. If the entry is gone from the stream, its fields are added again; where it stays
    /// open whether they were, the error is not transient, since once more would add them twice. Does
    /// nothing where the entry belongs to another worker by now.
    async fn hand_over(
        &self,
        queue: &QueueName,
        entry: EntryId,
        raw: &RawEntry,
    ) -> Result<(), QueueError>;

    /// Leaves the entry pending for nobody, to be claimable `remaining` from now (for a task that another
    /// worker still holds). Does nothing where the entry belongs to another worker by now.
    async fn postpone(
        &self,
        queue: &QueueName,
        entry: EntryId,
        remaining: Duration,
    ) -> Result<(), QueueError>;

    /// Resets the idle time of the entries that are still ours, in one step; for the heartbeat.
    /// Answers for each whether it is still ours.
    async fn touch(&self, entries: &[(QueueName, EntryId)]) -> Result<Vec<bool>, QueueError>;

    /// Adds an entry, and gives its id. Used by producers and by the promotion of delayed rows.
    async fn append(&self, queue: &QueueName, raw: &RawEntry) -> Result<EntryId, QueueError>;

    /// Whether the stream still holds the entry.
    async fn contains(&self, queue: &QueueName, entry: EntryId) -> Result<bool, QueueError>;

    /// Deletes this worker's consumer of the queue if nothing is pending for it, checked and
    /// deleted in one step; also that of what was given back, and those of others that have nothing
    /// pending and idled for `stale_after`. Answers how many went.
    async fn reap_consumers(
        &self,
        queue: &QueueName,
        stale_after: Duration,
    ) -> Result<u64, QueueError>;
}

/// Errors are those of the connection to Redis.
pub type QueueError = crate::connection::RedisError;

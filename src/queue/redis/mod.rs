//! The queue in Redis Streams: one stream and one consumer group per queue.
//!
//! Our consumer name is the worker's UUID, new at each start. Per-task calls are gathered into one
//! round trip for all that wait; each queue has two connections of its own, one to read what is new and
//! one for the payloads of what is pending, made when they are needed first. Commands of Redis 6.2 and later only. Everything of a queue is under
//! one hash tag, so a script meets one slot.

mod base;
mod depth;
mod ownership;
mod parse;
mod pending;
mod reader;
mod scan;
mod settle;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use self::base::{Base, stream_key};
pub use self::depth::{Backlog, Consumer, QueueDepth};
use self::ownership::{GiveBack, Given};
use self::pending::PendingList;
use self::reader::Reader;
use super::{CutShort, Demand, Queue, QueueError};
use crate::coalesce::Coalescer;
use crate::connection::{RedisError, RedisLink, RedisTarget};
use crate::domain::{Delivery, EntryId, QueueName, RawEntry, WorkerId};

/// How the queue is set up.
#[derive(Debug, Clone)]
pub struct RedisQueueOptions {
    /// Which Redis.
    pub target: RedisTarget,
    /// Who we are; the consumer's name.
    pub worker: WorkerId,
    /// How long an entry idles in the pending list before anyone may take it over.
    pub min_idle: Duration,
    /// The deadline of each call, connecting included. A fetch has its `block` on top.
    pub call_timeout: Duration,
    /// The largest payload that producers may send, in bytes; the byte budget of a [`Demand`] is
    /// kept to within one such payload.
    pub max_payload: usize,
    /// The most calls answered by one round trip; below 1000.
    pub group: usize,
    /// Round trips that may be under way at once for settling.
    pub committers: usize,
}

impl RedisQueueOptions {
    /// The defaults: 5 s idle, 500 ms a call, payloads up to 1 MiB, groups of 256, 2 committers.
    pub fn new(target: RedisTarget, worker: WorkerId) -> Self {
        Self {
            target,
            worker,
            min_idle: Duration::from_secs(5),
            call_timeout: Duration::from_millis(500),
            max_payload: 1024 * 1024,
            group: 256,
            committers: 2,
        }
    }
}

/// Entries added by one write; they carry payloads, so there are fewer of them.
const MAX_APPEND: usize = 64;
/// Beyond this, Lua's `unpack` and the latency of one command come into sight.
const MAX_GROUP: usize = 999;

/// Named like the stream of a queue, for ACLs; no queue has this name.
const PROBED: &str = "qw:{}:probe";

/// What reads one queue: what nobody has seen, and what is pending.
struct Reads {
    fresh: Reader,
    pending: PendingList,
}

/// Ready work in Redis.
pub struct RedisQueue {
    options: RedisQueueOptions,
    base: Base,
    reads: Mutex<HashMap<QueueName, Arc<Reads>>>,
    settling: Coalescer<(QueueName, EntryId), Result<(), QueueError>>,
    appending: Coalescer<(QueueName, RawEntry), Result<EntryId, QueueError>>,
    giving_back: Coalescer<GiveBack, Result<Given, QueueError>>,
}

impl RedisQueue {
    /// A queue that connects at its first call. Must be made within the runtime that uses it.
    pub fn new(options: RedisQueueOptions) -> Self {
        let base = Base {
            link: RedisLink::new(options.target.clone(), options.call_timeout),
            consumer: options.worker.to_string().into(),
            min_idle: options.min_idle,
            max_payload: options.max_payload,
        };
        let group = options.group.clamp(1, MAX_GROUP);
        let (settler, appender, giver) = (base.clone(), base.clone(), base.clone());
        Self {
            reads: Mutex::default(),
            settling: Coalescer::start(options.committers, group, move |group| {
                settle::settle(settler.clone(), group)
            }),
            appending: Coalescer::start(1, group.min(MAX_APPEND), move |group| {
                settle::append(appender.clone(), group)
            }),
            giving_back: Coalescer::start(1, group, move |group| {
                ownership::give_back(giver.clone(), group)
            }),
            base,
            options,
        }
    }

    /// How full the queue is; zeros where it does not exist.
    pub async fn depth(&self, queue: &QueueName) -> Result<QueueDepth, QueueError> {
        depth::depth(&self.base, queue).await
    }

    /// The oldest entry in the stream, whether it waits or is being worked on; none if it is empty.
    /// What was added before it has been settled or lost.
    pub async fn oldest(&self, queue: &QueueName) -> Result<Option<EntryId>, QueueError> {
        depth::oldest(&self.base, queue).await
    }

    /// The queues that have a stream, of whatever configuration. Looks through the keys of Redis, up
    /// to a million: for people, not for a worker.
    pub async fn streams(&self) -> Result<Vec<QueueName>, QueueError> {
        depth::streams(&self.base).await
    }

    /// What waits in the queue; zeros where it does not exist.
    pub async fn backlog(&self, queue: &QueueName) -> Result<Backlog, QueueError> {
        depth::backlog(&self.base, queue).await
    }

    /// The worker processes that have read from the queue; none where it does not exist.
    pub async fn consumers(&self, queue: &QueueName) -> Result<Vec<Consumer>, QueueError> {
        depth::consumers(&self.base, queue).await
    }

    fn reads(&self, queue: &QueueName) -> Arc<Reads> {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        let reads = reads.entry(queue.clone()).or_insert_with(|| {
            let timeout = self.options.call_timeout;
            let link = || RedisLink::new(self.options.target.clone(), timeout);
            Arc::new(Reads {
                fresh: Reader::new(self.base.clone(), queue.clone(), link(), timeout),
                pending: PendingList::new(self.base.clone(), queue.clone(), link()),
            })
        });
        Arc::clone(reads)
    }

    async fn give_back(
        &self,
        queue: &QueueName,
        entry: EntryId,
        idle: Duration,
    ) -> Result<Given, QueueError> {
        let request = GiveBack { queue: queue.clone(), entry, idle };
        self.giving_back.call(request).await.unwrap_or_else(|| Err(self.stopped()))
    }

    fn stopped(&self) -> QueueError {
        RedisError::Unavailable {
            address: self.base.link.address().to_owned(),
            message: "this queue is being shut down".into(),
        }
    }
}

#[async_trait]
impl Queue for RedisQueue {
    async fn check(&self) -> Result<(), QueueError> {
        self.base.link.query(&redis::cmd("PING"), "PING").await.map(drop)
    }

    async fn check_writes(&self) -> Result<(), QueueError> {
        // To a stream that is not there, and that is not made: judged like any other, and no write.
        let mut cmd = redis::cmd("XADD");
        cmd.arg(PROBED).arg("NOMKSTREAM").arg("*").arg("probe").arg("");
        match self.base.link.query(&cmd, "XADD").await {
            // A user that may not add tasks learns nothing by it.
            Err(RedisError::Refused { message, .. }) if message.contains("NOPERM") => Ok(()),
            answer => answer.map(drop),
        }
    }

    async fn fetch(
        &self,
        queue: &QueueName,
        demand: Demand,
        block: Duration,
    ) -> Result<Vec<Delivery>, CutShort> {
        self.reads(queue).fresh.fetch(demand, block).await
    }

    async fn interrupt(&self, queue: &QueueName) {
        self.reads(queue).fresh.interrupt().await;
    }

    async fn reclaim(&self, queue: &QueueName, demand: Demand) -> Result<Vec<Delivery>, CutShort> {
        self.reads(queue).pending.reclaim(demand).await
    }

    async fn delivered(
        &self,
        queue: &QueueName,
        after: EntryId,
        demand: Demand,
    ) -> Result<Vec<Delivery>, CutShort> {
        self.reads(queue).pending.delivered(after, demand).await
    }

    async fn settle(&self, queue: &QueueName, entry: EntryId) -> Result<(), QueueError> {
        let request = (queue.clone(), entry);
        self.settling.call(request).await.unwrap_or_else(|| Err(self.stopped()))
    }

    async fn hand_over(
        &self,
        queue: &QueueName,
        entry: EntryId,
        raw: &RawEntry,
    ) -> Result<(), QueueError> {
        match self.give_back(queue, entry, self.options.min_idle).await? {
            Given::Settled => Ok(()),
            Given::Gone => ownership::restore(&self.base, queue, entry, raw).await,
        }
    }

    async fn postpone(
        &self,
        queue: &QueueName,
        entry: EntryId,
        remaining: Duration,
    ) -> Result<(), QueueError> {
        let idle = self.options.min_idle.saturating_sub(remaining);
        self.give_back(queue, entry, idle).await.map(drop)
    }

    async fn touch(&self, entries: &[(QueueName, EntryId)]) -> Result<Vec<bool>, QueueError> {
        ownership::touch(&self.base, entries).await
    }

    async fn append(&self, queue: &QueueName, raw: &RawEntry) -> Result<EntryId, QueueError> {
        let request = (queue.clone(), raw.clone());
        self.appending.call(request).await.unwrap_or_else(|| Err(self.stopped()))
    }

    async fn contains(&self, queue: &QueueName, entry: EntryId) -> Result<bool, QueueError> {
        let mut cmd = redis::cmd("XRANGE");
        cmd.arg(stream_key(queue)).arg(entry.to_string()).arg(entry.to_string());
        let found = self.base.link.query(&cmd, "XRANGE").await?;
        parse::list(found).map(|found| !found.is_empty()).map_err(self.base.misread("XRANGE"))
    }

    async fn reap_consumers(
        &self,
        queue: &QueueName,
        stale_after: Duration,
    ) -> Result<u64, QueueError> {
        depth::reap(&self.base, queue, stale_after).await
    }
}

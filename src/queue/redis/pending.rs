//! What lies in the pending list: taking over what idles there, and finding what was delivered to
//! our own name unseen. Pending entries that the stream has lost are acknowledged on the way.
//!
//! What did not arrive in time may be an entry far beyond the largest size allowed, which has to be
//! read once to be refused. Whatever read it last has left it to our name, so it is met among those:
//! there entries are then read one by one, with more time after each failure.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use redis::Cmd;

use super::super::{Demand, QueueError};
use super::base::{Base, GROUP, is_missing_group, millis, push_id, stream_key};
use super::parse::{self, Found};
use crate::connection::{LuaScript, RedisError};
use crate::domain::{Delivery, EntryId, Origin, QueueName};

/// Pages of one call. Each begins with an entry that has idled for long enough, however many live
/// ones are before it.
const MAX_PAGES: usize = 64;
/// Pending entries looked at when Redis 6.2 shows lost ones without their ids.
const MAX_FORGET: usize = 1000;
/// How much longer an entry may take that did not come in time: this, and twice as much with each
/// further failure.
const LARGER: Duration = Duration::from_secs(1);
/// Doublings of [`LARGER`]: up to 32 s, which is enough for the largest that Redis can hold.
const MAX_DOUBLINGS: u32 = 5;
/// The beginning of the pending list.
const START: EntryId = EntryId { ms: 0, seq: 0 };

static FORGET_DELETED: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new("forget_deleted.lua", include_str!("forget_deleted.lua")));

/// Scans the pending lists, remembering for each queue how far it came.
pub(super) struct PendingList {
    base: Base,
    cursors: Mutex<HashMap<QueueName, EntryId>>,
    /// How often entries of our own did not come in time since all of them were last seen.
    late: Mutex<HashMap<QueueName, u32>>,
}

impl PendingList {
    pub(super) fn new(base: Base) -> Self {
        Self { base, cursors: Mutex::default(), late: Mutex::default() }
    }

    /// Takes over what has idled for long enough, from where the last call stopped, until the
    /// demand is met, the list ends, or [`MAX_PAGES`] are read.
    pub(super) async fn reclaim(
        &self,
        queue: &QueueName,
        demand: Demand,
    ) -> Result<Vec<Delivery>, QueueError> {
        match self.take_over(queue, demand).await {
            Err(error) if is_missing_group(&error) => {
                self.base.create_group(queue).await?;
                Ok(Vec::new())
            }
            // What was claimed until then is pending for our name, and whoever sees the error finds
            // it there. To swallow the error would let it idle.
            answer => answer,
        }
    }

    async fn take_over(
        &self,
        queue: &QueueName,
        demand: Demand,
    ) -> Result<Vec<Delivery>, QueueError> {
        let mut taken = Taken::new(queue, demand);
        let mut cursor = self.cursors().get(queue).copied().unwrap_or(START);
        let mut is_round = cursor == START;
        for _ in 0..MAX_PAGES {
            if !taken.wants_more() {
                break;
            }
            let Some(idle) = self.first_idle(queue, cursor).await? else {
                cursor = START;
                if std::mem::replace(&mut is_round, true) {
                    break;
                }
                continue;
            };
            let count = self.base.chunk(taken.left.entries, taken.left.bytes);
            let claim = self.claim(queue, idle, count);
            let longer = Duration::ZERO;
            let answer = self.base.query_entries(&claim, "XAUTOCLAIM", count, longer).await?;
            let page = parse::page(answer).map_err(self.base.misread("XAUTOCLAIM"))?;
            cursor = page.cursor;
            let lost = taken.add(page.entries);
            self.acknowledge(queue, &lost).await?;
            if page.has_lost {
                self.forget_deleted(queue).await?;
            }
            if cursor == START && std::mem::replace(&mut is_round, true) {
                break;
            }
        }
        self.cursors().insert(queue.clone(), cursor);
        Ok(taken.deliveries)
    }

    /// The first entry from `from` on that has idled for long enough. `XAUTOCLAIM` alone looks at
    /// only ten times as many entries as it may claim, so that a worker with little room would need
    /// many sweeps to come past what others are at work on.
    async fn first_idle(
        &self,
        queue: &QueueName,
        from: EntryId,
    ) -> Result<Option<EntryId>, QueueError> {
        let mut cmd = redis::cmd("XPENDING");
        cmd.arg(stream_key(queue)).arg(GROUP).arg("IDLE").arg(millis(self.base.min_idle));
        push_id(&mut cmd, from);
        cmd.arg("+").arg(1);
        let answer = self.base.link.query(&cmd, "XPENDING").await?;
        parse::first_pending(answer).map_err(self.base.misread("XPENDING"))
    }

    /// Entries pending for our own name, after `after`.
    pub(super) async fn delivered(
        &self,
        queue: &QueueName,
        after: EntryId,
        demand: Demand,
    ) -> Result<Vec<Delivery>, QueueError> {
        let mut taken = Taken::new(queue, demand);
        let mut after = after;
        for _ in 0..MAX_PAGES {
            if !taken.wants_more() {
                break;
            }
            let late = self.late().get(queue).copied().unwrap_or(0);
            let (count, longer) = match late.checked_sub(1) {
                Some(doublings) => (1, LARGER * (1 << doublings.min(MAX_DOUBLINGS))),
                None => (self.base.chunk(taken.left.entries, taken.left.bytes), Duration::ZERO),
            };
            let mut cmd = redis::cmd("XREADGROUP");
            cmd.arg("GROUP").arg(GROUP).arg(&*self.base.consumer).arg("COUNT");
            cmd.arg(count).arg("STREAMS").arg(stream_key(queue));
            push_id(&mut cmd, after);
            let found = match self.base.query_entries(&cmd, "XREADGROUP", count, longer).await {
                Err(error) if is_missing_group(&error) => break,
                Err(error) => {
                    if let RedisError::Timeout { .. } = error {
                        self.late().insert(queue.clone(), late.saturating_add(1));
                    }
                    // What came before it is in hand; whoever asks on meets the error again.
                    if taken.deliveries.is_empty() {
                        return Err(error);
                    }
                    break;
                }
                Ok(answer) => parse::of_stream(answer).map_err(self.base.misread("XREADGROUP"))?,
            };
            let Some(last) = found.last() else {
                self.late().remove(queue);
                break;
            };
            after = last.id;
            let gone = taken.add(found);
            self.acknowledge(queue, &gone).await?;
        }
        Ok(taken.deliveries)
    }

    fn claim(&self, queue: &QueueName, cursor: EntryId, count: usize) -> Cmd {
        let mut cmd = redis::cmd("XAUTOCLAIM");
        cmd.arg(stream_key(queue)).arg(GROUP).arg(&*self.base.consumer);
        cmd.arg(millis(self.base.min_idle));
        push_id(&mut cmd, cursor);
        cmd.arg("COUNT").arg(count);
        cmd
    }

    async fn acknowledge(&self, queue: &QueueName, ids: &[EntryId]) -> Result<(), QueueError> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut cmd = redis::cmd("XACK");
        cmd.arg(stream_key(queue)).arg(GROUP);
        for id in ids {
            push_id(&mut cmd, *id);
        }
        self.base.link.query(&cmd, "XACK").await.map(drop)
    }

    async fn forget_deleted(&self, queue: &QueueName) -> Result<(), QueueError> {
        let fill = |cmd: &mut Cmd| {
            self.base.script_args(cmd, queue);
            cmd.arg(MAX_FORGET);
        };
        self.base.link.script(&FORGET_DELETED, fill).await.map(drop)
    }

    fn late(&self) -> std::sync::MutexGuard<'_, HashMap<QueueName, u32>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cursors(&self) -> std::sync::MutexGuard<'_, HashMap<QueueName, EntryId>> {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a call has in hand, and what it may still take.
struct Taken<'a> {
    queue: &'a QueueName,
    left: Demand,
    deliveries: Vec<Delivery>,
}

impl<'a> Taken<'a> {
    fn new(queue: &'a QueueName, demand: Demand) -> Self {
        Self { queue, left: demand, deliveries: Vec::new() }
    }

    fn wants_more(&self) -> bool {
        self.left.entries > 0 && self.left.bytes > 0
    }

    /// Takes the entries; answers the ids of those that the stream has lost.
    fn add(&mut self, found: Vec<Found>) -> Vec<EntryId> {
        let mut lost = Vec::new();
        for Found { id, raw } in found {
            let Some(raw) = raw else {
                lost.push(id);
                continue;
            };
            self.left.entries = self.left.entries.saturating_sub(1);
            self.left.bytes = self.left.bytes.saturating_sub(raw.bytes());
            let queue = self.queue.clone();
            self.deliveries.push(Delivery { queue, entry: id, origin: Origin::Reclaimed, raw });
        }
        lost
    }
}

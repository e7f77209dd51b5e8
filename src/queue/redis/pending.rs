//! What lies in the pending list: taking over what idles there, and finding what was delivered to
//! our own name unseen. Pending entries that the stream has lost are acknowledged on the way.
//!
//! What did not arrive in time may be an entry far beyond the largest size allowed, which has to be
//! read once to be refused. Whatever read it last has left it to our name, so it is met among those:
//! there entries are then read one by one, with more time after each failure.
//!
//! Payloads come over a link of their own, one answer at a time; everything else goes where no
//! payload holds it up. An error never costs what is in hand: the next call tells it.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::super::{Demand, QueueError};
use super::base::{Base, GROUP, is_missing_group, millis, push_id, stream_key};
use super::parse::{self, Found};
use crate::connection::{LuaScript, RedisError, RedisLink};
use crate::domain::{Delivery, EntryId, Origin, QueueName};

/// Pages of one call. After an empty one comes one with entries, however many live ones are before
/// them, or the round goes on from the front.
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
    /// Its link carries small answers only.
    base: Base,
    /// For the answers that carry payloads, of all queues.
    payloads: RedisLink,
    /// Whose answer is under way there: answers come in order, and the time of one begins when those
    /// before it are in.
    turn: tokio::sync::Mutex<()>,
    cursors: Mutex<HashMap<QueueName, EntryId>>,
    /// How often entries of our own did not come in time since all of them were last seen.
    late: Mutex<HashMap<QueueName, u32>>,
    /// What ended a call that had entries in hand.
    untold: Mutex<HashMap<QueueName, QueueError>>,
}

impl PendingList {
    pub(super) fn new(base: Base, payloads: RedisLink) -> Self {
        Self {
            base,
            payloads,
            turn: tokio::sync::Mutex::new(()),
            cursors: Mutex::default(),
            late: Mutex::default(),
            untold: Mutex::default(),
        }
    }

    /// Takes over what has idled for long enough, from where the last call stopped, until the
    /// demand is met, the list was gone round, or [`MAX_PAGES`] are read.
    pub(super) async fn reclaim(
        &self,
        queue: &QueueName,
        demand: Demand,
    ) -> Result<Vec<Delivery>, QueueError> {
        if let Some(error) = lock(&self.untold).remove(queue) {
            return Err(error);
        }
        let mut taken = Taken::new(queue, demand);
        let mut round = Round::from(lock(&self.cursors).get(queue).copied().unwrap_or(START));
        let ended = match self.take_over(queue, &mut taken, &mut round).await {
            Err(error) if is_missing_group(&error) => self.base.create_group(queue).await,
            ended => ended,
        };
        lock(&self.cursors).insert(queue.clone(), round.cursor);
        // What a failed command claimed is pending for our name, and whoever sees the error finds it
        // there. To swallow the error would let it idle.
        match ended {
            Err(error) if taken.deliveries.is_empty() => return Err(error),
            Err(error) => drop(lock(&self.untold).insert(queue.clone(), error)),
            Ok(()) => {}
        }
        Ok(taken.deliveries)
    }

    /// `XAUTOCLAIM` looks at only ten times as many entries as it may claim, so that a worker with
    /// little room would need many sweeps to come past what others are at work on: where it finds
    /// nothing, the next entry that idles is searched for.
    async fn take_over(
        &self,
        queue: &QueueName,
        taken: &mut Taken<'_>,
        round: &mut Round,
    ) -> Result<(), QueueError> {
        for _ in 0..MAX_PAGES {
            if !taken.wants_more() {
                break;
            }
            let count = self.base.chunk(taken.left.entries, taken.left.bytes);
            let claim = self.claim(queue, round.cursor, count);
            let answer = self.query_entries(&claim, "XAUTOCLAIM", count, Duration::ZERO).await?;
            let page = parse::page(answer).map_err(self.base.misread("XAUTOCLAIM"))?;
            let found_nothing = page.entries.is_empty() && !page.has_lost;
            let mut next = Some(page.cursor).filter(|cursor| *cursor != START);
            let lost = taken.add(page.entries);
            round.cursor = page.cursor;
            self.acknowledge(queue, &lost).await?;
            if page.has_lost {
                self.forget_deleted(queue).await?;
            }
            if let Some(from) = next.filter(|from| found_nothing && !round.is_over_at(*from)) {
                next = self.first_idle(queue, from, round.end()).await?;
            }
            if !round.goes_on(next) {
                break;
            }
        }
        Ok(())
    }

    /// The first entry from `from` on, and before `end`, that has idled for long enough.
    async fn first_idle(
        &self,
        queue: &QueueName,
        from: EntryId,
        end: Option<EntryId>,
    ) -> Result<Option<EntryId>, QueueError> {
        let mut cmd = redis::cmd("XPENDING");
        cmd.arg(stream_key(queue)).arg(GROUP).arg("IDLE").arg(millis(self.base.min_idle));
        push_id(&mut cmd, from);
        match end {
            Some(end) => cmd.arg(format!("({end}")),
            None => cmd.arg("+"),
        };
        cmd.arg(1);
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
            let late = lock(&self.late).get(queue).copied().unwrap_or(0);
            let (count, longer) = match late.checked_sub(1) {
                Some(doublings) => (1, LARGER * (1 << doublings.min(MAX_DOUBLINGS))),
                None => (self.base.chunk(taken.left.entries, taken.left.bytes), Duration::ZERO),
            };
            let mut cmd = redis::cmd("XREADGROUP");
            cmd.arg("GROUP").arg(GROUP).arg(&*self.base.consumer).arg("COUNT");
            cmd.arg(count).arg("STREAMS").arg(stream_key(queue));
            push_id(&mut cmd, after);
            let found = match self.query_entries(&cmd, "XREADGROUP", count, longer).await {
                Err(error) if is_missing_group(&error) => break,
                Err(error) => {
                    if let RedisError::Timeout { .. } = error {
                        lock(&self.late).insert(queue.clone(), late.saturating_add(1));
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
                lock(&self.late).remove(queue);
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

    /// Sends a command that may answer with so many entries, and take that much `longer` than those
    /// of the largest size allowed.
    async fn query_entries(
        &self,
        cmd: &Cmd,
        command: &'static str,
        entries: usize,
        longer: Duration,
    ) -> Result<Value, QueueError> {
        let _turn = self.turn.lock().await;
        let deadline: Instant = self.payloads.deadline() + self.base.patience(entries) + longer;
        let connection = self.payloads.connection(self.payloads.deadline()).await?;
        let answer = connection.query(cmd, command, deadline).await;
        if let Err(RedisError::Timeout { .. }) = answer {
            // The answer may still be arriving, and would hold up the next one.
            self.payloads.discard(&connection, true);
        }
        answer
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far a call has come on its way once round the list.
struct Round {
    start: EntryId,
    cursor: EntryId,
    /// Whether it has begun from the front, and ends where it started.
    wrapped: bool,
}

impl Round {
    fn from(start: EntryId) -> Self {
        Self { start, cursor: start, wrapped: start == START }
    }

    /// Where to stop; `None` for the end of the list.
    fn end(&self) -> Option<EntryId> {
        (self.wrapped && self.start != START).then_some(self.start)
    }

    fn is_over_at(&self, cursor: EntryId) -> bool {
        self.end().is_some_and(|end| cursor >= end)
    }

    /// Goes on at `next`, or from the front where nothing is left; answers whether the round is
    /// still under way.
    fn goes_on(&mut self, next: Option<EntryId>) -> bool {
        self.cursor = next.unwrap_or(START);
        match next {
            Some(next) => !self.is_over_at(next),
            None => !std::mem::replace(&mut self.wrapped, true),
        }
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

//! What lies in the pending list of one queue: taking over what idles there, and finding what was
//! delivered to our own name unseen. Pending entries that the stream has lost are acknowledged on the
//! way.
//!
//! What did not arrive in time may be an entry far beyond the largest size allowed, which has to be
//! read once to be refused. Whatever read it last has left it to our name, so it is met among those:
//! there entries are then read one by one, with more time after each failure.
//!
//! Payloads come over a link of the queue's own, one answer at a time: a giant holds up nobody else. An
//! error never costs what is in hand, and an answer that nobody waits for closes its connection.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::super::{CutShort, Demand, QueueError};
use super::base::{Base, GROUP, UnderWay, is_missing_group, millis, push_id, stream_key};
use super::parse::{self, Found};
use super::scan::{Round, START, Taken};
use crate::connection::{LuaScript, RedisError, RedisLink};
use crate::domain::{Delivery, EntryId, QueueName};

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

static FORGET_DELETED: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new("forget_deleted.lua", include_str!("forget_deleted.lua")));

/// Scans the pending list, remembering how far it came.
pub(super) struct PendingList {
    /// Its link carries small answers only.
    base: Base,
    queue: QueueName,
    /// For the answers that carry payloads.
    payloads: RedisLink,
    /// Where the next call that reclaims goes on; held by a call of either sort, since answers come in
    /// order, and the time of one begins when those before it are in.
    cursor: tokio::sync::Mutex<EntryId>,
    /// How often entries of our own did not come in time since all of them were last seen.
    late: AtomicU32,
}

impl PendingList {
    pub(super) fn new(base: Base, queue: QueueName, payloads: RedisLink) -> Self {
        let (cursor, late) = (tokio::sync::Mutex::new(START), AtomicU32::new(0));
        Self { base, queue, payloads, cursor, late }
    }

    /// Takes over what has idled for long enough, from where the last call stopped, until the
    /// demand is met, the list was gone round, or [`MAX_PAGES`] are read.
    pub(super) async fn reclaim(&self, demand: Demand) -> Result<Vec<Delivery>, CutShort> {
        let mut cursor = self.cursor.lock().await;
        let mut taken = Taken::new(&self.queue, demand);
        let mut round = Round::from(*cursor);
        let ended = match self.take_over(&mut taken, &mut round).await {
            Err(error) if is_missing_group(&error) => self.base.create_group(&self.queue).await,
            ended => ended,
        };
        *cursor = round.cursor();
        taken.answer(ended)
    }

    /// `XAUTOCLAIM` looks at only ten times as many entries as it may claim, so that a worker with
    /// little room would need many sweeps to come past what others are at work on: where it finds
    /// nothing, the next entry that idles is searched for.
    async fn take_over(&self, taken: &mut Taken<'_>, round: &mut Round) -> Result<(), QueueError> {
        for _ in 0..MAX_PAGES {
            let Some(demand) = taken.wants().filter(|_| !round.is_over()) else { break };
            let found_some = self.claim_page(demand, taken, round).await?;
            if !found_some && !round.is_over() {
                let idle = self.first_idle(round.cursor(), round.end()).await?;
                round.goes_on_at(idle.unwrap_or(START));
            }
        }
        Ok(())
    }

    /// Takes over what idles on the next page; answers whether anything did.
    async fn claim_page(
        &self,
        demand: Demand,
        taken: &mut Taken<'_>,
        round: &mut Round,
    ) -> Result<bool, QueueError> {
        let count = self.base.chunk(demand.entries, demand.bytes);
        let mut cmd = redis::cmd("XAUTOCLAIM");
        cmd.arg(stream_key(&self.queue)).arg(GROUP).arg(&*self.base.consumer);
        cmd.arg(millis(self.base.min_idle));
        push_id(&mut cmd, round.cursor());
        cmd.arg("COUNT").arg(count);
        let answer = self.query_entries(&cmd, "XAUTOCLAIM", count, Duration::ZERO).await?;
        let page = parse::page(answer).map_err(self.base.misread("XAUTOCLAIM"))?;
        let found_some = !page.entries.is_empty() || page.has_lost;
        let lost = taken.add(page.entries);
        round.goes_on_at(page.cursor);
        self.acknowledge(&lost).await?;
        if page.has_lost {
            self.forget_deleted().await?;
        }
        Ok(found_some)
    }

    /// The first entry from `from` on, and before `end`, that has idled for long enough.
    async fn first_idle(
        &self,
        from: EntryId,
        end: Option<EntryId>,
    ) -> Result<Option<EntryId>, QueueError> {
        let mut cmd = redis::cmd("XPENDING");
        cmd.arg(stream_key(&self.queue)).arg(GROUP).arg("IDLE").arg(millis(self.base.min_idle));
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
        after: EntryId,
        demand: Demand,
    ) -> Result<Vec<Delivery>, CutShort> {
        let _turn = self.cursor.lock().await;
        let mut taken = Taken::new(&self.queue, demand);
        let ended = self.take_ours(&mut taken, after).await;
        taken.answer(ended)
    }

    async fn take_ours(&self, taken: &mut Taken<'_>, after: EntryId) -> Result<(), QueueError> {
        let mut after = after;
        for _ in 0..MAX_PAGES {
            let Some(demand) = taken.wants() else { break };
            let found = self.page_of_ours(after, demand).await?;
            let Some(last) = found.last() else {
                self.late.store(0, Ordering::Relaxed);
                break;
            };
            after = last.id;
            let gone = taken.add(found);
            self.acknowledge(&gone).await?;
        }
        Ok(())
    }

    /// The next of our own entries after `after`; none where that was the last. After a failure only
    /// one, with more time.
    async fn page_of_ours(&self, after: EntryId, demand: Demand) -> Result<Vec<Found>, QueueError> {
        let late = self.late.load(Ordering::Relaxed);
        let (count, longer) = match late.checked_sub(1) {
            Some(doublings) => (1, LARGER * (1 << doublings.min(MAX_DOUBLINGS))),
            None => (self.base.chunk(demand.entries, demand.bytes), Duration::ZERO),
        };
        let mut cmd = redis::cmd("XREADGROUP");
        cmd.arg("GROUP").arg(GROUP).arg(&*self.base.consumer).arg("COUNT");
        cmd.arg(count).arg("STREAMS").arg(stream_key(&self.queue));
        push_id(&mut cmd, after);
        match self.query_entries(&cmd, "XREADGROUP", count, longer).await {
            Ok(answer) => parse::of_stream(answer).map_err(self.base.misread("XREADGROUP")),
            Err(error) if is_missing_group(&error) => Ok(Vec::new()),
            Err(error) => {
                if let RedisError::Timeout { .. } = error {
                    self.late.store(late.saturating_add(1), Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }

    async fn acknowledge(&self, ids: &[EntryId]) -> Result<(), QueueError> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut cmd = redis::cmd("XACK");
        cmd.arg(stream_key(&self.queue)).arg(GROUP);
        for id in ids {
            push_id(&mut cmd, *id);
        }
        self.base.link.query(&cmd, "XACK").await.map(drop)
    }

    async fn forget_deleted(&self) -> Result<(), QueueError> {
        let fill = |cmd: &mut Cmd| {
            self.base.script_args(cmd, &self.queue);
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
        let deadline: Instant = self.payloads.deadline() + self.base.patience(entries) + longer;
        let connection = self.payloads.connection(self.payloads.deadline()).await?;
        let under_way = UnderWay::on(&self.payloads, &connection);
        let answer = connection.query(cmd, command, deadline).await;
        under_way.ends_with(&answer);
        answer
    }
}

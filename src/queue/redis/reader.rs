//! Reading new entries of one queue, on a connection of its own: a blocked read holds up whatever
//! is submitted to the same connection after it.
//!
//! A read that is cancelled, aborted or not answered in time leaves entries that were delivered to
//! our name unseen; its connection is closed, and the caller, who sees the error, asks `delivered`.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Cmd;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::{CutShort, Demand, QueueError};
use super::base::{Base, GROUP, GROUP_TRIES, UnderWay, is_missing_group, millis, stream_key};
use super::parse::{self, Found};
use crate::connection::{LuaScript, RedisConnection, RedisError, RedisLink};
use crate::domain::{Delivery, Origin, QueueName};

/// While a read is still blocked, `CLIENT UNBLOCK` is repeated this often: the first one may have
/// come before the read.
const UNBLOCK_PERIOD: Duration = Duration::from_millis(20);

/// A connection's buffer keeps the size of the largest answer, up to twice. After one of so many bytes,
/// which took much longer to arrive than a connection takes to be made, the next read begins anew.
const GIANT: usize = 16 * 1024 * 1024;

static READ_WITHIN: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new("read_within.lua", include_str!("read_within.lua")));

/// Reads one queue.
pub(super) struct Reader {
    base: Base,
    queue: QueueName,
    link: RedisLink,
    call_timeout: Duration,
    turn: tokio::sync::Mutex<()>,
    interrupted: AtomicBool,
    reading: AtomicBool,
    rested: Notify,
    abort: Notify,
}

/// Marks a read as under way.
struct Reading<'a> {
    reader: &'a Reader,
    answer: Option<UnderWay<'a>>,
}

impl<'a> Reading<'a> {
    fn start(reader: &'a Reader, connection: &'a Arc<RedisConnection>) -> Self {
        reader.reading.store(true, Ordering::SeqCst);
        Self { reader, answer: Some(UnderWay::on(&reader.link, connection)) }
    }

    fn ends_with(mut self, answer: &Result<redis::Value, QueueError>) {
        if let Some(under_way) = self.answer.take() {
            under_way.ends_with(answer);
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        // First the connection is closed, so that no interrupt goes to it.
        self.answer.take();
        self.reader.reading.store(false, Ordering::SeqCst);
        self.reader.rested.notify_waiters();
    }
}

impl Reader {
    pub(super) fn new(
        base: Base,
        queue: QueueName,
        link: RedisLink,
        call_timeout: Duration,
    ) -> Self {
        Self {
            base,
            queue,
            link,
            call_timeout,
            turn: tokio::sync::Mutex::new(()),
            interrupted: AtomicBool::new(false),
            reading: AtomicBool::new(false),
            rested: Notify::new(),
            abort: Notify::new(),
        }
    }

    /// Waits up to `block` for new entries and takes what `demand` allows.
    pub(super) async fn fetch(
        &self,
        demand: Demand,
        block: Duration,
    ) -> Result<Vec<Delivery>, CutShort> {
        let _turn = self.turn.lock().await;
        self.interrupted.store(false, Ordering::SeqCst);
        if demand.entries == 0 || demand.bytes == 0 {
            return Ok(Vec::new());
        }
        let chunk = self.base.chunk(demand.entries, demand.bytes);
        let mut found = self.read(chunk, block).await?;
        let left = Demand {
            entries: demand.entries - found.len().min(demand.entries),
            bytes: demand.bytes.saturating_sub(size(&found)),
        };
        let may_be_more = found.len() == chunk && !self.interrupted.load(Ordering::SeqCst);
        let mut ended = Ok(());
        if may_be_more && left.entries > 0 && left.bytes > 0 {
            match self.read_more(left).await {
                Ok(more) => found.extend(more),
                Err(error) => ended = Err(error),
            }
        }
        if size(&found) >= GIANT
            && let Some(connection) = self.link.established()
        {
            self.link.discard(&connection, false);
        }
        let in_hand = found.into_iter().filter_map(|found| self.delivery(found)).collect();
        CutShort::join(in_hand, ended)
    }

    /// Ends the fetch under way. Where Redis does not answer, its read is given up.
    pub(super) async fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + self.call_timeout;
        loop {
            if !self.reading.load(Ordering::SeqCst) {
                return;
            }
            let id = self.link.established().map_or(0, |connection| connection.client_id());
            let unblocked = id != 0 && {
                let mut cmd = redis::cmd("CLIENT");
                cmd.arg("UNBLOCK").arg(id);
                self.base.link.query(&cmd, "CLIENT UNBLOCK").await.is_ok()
            };
            let late = Instant::now() >= deadline;
            if late || !unblocked {
                self.abort.notify_waiters();
            }
            if late {
                return;
            }
            let _ = tokio::time::timeout(UNBLOCK_PERIOD, self.rested.notified()).await;
        }
    }

    /// A blocking read, repeated when the group had to be made.
    async fn read(&self, count: usize, block: Duration) -> Result<Vec<Found>, QueueError> {
        let until = Instant::now() + block;
        for _ in 0..GROUP_TRIES {
            match self.read_once(count, until).await {
                Err(error) if is_missing_group(&error) => {
                    self.base.create_group(&self.queue).await?;
                }
                answer => return answer,
            }
        }
        Ok(Vec::new())
    }

    async fn read_once(&self, count: usize, until: Instant) -> Result<Vec<Found>, QueueError> {
        let connection = self.link.connection(self.link.deadline()).await?;
        let reading = Reading::start(self, &connection);
        let block = if self.interrupted.load(Ordering::SeqCst) {
            Duration::ZERO
        } else {
            until.saturating_duration_since(Instant::now())
        };
        let cmd = self.command(count, block);
        let deadline = self.deadline(block, count);
        let answer = self.unless_aborted(connection.query(&cmd, "XREADGROUP", deadline)).await;
        reading.ends_with(&answer);
        parse::of_stream(answer?).map_err(self.base.misread("XREADGROUP"))
    }

    async fn read_more(&self, demand: Demand) -> Result<Vec<Found>, QueueError> {
        let connection = self.link.connection(self.link.deadline()).await?;
        let reading = Reading::start(self, &connection);
        let fill = |cmd: &mut Cmd| {
            self.base.script_args(cmd, &self.queue);
            cmd.arg(demand.entries).arg(demand.bytes).arg(self.base.max_payload.max(1));
        };
        // As many as there would be of the largest size, and the one that passes the limit.
        let most = self.base.chunk(demand.entries, demand.bytes) + 1;
        let deadline = self.deadline(Duration::ZERO, most);
        let answer = self.unless_aborted(connection.script(&READ_WITHIN, deadline, fill)).await;
        reading.ends_with(&answer);
        parse::entries(answer?)
            .map(|(found, _)| found)
            .map_err(self.base.misread(READ_WITHIN.name()))
    }

    async fn unless_aborted(
        &self,
        answer: impl Future<Output = Result<redis::Value, QueueError>>,
    ) -> Result<redis::Value, QueueError> {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.abort.notified() => Err(RedisError::Unavailable {
                address: self.link.address().to_owned(),
                message: "a read was given up".into(),
            }),
        }
    }

    fn command(&self, count: usize, block: Duration) -> Cmd {
        let mut cmd = redis::cmd("XREADGROUP");
        cmd.arg("GROUP").arg(GROUP).arg(&*self.base.consumer).arg("COUNT").arg(count);
        // `BLOCK 0` would wait for ever.
        if millis(block) > 0 {
            cmd.arg("BLOCK").arg(millis(block));
        }
        cmd.arg("STREAMS").arg(stream_key(&self.queue)).arg(">");
        cmd
    }

    fn deadline(&self, block: Duration, entries: usize) -> Instant {
        Instant::now() + block + self.call_timeout + self.base.patience(entries)
    }

    fn delivery(&self, found: Found) -> Option<Delivery> {
        let queue = self.queue.clone();
        let raw = found.raw?;
        Some(Delivery { queue, entry: found.id, origin: Origin::Fresh, raw })
    }
}

fn size(found: &[Found]) -> usize {
    found.iter().filter_map(|found| found.raw.as_ref()).map(crate::domain::RawEntry::bytes).sum()
}

//! What the suites stand on: the stores in memory, or private servers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_worker::clock::Clock;
use queue_worker::connection::RedisTarget;
use queue_worker::domain::{
    EntryId, Failure, Kind, LockKey, PayloadHash, QueueName, RawEntry, Task, TaskId, WorkerId,
};
use queue_worker::lease::memory::{MemoryLeases, MemoryLocks};
use queue_worker::lease::{LeaseStore, RedisLeaseOptions, RedisLeases};
use queue_worker::ledger::memory::{Letter, MemoryLedger, MemoryOptions, MemoryTables};
use queue_worker::ledger::{
    Effect, EffectConnection, EffectError, EffectItem, Ledger, LetterFilter, PostgresLedger,
    PostgresOptions, Status, migrate,
};
use queue_worker::private_servers::{self, PostgresServer, RedisServer};
use queue_worker::queue::memory::{MemoryQueue, MemoryStreams};
use queue_worker::queue::{Queue, RedisQueue, RedisQueueOptions};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

/// How long an event may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks until there is an answer.
pub(crate) async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What a row says that both sorts of ledger can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) status: Status,
    pub(crate) fence: i64,
    pub(crate) attempts: u32,
    pub(crate) crashes: u32,
    pub(crate) has_payload: bool,
    pub(crate) waits: bool,
    pub(crate) entry: Option<String>,
}

impl Seen {
    pub(crate) fn of(status: Status, fence: i64, attempts: u32, crashes: u32) -> Self {
        let has_payload = matches!(status, Status::Delayed | Status::Released);
        Self { status, fence, attempts, crashes, has_payload, waits: has_payload, entry: None }
    }

    pub(crate) fn with_payload(self) -> Self {
        Self { has_payload: true, waits: true, ..self }
    }

    pub(crate) fn at(self, entry: EntryId) -> Self {
        Self { entry: Some(entry.to_string()), ..self }
    }
}

/// A database, and workers on it.
pub(crate) trait LedgerStage {
    /// A new worker with this lease; a release is looked after when its lease would have been over.
    fn worker(&self, lease: Duration) -> Arc<dyn Ledger>;
    async fn row(&self, id: &str) -> Option<Seen>;
    /// The reasons of all dead letters, sorted.
    async fn letters(&self) -> Vec<String>;
    /// Ids and fences that [`Note`] has written, sorted.
    async fn notes(&self) -> Vec<(String, i64)>;
}

/// A Redis, and workers on it.
pub(crate) trait QueueStage {
    /// A new worker's queue.
    fn worker(&self, min_idle: Duration) -> Arc<dyn Queue>;
    /// Deletes an entry by hand.
    async fn lose(&self, queue: &QueueName, entry: EntryId);
    /// How many consumers the queue has.
    async fn consumers(&self, queue: &QueueName) -> usize;
}

/// A Redis, and workers on it.
pub(crate) trait LeaseStage {
    fn worker(&self, ttl: Duration) -> Arc<dyn LeaseStore>;
    /// Deletes a lock by hand.
    async fn forget(&self, name: &str);
}

/// Everything in memory.
pub(crate) struct InMemory {
    tables: MemoryTables,
    streams: MemoryStreams,
    locks: MemoryLocks,
}

impl InMemory {
    pub(crate) async fn start() -> Self {
        let clock = Clock::System;
        let stage = Self {
            tables: MemoryTables::new(clock),
            streams: MemoryStreams::new(clock),
            locks: MemoryLocks::new(clock),
        };
        // A lease counts if it is younger than the database; both are told in milliseconds.
        let started = stage.tables.now_ms();
        eventually("the clock", async || (stage.tables.now_ms() > started).then_some(())).await;
        stage
    }
}

impl LedgerStage for InMemory {
    fn worker(&self, lease: Duration) -> Arc<dyn Ledger> {
        let options = MemoryOptions {
            lease,
            released_recheck: lease,
            ..MemoryOptions::new(WorkerId::random())
        };
        Arc::new(MemoryLedger::new(self.tables.clone(), options))
    }

    async fn row(&self, id: &str) -> Option<Seen> {
        let row = self.tables.row(&TaskId::new(id).unwrap())?;
        Some(Seen {
            status: row.status,
            fence: row.fence.0,
            attempts: row.attempts,
            crashes: row.crashes,
            has_payload: row.payload.is_some(),
            waits: row.run_at.is_some(),
            entry: row.entry.map(|entry| entry.to_string()),
        })
    }

    async fn letters(&self) -> Vec<String> {
        let reason = |letter: Letter| match letter {
            Letter::Task(_, reason) => reason.to_owned(),
            Letter::Entry(_, _, reason) => reason.as_str().to_owned(),
        };
        let mut reasons: Vec<String> = self.tables.letters().into_iter().map(reason).collect();
        reasons.sort();
        reasons
    }

    async fn notes(&self) -> Vec<(String, i64)> {
        let fence = |value: Bytes| std::str::from_utf8(&value).unwrap().parse().unwrap();
        let effects = self.tables.effects().into_iter();
        let mut notes: Vec<_> = effects.map(|(key, value)| (key, fence(value))).collect();
        notes.sort();
        notes
    }
}

impl QueueStage for InMemory {
    fn worker(&self, min_idle: Duration) -> Arc<dyn Queue> {
        Arc::new(MemoryQueue::new(self.streams.clone(), WorkerId::random(), min_idle))
    }

    async fn lose(&self, queue: &QueueName, entry: EntryId) {
        self.streams.lose(queue, entry);
    }

    async fn consumers(&self, queue: &QueueName) -> usize {
        self.streams.consumers(queue).len()
    }
}

impl LeaseStage for InMemory {
    fn worker(&self, ttl: Duration) -> Arc<dyn LeaseStore> {
        Arc::new(MemoryLeases::new(self.locks.clone(), ttl))
    }

    async fn forget(&self, name: &str) {
        self.locks.forget(name);
    }
}

/// A Postgres of the test's own.
pub(crate) struct Postgres {
    server: PostgresServer,
}

impl Postgres {
    pub(crate) async fn start() -> Self {
        let options = private_servers::PostgresOptions::volatile();
        let stage = Self { server: PostgresServer::start(options).await.unwrap() };
        migrate(&stage.options()).await.unwrap();
        let mut connection = stage.connect().await;
        sqlx::raw_sql("CREATE TABLE notes (id text NOT NULL, fence bigint NOT NULL)")
            .execute(&mut connection)
            .await
            .unwrap();
        stage
    }

    fn options(&self) -> PgConnectOptions {
        self.server.url().parse().unwrap()
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.server.url()).await.unwrap()
    }

    fn ledger(&self, lease: Duration) -> PostgresLedger {
        PostgresLedger::new(PostgresOptions {
            lease,
            released_recheck: lease,
            ..PostgresOptions::new(self.options(), WorkerId::random())
        })
    }
}

impl LedgerStage for Postgres {
    fn worker(&self, lease: Duration) -> Arc<dyn Ledger> {
        Arc::new(self.ledger(lease))
    }

    async fn row(&self, id: &str) -> Option<Seen> {
        let row: Option<(String, i64, i32, i32, bool, bool, Option<String>)> = sqlx::query_as(
            "SELECT status::text, fence, attempts, crashes, payload IS NOT NULL, \
             run_at IS NOT NULL, entry FROM queue_worker.processed_tasks WHERE task_id = $1",
        )
        .bind(id)
        .fetch_optional(&mut self.connect().await)
        .await
        .unwrap();
        let (status, fence, attempts, crashes, has_payload, waits, entry) = row?;
        let all = [
            Status::Running,
            Status::Released,
            Status::Delayed,
            Status::Succeeded,
            Status::Failed,
            Status::Dead,
        ];
        Some(Seen {
            status: all.into_iter().find(|known| known.as_str() == status).unwrap(),
            fence,
            attempts: attempts.try_into().unwrap(),
            crashes: crashes.try_into().unwrap(),
            has_payload,
            waits,
            entry,
        })
    }

    async fn letters(&self) -> Vec<String> {
        let filter = LetterFilter { requeued: true, queue: None, reason: None, limit: 100 };
        let letters = self.ledger(Duration::from_secs(5)).letters(&filter).await.unwrap();
        let mut reasons: Vec<String> = letters.into_iter().map(|letter| letter.reason).collect();
        reasons.sort();
        reasons
    }

    async fn notes(&self) -> Vec<(String, i64)> {
        sqlx::query_as("SELECT id, fence FROM notes ORDER BY id")
            .fetch_all(&mut self.connect().await)
            .await
            .unwrap()
    }
}

/// A Redis of the test's own.
pub(crate) struct Redis {
    server: RedisServer,
}

impl Redis {
    pub(crate) async fn start() -> Self {
        let options = private_servers::RedisOptions::volatile();
        Self { server: RedisServer::start(options).await.unwrap() }
    }

    fn target(&self) -> RedisTarget {
        RedisTarget::parse(&self.server.url(), None, None).unwrap()
    }

    async fn connect(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.server.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }
}

impl QueueStage for Redis {
    fn worker(&self, min_idle: Duration) -> Arc<dyn Queue> {
        let options = RedisQueueOptions {
            min_idle,
            ..RedisQueueOptions::new(self.target(), WorkerId::random())
        };
        Arc::new(RedisQueue::new(options))
    }

    async fn lose(&self, queue: &QueueName, entry: EntryId) {
        let mut delete = redis::cmd("XDEL");
        delete.arg(format!("qw:{{{queue}}}:tasks")).arg(entry.to_string());
        let gone: u64 = delete.query_async(&mut self.connect().await).await.unwrap();
        assert_eq!(gone, 1);
    }

    async fn consumers(&self, queue: &QueueName) -> usize {
        let mut list = redis::cmd("XINFO");
        list.arg("CONSUMERS").arg(format!("qw:{{{queue}}}:tasks")).arg("qw");
        let found: Vec<redis::Value> = list.query_async(&mut self.connect().await).await.unwrap();
        found.len()
    }
}

impl LeaseStage for Redis {
    fn worker(&self, ttl: Duration) -> Arc<dyn LeaseStore> {
        let options =
            RedisLeaseOptions { ttl, ..RedisLeaseOptions::new(self.target(), Clock::System) };
        Arc::new(RedisLeases::new(options))
    }

    async fn forget(&self, name: &str) {
        let mut delete = redis::cmd("DEL");
        let gone: u64 = delete.arg(name).query_async(&mut self.connect().await).await.unwrap();
        assert_eq!(gone, 1);
    }
}

pub(crate) fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

pub(crate) fn raw(payload: &str) -> RawEntry {
    let payload = Bytes::from(payload.to_owned());
    RawEntry { fields: vec![(Bytes::from_static(b"payload"), payload)] }
}

pub(crate) fn task_with(id: &str, payload: &str, lock_key: Option<&str>) -> Arc<Task> {
    let kind = Kind::new("note").unwrap();
    let payload = Bytes::from(payload.to_owned());
    let lock_key = lock_key.map(|key| LockKey::new(key).unwrap());
    Arc::new(Task {
        id: TaskId::new(id).unwrap(),
        queue: queue(),
        hash: PayloadHash::of(&kind, &payload, lock_key.as_ref()),
        kind,
        payload,
        lock_key,
        max_attempts: Some(7),
        timeout: Some(Duration::from_secs(9)),
        not_before_ms: None,
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
    })
}

pub(crate) fn task(id: &str) -> Arc<Task> {
    task_with(id, "hello", None)
}

/// Writes id and fence; the payload can ask for trouble.
pub(crate) struct Note;

/// How long a slow effect takes.
pub(crate) const SLOW: Duration = Duration::from_millis(800);

#[async_trait]
impl Effect for Note {
    fn name(&self) -> &'static str {
        "note"
    }

    fn batch(&self) -> usize {
        1
    }

    fn single_commit(&self) -> bool {
        true
    }

    async fn apply(
        &self,
        mut connection: EffectConnection<'_>,
        items: &[EffectItem],
    ) -> Result<(), EffectError> {
        for item in items {
            let id = item.task.id.as_str();
            match &mut connection {
                EffectConnection::Postgres(connection) => {
                    sqlx::query("INSERT INTO notes (id, fence) VALUES ($1, $2)")
                        .bind(id)
                        .bind(item.fence.0)
                        .execute(&mut **connection)
                        .await?;
                }
                EffectConnection::Memory(transaction) => {
                    transaction.insert(id, item.fence.to_string());
                }
            }
            match &item.task.payload[..] {
                b"slow" => tokio::time::sleep(SLOW).await,
                b"fail" => return Err(EffectError::Failed(Failure::for_good("as asked"))),
                b"panic" => std::panic::resume_unwind(Box::new("as asked")),
                _ => {}
            }
        }
        Ok(())
    }
}

pub(crate) fn note() -> Arc<dyn Effect> {
    Arc::new(Note)
}

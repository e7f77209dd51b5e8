//! What the suites stand on: the stores in memory, or private servers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_worker::domain::{
    EntryId, Failure, Kind, LockKey, PayloadHash, QueueName, RawEntry, Task, TaskId,
};
use queue_worker::lease::LeaseStore;
use queue_worker::ledger::{Effect, EffectConnection, EffectError, EffectItem, Ledger, Status};
use queue_worker::queue::Queue;
use tokio::sync::Notify;

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
        let waits = matches!(status, Status::Delayed | Status::Released);
        let has_payload = waits || status == Status::Running;
        Self { status, fence, attempts, crashes, has_payload, waits, entry: None }
    }

    /// Claimed for the second time, or renewed: somebody looks after it.
    pub(crate) fn looked_after(self) -> Self {
        Self { waits: true, ..self }
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
    /// How much longer a task waits, at most.
    async fn waits(&self, task: &Task) -> Duration;
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
    /// Until a fetch that is under way waits for entries.
    async fn until_a_fetch_waits(&self);
}

/// A Redis, and workers on it.
pub(crate) trait LeaseStage {
    fn worker(&self, ttl: Duration) -> Arc<dyn LeaseStore>;
    /// Deletes a lock by hand.
    async fn forget(&self, name: &str);
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
#[derive(Default)]
pub(crate) struct Note {
    begun: Notify,
    gate: Notify,
}

impl Note {
    /// Until the effect of a gated task is in the middle of its transaction.
    pub(crate) async fn until_begun(&self) {
        self.begun.notified().await;
    }

    /// Lets a gated task end.
    pub(crate) fn open_gate(&self) {
        self.gate.notify_one();
    }
}

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
                b"gated" => {
                    self.begun.notify_one();
                    self.gate.notified().await;
                }
                b"endless" => match &mut connection {
                    EffectConnection::Postgres(connection) => {
                        sqlx::query("SELECT pg_sleep(3600)").execute(&mut **connection).await?;
                    }
                    EffectConnection::Memory(_) => std::future::pending().await,
                },
                b"fail" => return Err(EffectError::Failed(Failure::for_good("as asked"))),
                b"panic" => std::panic::resume_unwind(Box::new("as asked")),
                _ => {}
            }
        }
        Ok(())
    }
}

pub(crate) fn note() -> Arc<dyn Effect> {
    Arc::new(Note::default())
}

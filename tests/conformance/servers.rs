//! A Postgres and a Redis of the test's own.

use std::sync::Arc;
use std::time::Duration;

use queue_worker::clock::Clock;
use queue_worker::connection::RedisTarget;
use queue_worker::domain::{EntryId, QueueName, Task, WorkerId};
use queue_worker::lease::{LeaseStore, RedisLeaseOptions, RedisLeases};
use queue_worker::ledger::{
    Ledger, LetterFilter, PostgresLedger, PostgresOptions, Status, migrate,
};
use queue_worker::private_servers::{self, PostgresServer, RedisServer};
use queue_worker::queue::{Queue, RedisQueue, RedisQueueOptions};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, Row};

use crate::stage::{LeaseStage, LedgerStage, QueueStage, Seen, eventually};

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
        let row = sqlx::query(
            "SELECT status::text, fence, attempts, crashes, payload IS NOT NULL, \
             run_at IS NOT NULL, entry FROM queue_worker.processed_tasks WHERE task_id = $1",
        )
        .bind(id)
        .fetch_optional(&mut self.connect().await)
        .await
        .unwrap()?;
        let status: &str = row.get(0);
        let count = |column| u32::try_from(row.get::<i32, _>(column)).unwrap();
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
            fence: row.get(1),
            attempts: count(2),
            crashes: count(3),
            has_payload: row.get(4),
            waits: row.get(5),
            entry: row.get(6),
        })
    }

    async fn waits(&self, task: &Task) -> Duration {
        let seconds: f64 = sqlx::query_scalar(
            "SELECT GREATEST(EXTRACT(EPOCH FROM run_at - clock_timestamp()), 0)::float8 \
             FROM queue_worker.processed_tasks WHERE task_id = $1",
        )
        .bind(task.id.as_str())
        .fetch_one(&mut self.connect().await)
        .await
        .unwrap();
        Duration::from_secs_f64(seconds)
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

    async fn until_a_fetch_waits(&self) {
        let mut connection = self.connect().await;
        eventually("a blocked client", async || {
            let mut info = redis::cmd("INFO");
            let said: String = info.arg("clients").query_async(&mut connection).await.unwrap();
            said.lines().any(|line| line.trim() == "blocked_clients:1").then_some(())
        })
        .await;
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

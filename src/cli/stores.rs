//! The stores, opened for a person's question: checked first, and patient.
//!
//! A worker's deadlines are made for a worker; a question may read a whole table. Whether the server
//! is there at all is found out with the worker's own deadline, so that nobody waits for nothing.

use std::time::Duration;

use anyhow::Context as _;

use crate::config::Config;
use crate::domain::WorkerId;
use crate::ledger::{Ledger as _, PostgresLedger, PostgresOptions};
use crate::queue::{RedisQueue, RedisQueueOptions};
use crate::supervisor::{ledger_options, redis_target};

/// How long an answer of Postgres may take: a large table is read as a whole.
const PATIENCE: Duration = Duration::from_secs(60);

/// The ledger, after Postgres has answered and its schema was found good.
pub(super) async fn ledger(config: &Config) -> anyhow::Result<PostgresLedger> {
    let options = ledger_options(config, WorkerId::random()).context("postgres.url")?;
    PostgresLedger::new(options.clone()).check().await?;
    Ok(PostgresLedger::new(PostgresOptions { call_timeout: PATIENCE, pool_size: 1, ..options }))
}

/// The queues, not yet connected.
pub(super) fn queues(config: &Config) -> anyhow::Result<RedisQueue> {
    let target = redis_target(&config.redis).context("redis.url")?;
    Ok(RedisQueue::new(RedisQueueOptions::new(target, WorkerId::random())))
}

//! From the configuration to the parts: stores, limits, queues.
//!
//! Nothing here connects. A secret is read at each connect, so that one that is missing, wrong or
//! rotated costs readiness and not the process.

use std::sync::Arc;

use sqlx::postgres::PgConnectOptions;

use crate::clock::Clock;
use crate::config::{Config, PostgresSettings, QueueSettings, RedisSettings};
use crate::connection::{PasswordSource, RedisTarget, TargetError};
use crate::domain::WorkerId;
use crate::lease::{RedisLeaseOptions, RedisLeases};
use crate::ledger::{PostgresLedger, PostgresOptions, Retention};
use crate::protocol::drain::Budget;
use crate::queue::{RedisQueue, RedisQueueOptions};
use crate::worker::{Limits, Served, Stores};

/// The Redis of the configuration.
pub fn redis_target(settings: &RedisSettings) -> Result<RedisTarget, TargetError> {
    let user = settings.user();
    let url = settings.url.without_password();
    let target = RedisTarget::parse(url.as_str(), user.as_deref(), None)?;
    let settings = settings.clone();
    Ok(target.with_password_source(PasswordSource::new(move || {
        let password = settings.password().map_err(|error| error.to_string())?;
        Ok(password.map(|secret| secret.expose().to_owned()))
    })))
}

/// The Postgres of the configuration, without its password: see [`postgres_password`].
pub fn postgres_connect(settings: &PostgresSettings) -> Result<PgConnectOptions, sqlx::Error> {
    settings.url.without_password().as_str().parse()
}

/// Reads the password of the Postgres of the configuration.
pub fn postgres_password(settings: &PostgresSettings) -> PasswordSource {
    let settings = settings.clone();
    PasswordSource::new(move || {
        let password = settings.password().map_err(|error| error.to_string())?;
        Ok(password.map(|secret| secret.expose().to_owned()))
    })
}

/// The ledger of the configuration.
pub fn ledger_options(config: &Config, worker: WorkerId) -> Result<PostgresOptions, sqlx::Error> {
    let postgres = &config.postgres;
    Ok(PostgresOptions {
        password: Some(postgres_password(postgres)),
        lease: config.lease.ttl,
        max_crashes: config.lease.max_crashes,
        pool_size: postgres.pool_size as usize,
        call_timeout: postgres.call_timeout,
        lock_timeout: postgres.lock_timeout,
        committers: postgres.committers,
        ..PostgresOptions::new(postgres_connect(postgres)?, worker)
    })
}

/// The stores of the worker.
pub(super) fn stores(
    config: &Config,
    worker: WorkerId,
    clock: Clock,
) -> Result<Stores, BuildError> {
    let target = redis_target(&config.redis)?;
    let queue = RedisQueueOptions {
        min_idle: config.lease.min_idle,
        call_timeout: config.redis.call_timeout,
        max_payload: config.queues.iter().map(|queue| queue.max_payload.bytes()).max().unwrap_or(0),
        ..RedisQueueOptions::new(target.clone(), worker)
    };
    let leases = RedisLeaseOptions {
        ttl: config.lease.ttl,
        call_timeout: config.redis.call_timeout,
        ..RedisLeaseOptions::new(target, clock)
    };
    Ok(Stores {
        queue: Arc::new(RedisQueue::new(queue)),
        leases: Arc::new(RedisLeases::new(leases)),
        ledger: Arc::new(PostgresLedger::new(ledger_options(config, worker)?)),
    })
}

/// Times and limits of the worker.
pub(super) fn limits(config: &Config) -> Limits {
    Limits {
        lease: config.lease.ttl,
        sweep: config.lease.sweep,
        suspect_wait: config.lease.suspect_wait,
        retention: Retention {
            succeeded: config.retention.succeeded,
            failed: config.retention.failed,
            letters: config.retention.dead_letters,
            batch: config.retention.batch,
        },
        prune_every: config.retention.every,
        unknown_kind_give_up: config.unknown_kind.give_up,
    }
}

/// The queues of the worker.
pub(super) fn served(config: &Config) -> Vec<Served> {
    let served = |queue: &QueueSettings| Served {
        name: queue.name.clone(),
        concurrency: queue.concurrency,
        max_payload: queue.max_payload.bytes(),
    };
    config.queues.iter().map(served).collect()
}

/// How long a drain may take.
pub(super) fn budget(config: &Config) -> Budget {
    let drain = &config.drain;
    Budget { soft: drain.timeout, grace: drain.kill_after + drain.margin / 2 }
}

/// A store cannot be built from its URL.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// `redis.url`
    #[error("redis.url cannot be used")]
    Redis(#[from] TargetError),
    /// `postgres.url`
    #[error("postgres.url cannot be used")]
    Postgres(#[from] sqlx::Error),
}

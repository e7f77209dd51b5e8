//! From the configuration to the parts: stores, limits, queues.
//!
//! Nothing here connects. A secret is read at each connect, so that one that is missing, wrong or
//! rotated costs readiness and not the process.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;

use crate::clock::Clock;
use crate::config::{
    Config, LeaseSettings, PostgresSettings, QueueSettings, RedisSettings, ServerUrl,
};
use crate::connection::{PasswordSource, RedisTarget, TargetError};
use crate::domain::WorkerId;
use crate::handler::git::GitStores;
use crate::handler::git::results::Results;
use crate::lease::{LeaseStore, QuorumLeaseOptions, QuorumLeases, RedisLeaseOptions, RedisLeases};
use crate::ledger::{PostgresLedger, PostgresOptions, Retention};
use crate::protocol::quorum::Retry;
use crate::queue::{RedisQueue, RedisQueueOptions};
use crate::worker::watched::Watched;
use crate::worker::{Limits, Served, Stores};

/// The Redis of the configuration.
pub fn redis_target(settings: &RedisSettings) -> Result<RedisTarget, TargetError> {
    let user = settings.user();
    let url = settings.url.without_password();
    let target = RedisTarget::parse(url.as_str(), user.as_deref(), None)?
        .with_connect_timeout(settings.connect_timeout);
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

/// The stores of the worker, and two of them as what they are.
pub(super) struct Built {
    /// As the worker knows them.
    pub(super) stores: Stores,
    /// Its queue.
    pub(super) redis: Arc<RedisQueue>,
    /// Its ledger.
    pub(super) postgres: Arc<PostgresLedger>,
}

/// The stores of the worker.
pub(super) fn stores(config: &Config, worker: WorkerId, clock: Clock) -> Result<Built, BuildError> {
    let target = redis_target(&config.redis)?;
    let queue = RedisQueueOptions {
        min_idle: config.lease.min_idle,
        call_timeout: config.redis.call_timeout,
        max_payload: config.queues.iter().map(|queue| queue.max_payload.bytes()).max().unwrap_or(0),
        ..RedisQueueOptions::new(target.clone(), worker)
    };
    let redis = Arc::new(RedisQueue::new(queue));
    let postgres = Arc::new(PostgresLedger::new(ledger_options(config, worker)?));
    let stores = Stores {
        queue: Arc::<RedisQueue>::clone(&redis),
        leases: leases(config, target, clock)?,
        ledger: Arc::<PostgresLedger>::clone(&postgres),
    };
    Ok(Built { stores, redis, postgres })
}

/// What tasks about commits need beside git.
pub(super) fn git_stores(config: &Config, clock: Clock) -> Result<GitStores, BuildError> {
    let target = redis_target(&config.redis)?;
    let queue = RedisQueueOptions {
        call_timeout: config.redis.call_timeout,
        ..RedisQueueOptions::new(target.clone(), WorkerId::random())
    };
    Ok(GitStores {
        queue: Arc::new(RedisQueue::new(queue)),
        leases: leases(config, target, clock)?,
        results: Arc::new(git_results(config)?),
    })
}

fn git_results(config: &Config) -> Result<Results, sqlx::Error> {
    let connect = postgres_connect(&config.postgres)?;
    let password = postgres_password(&config.postgres);
    Ok(Results::new(&connect, Some(password), config.postgres.pool_size as usize))
}

/// What is known of commits, in the Postgres of the configuration, for a person's questions.
pub fn git_report_results(config: &Config) -> Result<Results, sqlx::Error> {
    let connect = postgres_connect(&config.postgres)?;
    Ok(Results::for_reports(&connect, Some(postgres_password(&config.postgres))))
}

/// Where the locks are: on the lock nodes if there are any, else in the Redis of the streams.
fn leases(
    config: &Config,
    redis: RedisTarget,
    clock: Clock,
) -> Result<Arc<dyn LeaseStore>, BuildError> {
    let lease = &config.lease;
    if lease.nodes.is_empty() {
        return Ok(Arc::new(RedisLeases::new(RedisLeaseOptions {
            ttl: lease.ttl,
            call_timeout: config.redis.call_timeout,
            ..RedisLeaseOptions::new(redis, clock)
        })));
    }
    let nodes = lease.nodes.iter().map(|node| lock_node(lease, node)).collect::<Result<_, _>>();
    Ok(Arc::new(QuorumLeases::new(QuorumLeaseOptions {
        ttl: lease.ttl,
        node_timeout: lease.node_timeout,
        connect_timeout: config.redis.connect_timeout,
        retry: Retry {
            count: lease.retry_count,
            delay: lease.retry_delay,
            jitter: lease.retry_jitter,
        },
        ..QuorumLeaseOptions::new(nodes.map_err(BuildError::LockNode)?, clock)
    })))
}

/// One of the lock nodes of the configuration.
pub fn lock_node(lease: &LeaseSettings, node: &ServerUrl) -> Result<RedisTarget, TargetError> {
    let user = lease.node_user(node);
    let target = RedisTarget::parse(node.without_password().as_str(), user.as_deref(), None)?;
    let (lease, node) = (lease.clone(), node.clone());
    Ok(target.with_password_source(PasswordSource::new(move || {
        let password = lease.node_password(&node).map_err(|error| error.to_string())?;
        Ok(password.map(|secret| secret.expose().to_owned()))
    })))
}

/// Times and limits of the worker.
pub(super) fn limits(config: &Config, drain_grace: Duration) -> Limits {
    Limits {
        lease: config.lease.ttl,
        drain_grace: Arc::new(Watched::new(drain_grace)),
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

/// A store cannot be built from its URL.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// `redis.url`
    #[error("redis.url cannot be used")]
    Redis(#[from] TargetError),
    /// `lease.nodes`
    #[error("lease.nodes cannot be used")]
    LockNode(#[source] TargetError),
    /// `postgres.url`
    #[error("postgres.url cannot be used")]
    Postgres(#[from] sqlx::Error),
}

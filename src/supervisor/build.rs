//! From the configuration to the parts: stores, limits, queues.
//!
//! Nothing here connects. A secret is read at each connect, so that one that is missing, wrong or
//! rotated costs readiness and not the process.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;

use crate::clock::Clock;
use crate::config::{Config, PostgresSettings, RedisSettings};
use crate::connection::{PasswordSource, RedisTarget, TargetError};
use crate::domain::WorkerId;
use crate::lease::{RedisLeaseOptions, RedisLeases};
use crate::ledger::{PostgresLedger, PostgresOptions};
use crate::protocol::drain::Budget;
use crate::queue::{RedisQueue, RedisQueueOptions};
use crate::worker::{Limits, Served, Stores};

/// The Redis of the configuration.
pub fn redis_target(settings: &RedisSettings) -> Result<RedisTarget, TargetError> {
    let user = settings.user();
    let url = settings.url.expose().as_str();
    let target = RedisTarget::parse(url, user.as_deref(), None)?;
    let settings = settings.clone();
    Ok(target.with_password_source(Arc::new(move || {
        let password = settings.password().map_err(|error| error.to_string())?;
        Ok(password.map(|secret| secret.expose().to_owned()))
    })))
}

/// The Postgres of the configuration, without its password: see [`postgres_password`].
pub fn postgres_connect(settings: &PostgresSettings) -> Result<PgConnectOptions, sqlx::Error> {
    settings.url.expose().as_str().parse()
}

/// Reads the password of the Postgres of the configuration.
pub fn postgres_password(settings: &PostgresSettings) -> PasswordSource {
    let settings = settings.clone();
    Arc::new(move || {
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
        pool_size: postgres.pool_size,
        call_timeout: postgres.call_timeout,
        lock_timeout: postgres.lock_timeout,
        committers: postgres.committers,
        ..PostgresOptions::new(postgres_connect(postgres)?, worker)
    })
}

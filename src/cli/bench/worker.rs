//! The worker process of a bench: a real one, with two native handlers more.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::config::{Config, Environment};
use crate::domain::{Failure, RetryPolicy};
use crate::handler::registry::{EntryOptions, Registry};
use crate::handler::{ExternalHandler, Run};
use crate::supervisor::{self, Startup};
use crate::telemetry;

/// No task of the bench takes longer.
const LIMIT: Duration = Duration::from_secs(3600);

/// Does nothing.
struct Noop;

#[async_trait]
impl ExternalHandler for Noop {
    async fn run(&self, _: Run) -> Result<Option<Bytes>, Failure> {
        Ok(None)
    }

    fn is_light(&self) -> bool {
        true
    }
}

/// Waits until it is cancelled.
struct Hold;

#[async_trait]
impl ExternalHandler for Hold {
    async fn run(&self, run: Run) -> Result<Option<Bytes>, Failure> {
        run.cancel.cancelled().await;
        Err(Failure::retry("cancelled"))
    }

    fn is_light(&self) -> bool {
        true
    }
}

/// Runs a worker that knows `noop` and `hold` besides the handlers of its configuration.
pub(super) fn run(config_path: &Path) -> anyhow::Result<ExitCode> {
    let config = Config::load(config_path, &Environment::of_process())?;
    let log = telemetry::init(config.log.format.as_str(), &config.log.level)?;
    let policy = RetryPolicy { max_attempts: 1, base: LIMIT, max: LIMIT };
    let options = EntryOptions { timeout: LIMIT, policy, kill_after: Duration::from_secs(1) };
    let native = Registry::builder()
        .external("noop", options, Noop)
        .external("hold", options, Hold)
        .build()?;
    let config_path = config_path.to_owned();
    supervisor::run(Startup { config, config_path, native, log: Some(log) })?;
    Ok(ExitCode::SUCCESS)
}

//! `queue-worker run`: the daemon.

use std::process::ExitCode;

use super::GlobalOptions;
use crate::config::{Config, Environment};
use crate::handler::registry::Registry;
use crate::supervisor::{self, Startup};
use crate::telemetry;

/// Run the worker until it is told to stop
///
/// SIGTERM drains and exits with 0; a second one hurries. SIGTSTP pulls nothing more until SIGCONT.
/// SIGHUP reads the configuration again. SIGUSR2 drains at its own pace. Exit code 78 means that
/// the configuration is broken, and nothing else does.
#[derive(Debug, clap::Args)]
pub(super) struct Run {}

pub(super) fn run(global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let config = Config::load(&global.config, &Environment::of_process())?;
    let log = telemetry::init(config.log.format.as_str(), &config.log.level)?;
    for absent in config.absent_programs() {
        tracing::warn!("{absent}: its tasks fail until it is there");
    }
    supervisor::run(Startup {
        config,
        config_path: global.config.clone(),
        native: Registry::default(),
        log: Some(log),
    })?;
    Ok(ExitCode::SUCCESS)
}

//! SIGHUP: reads the configuration again, applies what can be applied, and says what cannot.

use std::path::PathBuf;
use std::sync::Arc;

use super::commits::Commits;
use super::confinement::Confinement;
use crate::config::{Config, Environment, reloadable};
use crate::handler::registry::Registry;
use crate::telemetry::LogHandle;

/// What a reload works on.
pub(super) struct Reloader {
    /// What is in force.
    pub(super) config: Config,
    /// Where it came from.
    pub(super) path: PathBuf,
    /// The handlers registered in code.
    pub(super) native: Registry,
    /// All handlers in force.
    pub(super) registry: Arc<Registry>,
    /// What programs are confined to.
    pub(super) confinement: Arc<Confinement>,
    /// What tasks about commits share.
    pub(super) commits: Arc<Commits>,
    /// Changes the log level.
    pub(super) log: Option<LogHandle>,
}

impl Reloader {
    /// Reads and applies; the caller applies what is its own. `None` if the file is not usable: the
    /// old configuration stays in force.
    pub(super) fn reload(&mut self) -> Option<&Config> {
        let new = match Config::load(&self.path, &Environment::of_process()) {
            Ok(new) => new,
            Err(error) => {
                tracing::error!("reload refused, the old configuration stays: {error}");
                return None;
            }
        };
        let plan = reloadable(&self.config, &new);
        let Self { native, confinement, commits, .. } = self;
        match super::handlers::registry(native, &new, confinement, commits) {
            Ok(registry) => self.registry.replace(registry),
            Err(error) => {
                tracing::error!("reload refused, the old configuration stays: {error}");
                return None;
            }
        }
        if let Some(log) = &self.log
            && let Err(error) = log.set_level(&new.log.level)
        {
            tracing::error!("log.level not applied: {error}");
        }
        for key in &plan.needs_restart {
            tracing::warn!("{key} has changed; it takes effect at the next restart");
        }
        tracing::info!("reloaded {}: {} changes applied", self.path.display(), plan.apply.len());
        self.config = new;
        Some(&self.config)
    }
}

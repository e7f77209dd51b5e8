//! SIGHUP: reads the configuration again, applies what can be applied, and says what cannot.

use std::path::PathBuf;
use std::sync::Arc;

use super::commits::Commits;
use super::confinement::Confinement;
use crate::config::{Config, Environment, ReloadPlan, in_force, reloadable};
use crate::handler::registry::Registry;
use crate::telemetry::LogHandle;

/// What a reload works on.
pub(super) struct Reloader {
    /// What is in force.
    pub(super) config: Config,
    /// The keys of the file that wait for a restart.
    pub(super) pending: Vec<String>,
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
        let (plan, new) = match self.prepare() {
            Ok(prepared) => prepared,
            Err(error) => {
                tracing::error!("reload refused, the old configuration stays: {error}");
                return None;
            }
        };
        if let Some(log) = &self.log
            && let Err(error) = log.set_level(&new.log.level)
        {
            tracing::error!("log.level not applied: {error}");
        }
        for key in &plan.needs_restart {
            tracing::warn!("{key} has changed; it takes effect at the next restart");
        }
        tracing::info!("reloaded {}: {} changes applied", self.path.display(), plan.apply.len());
        self.pending = plan.needs_restart;
        self.config = new;
        Some(&self.config)
    }

    /// Puts the handlers of the file in force, and answers what else is to be.
    fn prepare(&self) -> Result<(ReloadPlan, Config), String> {
        let environment = Environment::of_process();
        let file = Config::load(&self.path, &environment).map_err(|error| error.to_string())?;
        let plan = reloadable(&self.config, &file);
        let new = in_force(&self.config, file);
        // Each file keeps the rules between keys, and a mixture of two need not.
        new.check(&self.path, &environment).map_err(|error| {
            let pending = plan.needs_restart.join(", ");
            format!("until a restart applies {pending} as well: {error}")
        })?;
        let Self { native, confinement, commits, .. } = self;
        let registry = super::handlers::registry(native, &new, confinement, commits);
        self.registry.replace(registry.map_err(|error| error.to_string())?);
        Ok((plan, new))
    }
}

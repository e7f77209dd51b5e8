//! Cgroups for the programs of tasks: taken over at the start, and what a handler asks for that
//! this machine cannot enforce is said, with the remedy.
//!
//! A limit that cannot be enforced is a warning and never a refusal: the same configuration has to
//! work on a laptop and in a unit.

use std::sync::Arc;

use crate::config::{Config, ExecSettings, HandlerAction};
use crate::handler::exec::cgroup::{Cgroups, Controller, Limits, Unavailable};

/// The delegated part of the tree, or why there is none.
pub(super) struct Confinement(Result<Arc<Cgroups>, Unavailable>);

impl Confinement {
    /// Takes over what the unit delegates. Called before any child is started.
    pub(super) fn take_over() -> Self {
        let taken = Cgroups::take_over();
        match &taken {
            Ok(cgroups) => tracing::info!(
                "each program runs in a cgroup of its own below {}; limits: {}",
                cgroups.tasks().display(),
                names(cgroups.controllers())
            ),
            Err(reason) => tracing::debug!("programs run without cgroups of their own: {reason}"),
        }
        Self(taken)
    }

    /// Where runs have their cgroups, if anywhere.
    pub(super) fn cgroups(&self) -> Option<Arc<Cgroups>> {
        self.0.as_ref().ok().cloned()
    }

    /// Warns of each limit that is asked for and not enforced.
    pub(super) fn warn(&self, config: &Config) {
        for warning in self.warnings(config) {
            tracing::warn!("{warning}");
        }
    }

    /// Removes the cgroups of runs that are over.
    pub(super) fn sweep(&self) {
        if let Ok(cgroups) = &self.0 {
            cgroups.sweep();
        }
    }

    fn warnings(&self, config: &Config) -> Vec<String> {
        let available = self.0.as_ref().map_or(&[][..], |cgroups| cgroups.controllers());
        let mut warnings = Vec::new();
        for (kind, handler) in &config.handlers {
            let HandlerAction::Exec(exec) = &handler.action else { continue };
            for missing in limits(exec).unenforced(available) {
                let (limit, needs) = (missing.limit, missing.needs);
                let reason = match &self.0 {
                    Err(reason) => reason.to_string(),
                    Ok(_) => format!(
                        "the controller {needs} is not delegated; set Delegate=yes in the unit, and \
                         enable the controller in the host or container around it"
                    ),
                };
                warnings.push(format!("handler.{kind}.{limit} is not enforced: {reason}"));
            }
        }
        warnings
    }
}

/// The limits of a handler.
pub(super) fn limits(settings: &ExecSettings) -> Limits {
    Limits {
        memory_max: settings.memory_max.map(|size| size.bytes() as u64),
        pids_max: settings.pids_max,
        cpu_weight: settings.cpu_weight,
    }
}

fn names(controllers: &[Controller]) -> String {
    if controllers.is_empty() {
        return "none, no controller is delegated".to_owned();
    }
    controllers.iter().map(|controller| controller.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ByteSize, HandlerCommon, HandlerSettings};

    fn config() -> Config {
        let mut config = Config::with_queue("mail".parse().unwrap());
        let exec = ExecSettings {
            memory_max: Some(ByteSize::mib(512)),
            cpu_weight: Some(20),
            ..ExecSettings::new(vec!["/bin/true".to_owned()])
        };
        let action = HandlerAction::Exec(exec);
        let handler = HandlerSettings { common: HandlerCommon::new(), action };
        config.handlers.insert("resize".parse().unwrap(), handler);
        config
    }

    #[test]
    fn every_limit_that_is_not_enforced_is_named_with_the_remedy() {
        let not_delegated = Unavailable::NotDelegated("/c/x.service".into());
        let warnings = Confinement(Err(not_delegated)).warnings(&config());
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert_eq!(
            warnings[0],
            "handler.resize.memory_max is not enforced: /c/x.service is not delegated; set \
             Delegate=yes in the unit"
        );

        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("cgroup.procs"), "").unwrap();
        std::fs::write(root.path().join("cgroup.controllers"), "memory pids").unwrap();
        let cgroups = Cgroups::take_over_at(root.path());
        let warnings = Confinement(cgroups).warnings(&config());
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("handler.resize.cpu_weight"), "{warnings:?}");
        assert!(warnings[0].contains("the controller cpu is not delegated"), "{warnings:?}");
    }

    #[test]
    fn without_limits_nothing_is_said() {
        let not_delegated = Unavailable::NotDelegated("/c/x.service".into());
        let config = Config::with_queue("mail".parse().unwrap());
        assert!(Confinement(Err(not_delegated)).warnings(&config).is_empty());
    }
}

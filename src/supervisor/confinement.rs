//! Cgroups for the programs of tasks: taken over at the start, and what a handler asks for that
//! this machine cannot enforce is said, with the remedy.
//!
//! A limit that cannot be enforced is a warning and never a refusal: the same configuration has to
//! work on a laptop and in a unit.

use std::fmt;
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
            Err(reason) => tracing::debug!(
                "programs run without cgroups of their own: {reason}; {}",
                reason.remedy()
            ),
        }
        Self(taken)
    }

    /// Where runs have their cgroups, if anywhere.
    pub(super) fn cgroups(&self) -> Option<Arc<Cgroups>> {
        self.0.as_ref().ok().cloned()
    }

    /// Warns of each limit that is asked for and not enforced.
    pub(super) fn warn(&self, config: &Config) {
        let available = self.0.as_ref().map(|cgroups| cgroups.controllers());
        for limit in unenforced_limits(config, available) {
            tracing::warn!("{limit}");
        }
    }

    /// Removes the cgroups of runs that are over.
    pub(super) fn sweep(&self) {
        if let Ok(cgroups) = &self.0 {
            cgroups.sweep();
        }
    }
}

/// A limit of a handler that is not enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnenforcedLimit {
    /// Where it stands: `handler.KIND.memory_max`.
    pub key: String,
    /// Why not.
    pub reason: String,
    /// What to do, as an imperative.
    pub remedy: String,
}

impl fmt::Display for UnenforcedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not enforced: {}; {}", self.key, self.reason, self.remedy)
    }
}

/// The limits that are asked for and not enforced where these controllers are available: see
/// [`controllers_of`](crate::handler::exec::cgroup::controllers_of).
pub fn unenforced_limits(
    config: &Config,
    available: Result<&[Controller], &Unavailable>,
) -> Vec<UnenforcedLimit> {
    let mut found = Vec::new();
    for (kind, handler) in &config.handlers {
        let HandlerAction::Exec(exec) = &handler.action else { continue };
        for missing in limits(exec).unenforced(available.unwrap_or_default()) {
            let (reason, remedy) = match available {
                Err(reason) => (reason.to_string(), reason.remedy().to_owned()),
                Ok(_) => (
                    format!("the controller {} is not delegated", missing.needs),
                    "set Delegate=yes in the unit, and if this is a container, let its host enable \
                     the controller for it"
                        .to_owned(),
                ),
            };
            let key = format!("handler.{kind}.{}", missing.limit);
            found.push(UnenforcedLimit { key, reason, remedy });
        }
    }
    found
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

    fn said(config: &Config, available: Result<&[Controller], &Unavailable>) -> Vec<String> {
        unenforced_limits(config, available).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_limit_that_is_not_enforced_is_named_with_the_remedy() {
        let warnings = said(&config(), Err(&Unavailable::NotDelegated("/c/x.service".into())));
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert_eq!(
            warnings[0],
            "handler.resize.memory_max is not enforced: /c/x.service is not delegated; set \
             Delegate=yes in the unit"
        );
        let warnings = said(&config(), Ok(&[Controller::Memory, Controller::Pids]));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("handler.resize.cpu_weight"), "{warnings:?}");
        assert!(warnings[0].contains("the controller cpu is not delegated"), "{warnings:?}");
        assert!(said(&config(), Ok(&Controller::ALL)).is_empty());
    }

    #[test]
    fn without_limits_nothing_is_said() {
        let config = Config::with_queue("mail".parse().unwrap());
        assert!(said(&config, Err(&Unavailable::NoHierarchy)).is_empty());
    }
}

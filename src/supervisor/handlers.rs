//! From `[handler.KIND]` to what runs the kind.

use std::sync::Arc;

use super::life::StartError;
use crate::config::{Config, ExecSettings, HandlerAction, HandlerSettings};
use crate::handler::Handler;
use crate::handler::exec::{ExecHandler, ExecOptions};
use crate::handler::registry::{Entry, Registry};

/// Sets the handlers of the configuration; those registered in code stay.
pub(super) fn register(registry: &Registry, config: &Config) -> Result<(), StartError> {
    for (kind, settings) in &config.handlers {
        let kill_after = match &settings.action {
            HandlerAction::Exec(exec) => exec.kill_after,
            HandlerAction::Sql(_) | HandlerAction::Http(_) => config.drain.kill_after,
        };
        let entry = Entry {
            handler: handler(settings),
            timeout: settings.common.timeout,
            policy: settings.retry(),
            kill_after: kill_after.min(config.drain.kill_after),
        };
        registry.insert(kind, entry);
    }
    Ok(())
}

fn handler(settings: &HandlerSettings) -> Handler {
    match &settings.action {
        HandlerAction::Exec(exec) => Handler::External(Arc::new(ExecHandler::new(options(exec)))),
        _ => unimplemented!(),
    }
}

fn options(settings: &ExecSettings) -> ExecOptions {
    ExecOptions {
        working_dir: settings.working_dir.clone(),
        environment: settings.environment.clone(),
        result_cap: settings.result_cap.bytes(),
        stderr_cap: settings.stderr_cap.bytes(),
        kill_after: settings.kill_after,
        ..ExecOptions::new(settings.command.clone())
    }
}

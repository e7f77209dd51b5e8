//! From `[handler.KIND]` to what runs the kind.

use std::sync::Arc;

use super::confinement::{Confinement, limits};
use super::start::StartError;
use crate::config::{Config, ExecSettings, HandlerAction, HandlerSettings, HttpSettings, Secret};
use crate::domain::Kind;
use crate::handler::Handler;
use crate::handler::exec::{ExecHandler, ExecOptions};
use crate::handler::http::{HeaderSource, HttpHandler, HttpOptions};
use crate::handler::registry::{EntryOptions, Registry};
use crate::handler::sql::{SqlEffect, SqlOptions};

/// The handlers of the configuration, and those registered in code.
pub(super) fn registry(
    native: &Registry,
    config: &Config,
    confinement: &Confinement,
) -> Result<Registry, StartError> {
    let mut builder = Registry::builder().with(native);
    for (kind, settings) in &config.handlers {
        let handler = handler(kind, settings, confinement)?;
        builder = builder.handler(kind.as_str(), rules(settings, config), handler);
    }
    confinement.warn(config);
    builder.build().map_err(|error| StartError::Handlers(error.to_string()))
}

fn rules(settings: &HandlerSettings, config: &Config) -> EntryOptions {
    let kill_after = match &settings.action {
        HandlerAction::Exec(exec) => exec.kill_after,
        HandlerAction::Sql(_) | HandlerAction::Http(_) => config.drain.kill_after,
    };
    EntryOptions { timeout: settings.common.timeout, policy: settings.retry(), kill_after }
}

fn handler(
    kind: &Kind,
    settings: &HandlerSettings,
    confinement: &Confinement,
) -> Result<Handler, StartError> {
    let refused = |message: String| StartError::Handlers(format!("handler.{kind}: {message}"));
    Ok(match &settings.action {
        HandlerAction::Exec(exec) => {
            let handler = ExecHandler::new(program(exec)).in_cgroups(confinement.cgroups());
            Handler::External(Arc::new(handler))
        }
        HandlerAction::Sql(sql) => Handler::InTransaction(Arc::new(SqlEffect::new(SqlOptions {
            kind: kind.as_str().to_owned(),
            statement: sql.statement.clone(),
            batch: sql.batch,
        }))),
        HandlerAction::Http(http) => {
            let handler = HttpHandler::new(request(http));
            Handler::External(Arc::new(handler.map_err(|error| refused(error.to_string()))?))
        }
    })
}

fn program(settings: &ExecSettings) -> ExecOptions {
    ExecOptions {
        working_dir: settings.working_dir.clone(),
        environment: settings.environment.clone(),
        result_cap: settings.result_cap.bytes(),
        stderr_cap: settings.stderr_cap.bytes(),
        kill_after: settings.kill_after,
        limits: limits(settings),
        ..ExecOptions::new(settings.command.clone())
    }
}

fn request(settings: &HttpSettings) -> HttpOptions {
    let secrets = settings.clone();
    HttpOptions {
        headers: settings.headers.clone(),
        secret_headers: Some(HeaderSource::new(move || {
            let headers = secrets.secret_headers().map_err(|error| error.to_string())?;
            let expose = |(name, secret): (_, Secret)| (name, secret.expose().to_owned());
            Ok(headers.into_iter().map(expose).collect())
        })),
        connect_timeout: settings.connect_timeout,
        result_cap: settings.response_cap.bytes(),
        ..HttpOptions::new(settings.url.expose().clone())
    }
}

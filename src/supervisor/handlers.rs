//! From `[handler.KIND]` to what runs the kind.

use std::sync::Arc;
use std::time::Duration;

use super::commits::Commits;
use super::confinement::{Confinement, limits};
use super::start::StartError;
use crate::config::{
    ByteSize, Config, ExecSettings, GitSettings, HandlerAction, HandlerSettings, HttpSettings,
    Secret,
};
use crate::domain::Kind;
use crate::handler::Handler;
use crate::handler::exec::{ExecHandler, ExecOptions};
use crate::handler::git::{
    Access, EngineLimits, GitHandler, GitHandlerOptions, GitOptions, MirrorLimits, SourcePolicy,
};
use crate::handler::http::{HeaderSource, HttpHandler, HttpOptions};
use crate::handler::registry::{EntryOptions, Registry};
use crate::handler::sql::{SqlEffect, SqlOptions};

/// The handlers of the configuration, and those registered in code.
pub(super) fn registry(
    native: &Registry,
    config: &Config,
    confinement: &Confinement,
    commits: &Arc<Commits>,
) -> Result<Registry, StartError> {
    let mut builder = Registry::builder().with(native);
    for (kind, settings) in &config.handlers {
        let handler = handler(kind, settings, config, confinement, commits)?;
        builder = builder.handler(kind.as_str(), rules(settings, config), handler);
    }
    confinement.warn(config);
    builder.build().map_err(|error| StartError::Handlers(error.to_string()))
}

fn rules(settings: &HandlerSettings, config: &Config) -> EntryOptions {
    let kill_after = match &settings.action {
        HandlerAction::Exec(exec) => exec.kill_after,
        HandlerAction::Sql(_) | HandlerAction::Http(_) | HandlerAction::Git(_) => {
            config.drain.kill_after
        }
    };
    EntryOptions { timeout: settings.common.timeout, policy: settings.retry(), kill_after }
}

fn handler(
    kind: &Kind,
    settings: &HandlerSettings,
    config: &Config,
    confinement: &Confinement,
    commits: &Arc<Commits>,
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
        HandlerAction::Git(git) => {
            let (lease, heartbeat) = commits.lease();
            let git_options = git_options(git, settings.common.timeout, config);
            let options =
                GitHandlerOptions { git: git_options, batch: git.batch, lease, heartbeat };
            let commits = Arc::clone(commits);
            let connect = move || commits.stores().map_err(|error| error.to_string());
            Handler::External(Arc::new(GitHandler::new(options, connect)))
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
        proxy: settings.proxy.as_ref().map(|proxy| proxy.expose().clone()),
        connect_timeout: settings.connect_timeout,
        result_cap: settings.response_cap.bytes(),
        ..HttpOptions::new(settings.url.expose().clone())
    }
}

/// What the settings of a handler of commits come to; fetches and waits end with the task's time.
pub fn git_options(settings: &GitSettings, timeout: Duration, config: &Config) -> GitOptions {
    let bytes = |size: ByteSize| size.bytes() as u64;
    let root = settings.mirrors.clone().unwrap_or_else(|| config.worker.state_dir.join("git"));
    GitOptions {
        program: settings.program.clone(),
        sources: SourcePolicy {
            protocols: settings.protocols.clone(),
            hosts: settings.hosts.clone(),
            trusted_paths: settings.trusted_paths.iter().map(Into::into).collect(),
        },
        access: Access {
            credentials: settings
                .credential_files
                .iter()
                .map(|(host, file)| (host.clone(), file.into()))
                .collect(),
            ssh_command: settings.ssh_command.clone(),
            environment: settings.environment.clone(),
        },
        engine: EngineLimits {
            memory: bytes(settings.memory_max),
            commit_time: settings.commit_timeout,
            output: bytes(settings.output_max),
            files: settings.files_max,
            ..EngineLimits::default()
        },
        mirrors: MirrorLimits {
            fetch_memory: bytes(settings.fetch_memory_max),
            fetch_time: timeout,
            lock_time: timeout,
            repository: bytes(settings.repository_max),
            total: bytes(settings.mirrors_max),
            free: bytes(settings.disk_free),
            pin_time: settings.pin_for,
        },
        ..GitOptions::new(root)
    }
}

//! `queue-worker migrate`: brings the schema up to date.

use std::process::ExitCode;

use anyhow::anyhow;
use serde_json::{Value, json};

use super::GlobalOptions;
use crate::config::{Config, Environment, HandlerAction};
use crate::handler::git::results;
use crate::ledger::{self, LedgerError, MigrationReport};
use crate::supervisor::{postgres_connect, postgres_password};

/// Create or update the schemas `queue_worker` and `queue_worker_git` in Postgres
///
/// Safe to run at every start and from several machines at once: an advisory lock orders them.
/// Migrations only add, so the version before this one runs on the new schema too.
#[derive(Debug, clap::Args)]
pub(super) struct Migrate {
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

impl Migrate {
    pub(super) async fn run(self, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
        let config = Config::load(&global.config, &Environment::of_process())?;
        let mut connect = postgres_connect(&config.postgres)?;
        let password = postgres_password(&config.postgres).read();
        if let Some(password) = password.map_err(|message| anyhow!(message))? {
            connect = connect.password(&password);
        }
        let report = ledger::migrate(&connect).await?;
        let git = match results::migrate(&connect).await {
            // Whoever analyses no commits need not allow for their schema.
            Err(LedgerError::Refused { message, .. }) if !analyses_commits(&config) => {
                eprintln!("the schema queue_worker_git was left out: {message}");
                None
            }
            answer => Some(answer?),
        };
        if self.json {
            let mut value = shown(&report);
            value["git"] = git.as_ref().map_or(Value::Null, shown);
            println!("{value}");
            return Ok(ExitCode::SUCCESS);
        }
        let reports = [("queue_worker", Some(&report)), ("queue_worker_git", git.as_ref())];
        for (schema, report) in reports.into_iter().filter_map(|(name, it)| Some((name, it?))) {
            if report.applied.is_empty() {
                println!("the schema {schema} has version {}, nothing to do", report.to);
            } else {
                println!("the schema {schema} now has version {}", report.to);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn analyses_commits(config: &Config) -> bool {
    config.handlers.values().any(|handler| matches!(handler.action, HandlerAction::Git(_)))
}

fn shown(report: &MigrationReport) -> Value {
    json!({"from": report.from, "to": report.to, "applied": report.applied})
}

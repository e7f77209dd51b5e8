//! `queue-worker migrate`: brings the schema up to date.

use std::process::ExitCode;

use anyhow::anyhow;

use super::GlobalOptions;
use crate::config::{Config, Environment};
use crate::ledger;
use crate::supervisor::{postgres_connect, postgres_password};

/// Create or update the schema `queue_worker` in Postgres
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
        if self.json {
            let value = serde_json::json!({
                "from": report.from, "to": report.to, "applied": report.applied,
            });
            println!("{value}");
        } else if report.applied.is_empty() {
            println!("the schema queue_worker has version {}, nothing to do", report.to);
        } else {
            println!("the schema queue_worker now has version {}", report.to);
        }
        Ok(ExitCode::SUCCESS)
    }
}

//! `queue-worker git`: whole histories, and what is known of them.

mod analyse;
mod follow;
mod report;
mod retry;

use std::process::ExitCode;

use super::GlobalOptions;
use crate::config::{Config, Environment};

/// Analyse commits of a repository, and read the results
///
/// Needs a handler of type "git-analysis" in the configuration; see docs/git.md.
#[derive(Debug, clap::Args)]
pub(super) struct Git {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Analyse(analyse::Analyse),
    Report(report::Report),
    Retry(retry::Retry),
}

impl Git {
    pub(super) async fn run(self, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
        let config = Config::load(&global.config, &Environment::of_process())?;
        match self.command {
            Command::Analyse(analyse) => analyse.run(&config).await,
            Command::Report(report) => report.run(&config).await,
            Command::Retry(retry) => retry.run(&config).await,
        }
    }
}

//! `queue-worker migrate`: brings the schema up to date.

use std::process::ExitCode;

use super::GlobalOptions;
use crate::config::{Config, Environment};
use crate::ledger;
use crate::supervisor::{Secrets, ledger_options};

/// Create or update the schema `queue_worker` in Postgres.
///
/// Safe to run at every start and from several machines at once (an advisory lock orders them).
/// Migrations only add: the version before this one runs on the new schema too.
#[derive(Debug, clap::Args)]
pub(super) struct Migrate {
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

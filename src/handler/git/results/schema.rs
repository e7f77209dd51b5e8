//! The schema `queue_worker_git`: created and brought up to date by `queue-worker migrate`.

use sqlx::postgres::PgConnectOptions;

use crate::ledger::{LedgerError, MigrationReport, migrate_schema};

/// Where everything lives.
const SCHEMA: &str = "queue_worker_git";

/// Brings the schema of the results up to date. Safe to run twice and at the same time elsewhere.
///
/// # Errors
/// As with the ledger's.
pub async fn migrate(options: &PgConnectOptions) -> Result<MigrationReport, LedgerError> {
    migrate_schema(options, SCHEMA, sqlx::migrate!("src/handler/git/results/migrations")).await
}

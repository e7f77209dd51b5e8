//! The schema: brought up to date by `migrate`, checked by every worker before it works.
//!
//! Migrations are additive, so that in a rolling deploy version N of the program runs on schema
//! N + 1. Two migrations at once wait for each other on an advisory lock of the database. All of it,
//! the table of migrations too, lives in the schema `queue_worker`.

use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::{error, statements};
use crate::ledger::LedgerError;

/// How long `migrate` waits for a server that does not answer. Its statements have no limit: a
/// migration takes what it takes.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Where the ledger lives.
const SCHEMA: &str = "queue_worker";

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationReport {
    /// The version found; `None` for an empty database.
    pub from: Option<i64>,
    /// The version now there.
    pub to: i64,
    /// The number and description of each migration applied.
    pub applied: Vec<(i64, String)>,
}

fn migrator() -> Migrator {
    sqlx::migrate!("src/ledger/postgres/migrations")
}

/// The version of the schema that this program was written for.
pub fn expected_version() -> i64 {
    migrator().iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Brings the database's schema up to date. Safe to run twice and at the same time elsewhere.
///
/// # Errors
/// As with every call; [`LedgerError::Refused`] if the role may not create the schema.
pub async fn migrate(options: &PgConnectOptions) -> Result<MigrationReport, LedgerError> {
    migrate_schema(options, SCHEMA, migrator()).await
}

/// The same for another schema, which `migrator` fills and whose table `migrations` notes how far.
pub async fn migrate_schema(
    options: &PgConnectOptions,
    schema: &'static str,
    mut migrator: Migrator,
) -> Result<MigrationReport, LedgerError> {
    migrator.dangerous_set_table_name(format!("{schema}.migrations"));
    // A newer program may have been here; `judge` decides whether that is too new.
    migrator.set_ignore_missing(true);
    let address = error::address(options);
    let failed = |error: &sqlx::Error| error::ledger_error(&address, "migrate", error);
    let connecting = options.clone().application_name("queue-worker migrate");
    let mut connection = tokio::time::timeout(CONNECT_LIMIT, connecting.connect())
        .await
        .map_err(|_| LedgerError::Unavailable {
            address: address.clone(),
            message: format!("no connection within {CONNECT_LIMIT:?}"),
        })?
        .map_err(|error| failed(&error))?;
    let exists: bool = sqlx::query_scalar("SELECT to_regnamespace($1) IS NOT NULL")
        .bind(schema)
        .fetch_one(&mut connection)
        .await
        .map_err(|error| failed(&error))?;
    if !exists {
        // Only then: even IF NOT EXISTS asks for the right to create one.
        migrator.create_schema(schema);
    }
    let from = if exists {
        applied_version(&mut connection, schema).await.map_err(|error| failed(&error))?
    } else {
        None
    };
    migrator.run(&mut connection).await.map_err(|error| match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => failed(&error),
        other => LedgerError::Schema { address: address.clone(), message: other.to_string() },
    })?;
    let to = applied_version(&mut connection, schema).await.map_err(|error| failed(&error))?;
    let to = to.unwrap_or(0);
    let applied = migrator
        .iter()
        .filter(|migration| from.is_none_or(|from| migration.version > from))
        .map(|migration| (migration.version, migration.description.to_string()))
        .collect();
    Ok(MigrationReport { from, to, applied })
}

/// The newest applied version; `None` if there is not even the table of migrations.
async fn applied_version(
    connection: &mut PgConnection,
    schema: &'static str,
) -> Result<Option<i64>, sqlx::Error> {
    let exists: bool = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
        .bind(format!("{schema}.migrations"))
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        return Ok(None);
    }
    if schema == SCHEMA {
        return sqlx::query_scalar(statements::SCHEMA_VERSION).fetch_one(connection).await;
    }
    let version = format!("SELECT max(version) FROM {schema}.migrations WHERE success");
    sqlx::query_scalar(sqlx::AssertSqlSafe(version)).fetch_one(connection).await
}

/// Whether the server takes writes: a standby does not.
pub(super) async fn is_read_only(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT current_setting('transaction_read_only')::bool")
        .fetch_one(connection)
        .await
}

/// Reads the version on a connection, and says what is wrong with it, if anything.
pub(super) async fn verdict(connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    Ok(judge(applied_version(connection, SCHEMA).await?, expected_version()))
}

fn judge(found: Option<i64>, expected: i64) -> Option<String> {
    match found {
        None => Some("the schema is missing; run `queue-worker migrate`".to_owned()),
        Some(found) if found < expected => Some(format!(
            "the schema has version {found}, older than {expected}; run `queue-worker migrate`"
        )),
        Some(found) if found > expected + 1 => Some(format!(
            "the schema has version {found}, too new for this program, which knows {expected} and \
             bears {}; deploy a newer one",
            expected + 1
        )),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_version_newer_is_borne() {
        assert_eq!(judge(Some(3), 3), None);
        assert_eq!(judge(Some(4), 3), None);
        assert!(judge(Some(5), 3).unwrap().contains("too new"));
    }

    #[test]
    fn an_old_or_missing_schema_names_the_remedy() {
        assert!(judge(None, 3).unwrap().contains("queue-worker migrate"));
        assert!(judge(Some(2), 3).unwrap().contains("queue-worker migrate"));
    }
}

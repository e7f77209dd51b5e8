//! The Postgres of the ledger: whether what it confirms is there for good, and whether it has room.
//! Here it is asked; `judge` says what the answers mean.

mod judge;

use std::collections::HashMap;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};

use self::judge::{judge, judge_schema};
use super::clocks::Reading;
use super::finding::Findings;
use super::{PATIENCE, one};
use crate::clock::Clock;
use crate::config::{Config, format_duration as show};
use crate::domain::WorkerId;
use crate::ledger::{Ledger as _, LedgerError, PostgresLedger};
use crate::supervisor::{ledger_options, postgres_connect, postgres_password};

const SETTINGS: [&str; 13] = [
    "autovacuum",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "fsync",
    "full_page_writes",
    "idle_session_timeout",
    "max_connections",
    "reserved_connections",
    "server_version",
    "server_version_num",
    "superuser_reserved_connections",
    "synchronous_commit",
    "transaction_timeout",
];

const READ_SETTINGS: &str = "SELECT name, setting FROM pg_settings WHERE name = ANY($1)";

const READ_STATE: &str = "\
    SELECT pg_is_in_recovery(), \
        (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' \
             AND pid <> pg_backend_pid()), \
        (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user), \
        (SELECT datconnlimit FROM pg_database WHERE datname = current_database())";

const READ_CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// What a server says of itself, to a session without settings of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Facts {
    /// As pg_settings has them: times in milliseconds.
    settings: HashMap<String, String>,
    in_recovery: bool,
    /// Sessions of clients, ours not counted.
    sessions: i64,
    /// Of the role and of the database; negative for none.
    limits: [Option<i32>; 2],
}

impl Facts {
    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.setting(name)?.parse().ok()
    }
}

/// Looks at the Postgres of the configuration. Also reads its clock.
pub(super) async fn look(config: &Config) -> (Vec<Findings>, Option<Reading>) {
    const CHECK: &str = "postgres.reach";
    let mut findings = Findings::about("postgres");
    let asked = tokio::time::timeout(PATIENCE, ask(config)).await;
    let answer = asked.unwrap_or_else(|_| Err(format!("no answer within {}", show(PATIENCE))));
    let (address, answer) = match (postgres_connect(&config.postgres), answer) {
        (Ok(options), answer) => (address(&options), answer),
        (Err(error), _) => ("postgres.url".to_owned(), Err(error.to_string())),
    };
    findings.set_about(format!("postgres {address}"));
    match answer {
        Ok((facts, schema, reading)) => {
            findings.ok(CHECK, "answers");
            judge(&mut findings, &facts, config);
            judge_schema(&mut findings, schema);
            (one(findings), reading)
        }
        Err(error) => {
            findings.error(
                CHECK,
                error,
                "without it no task is pulled",
                "start it, or mend the [postgres] section; queue-worker check-config shows what is \
                 read",
            );
            (one(findings), None)
        }
    }
}

fn address(options: &PgConnectOptions) -> String {
    let port = options.get_port();
    match options.get_socket() {
        Some(socket) => format!("{}:{port}", socket.display()),
        None => format!("{}:{port}", options.get_host()),
    }
}

/// The facts, what the ledger says of the schema, and the time.
type Answer = (Facts, Result<(), LedgerError>, Option<Reading>);

async fn ask(config: &Config) -> Result<Answer, String> {
    let failed = |error: sqlx::Error| error.to_string();
    let mut options = postgres_connect(&config.postgres).map_err(failed)?;
    if let Some(password) = postgres_password(&config.postgres).read()? {
        options = options.password(&password);
    }
    let options = options.application_name("queue-worker doctor").disable_statement_logging();
    let mut connection = options.connect().await.map_err(failed)?;
    let facts = read(&mut connection).await.map_err(failed)?;
    let reading = time(&mut connection).await.ok();
    let _ = connection.close().await;
    let ledger = ledger_options(config, WorkerId::random()).map_err(failed)?;
    let schema = PostgresLedger::new(ledger).check().await;
    Ok((facts, schema, reading))
}

async fn read(connection: &mut PgConnection) -> Result<Facts, sqlx::Error> {
    let rows = sqlx::query(READ_SETTINGS).bind(&SETTINGS[..]).fetch_all(&mut *connection).await?;
    let mut settings = HashMap::new();
    for row in rows {
        settings.insert(row.try_get(0)?, row.try_get(1)?);
    }
    let row = sqlx::query(READ_STATE).fetch_one(connection).await?;
    Ok(Facts {
        settings,
        in_recovery: row.try_get(0)?,
        sessions: row.try_get(1)?,
        limits: [row.try_get(2)?, row.try_get(3)?],
    })
}

async fn time(connection: &mut PgConnection) -> Result<Reading, sqlx::Error> {
    // The first round trip parses it.
    sqlx::query(READ_CLOCK).fetch_one(&mut *connection).await?;
    let before = Clock::System.wall_ms();
    let row = sqlx::query(READ_CLOCK).fetch_one(connection).await?;
    let after = Clock::System.wall_ms();
    Ok(Reading { before, theirs: row.try_get(0)?, after })
}

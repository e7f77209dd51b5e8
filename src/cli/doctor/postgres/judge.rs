//! What a setting of the server means for a ledger. Pure.

use std::time::Duration;

use super::super::finding::Findings;
use super::super::postgres_sessions;
use super::Facts;
use crate::config::{Config, HandlerAction, format_duration as show};
use crate::ledger::LedgerError;

/// The oldest version with what the ledger needs, as server_version_num has it.
const OLDEST: i64 = 140_000;

/// What the server has wrong, for this configuration.
pub(super) fn judge(findings: &mut Findings, facts: &Facts, config: &Config) {
    version(findings, facts);
    writable(findings, facts);
    durability(findings, facts);
    connections(findings, facts, config);
    timeouts(findings, facts, config);
    behaviour(findings, facts);
}

fn version(findings: &mut Findings, facts: &Facts) {
    const CHECK: &str = "postgres.version";
    let version = facts.setting("server_version").unwrap_or("of an unknown version");
    if facts.number("server_version_num").is_some_and(|number| number < OLDEST) {
        findings.error(
            CHECK,
            format!("PostgreSQL {version}"),
            "it lacks what the ledger uses, and gets no more security updates",
            "upgrade to 14 or later",
        );
    } else {
        findings.ok(CHECK, format!("PostgreSQL {version}"));
    }
}

fn writable(findings: &mut Findings, facts: &Facts) {
    const CHECK: &str = "postgres.writable";
    if facts.in_recovery {
        findings.error(
            CHECK,
            "is in recovery: a standby",
            "it takes no writes, so nothing can be claimed",
            "name the primary in postgres.url",
        );
    } else if facts.setting("default_transaction_read_only") == Some("on") {
        findings.error(
            CHECK,
            "default_transaction_read_only is on",
            "nothing can be claimed",
            "set it off for this role, database or server",
        );
    } else {
        findings.ok(CHECK, "takes writes");
    }
}

fn durability(findings: &mut Findings, facts: &Facts) {
    const SYNC: &str = "postgres.fsync";
    const COMMIT: &str = "postgres.commit";
    const PAGES: &str = "postgres.full_page_writes";
    if facts.setting("fsync") == Some("off") {
        findings.error(
            SYNC,
            "fsync is off",
            "a power cut can corrupt the whole database, and what was done is done again",
            "set fsync = on in postgresql.conf and reload",
        );
    } else {
        findings.ok(SYNC, "fsync is on");
    }
    match facts.setting("synchronous_commit") {
        Some("off") => findings.error(
            COMMIT,
            "synchronous_commit is off",
            "a crash of the server loses commits that it has confirmed: an entry is acknowledged, \
             and its task is neither done nor waiting",
            "set synchronous_commit = on for this role, database or server",
        ),
        other => findings
            .ok(COMMIT, format!("synchronous_commit is {}", other.unwrap_or("at its default"))),
    }
    if facts.setting("full_page_writes") == Some("off") {
        findings.error(
            PAGES,
            "full_page_writes is off",
            "a power cut in the middle of a write leaves a torn page that cannot be repaired, unless \
             the file system excludes that",
            "set full_page_writes = on in postgresql.conf and reload",
        );
    } else {
        findings.ok(PAGES, "full_page_writes is on");
    }
}

fn connections(findings: &mut Findings, facts: &Facts, config: &Config) {
    const CHECK: &str = "postgres.connections";
    let Some(most) = facts.number("max_connections") else { return };
    let reserved = ["superuser_reserved_connections", "reserved_connections"]
        .into_iter()
        .filter_map(|name| facts.number(name))
        .sum::<i64>();
    let limits = facts.limits.into_iter().flatten().filter(|limit| *limit >= 0).map(i64::from);
    let room = limits.fold(most - reserved, i64::min);
    let (needed, sessions) = (i64::from(postgres_sessions(config)), facts.sessions);
    let found = format!("a worker takes up to {needed} of {room}, {sessions} are in use");
    if needed > room {
        findings.error(
            CHECK,
            found,
            "under load connections are refused, and leases are not renewed",
            "lower postgres.pool_size, or raise max_connections and the limits of role and database",
        );
    } else if sessions + needed > room {
        findings.warning(
            CHECK,
            found,
            "one more worker, or this one under load, may be refused",
            "lower postgres.pool_size, or raise max_connections",
        );
    } else {
        findings.ok(CHECK, found);
    }
}

fn timeouts(findings: &mut Findings, facts: &Facts, config: &Config) {
    const TRANSACTION: &str = "postgres.transaction_timeout";
    const SESSION: &str = "postgres.idle_session";
    let ms = |name: &str| {
        let number = facts.number(name).and_then(|number| u64::try_from(number).ok());
        number.filter(|ms| *ms > 0).map(Duration::from_millis)
    };
    let effects = config.handlers.values();
    let effects = effects.filter(|handler| matches!(handler.action, HandlerAction::Sql(_)));
    let longest = effects.map(|handler| handler.common.timeout).max().unwrap_or_default();
    let longest = longest + config.postgres.call_timeout;
    match ms("transaction_timeout") {
        Some(limit) if limit < longest => findings.error(
            TRANSACTION,
            format!(
                "transaction_timeout is {}, and a transaction may take {}",
                show(limit),
                show(longest)
            ),
            "the server ends the session of a task that is within its own time limit, and with it \
             those of its group",
            format!(
                "ALTER ROLE … SET transaction_timeout = '{}ms' or 0, or lower the handlers' timeout",
                longest.as_millis()
            ),
        ),
        Some(limit) => findings.ok(TRANSACTION, format!("transaction_timeout is {}", show(limit))),
        None => findings.ok(TRANSACTION, "there is no transaction_timeout"),
    }
    match ms("idle_session_timeout") {
        Some(limit) => findings.note(
            SESSION,
            format!("idle_session_timeout is {}", show(limit)),
            "idle connections are closed and made again, and the first call after a pause fails once",
            "ALTER ROLE … SET idle_session_timeout = 0",
        ),
        None => findings.ok(SESSION, "there is no idle_session_timeout"),
    }
}

fn behaviour(findings: &mut Findings, facts: &Facts) {
    const ISOLATION: &str = "postgres.isolation";
    const VACUUM: &str = "postgres.autovacuum";
    match facts.setting("default_transaction_isolation") {
        Some("read committed") | None => findings.ok(ISOLATION, "read committed"),
        Some(other) => findings.warning(
            ISOLATION,
            format!("default_transaction_isolation is {other}"),
            "groups of tasks fail with serialization errors and are tried again one by one",
            "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
        ),
    }
    if facts.setting("autovacuum") == Some("off") {
        findings.warning(
            VACUUM,
            "autovacuum is off",
            "rows of tasks change often: the table grows and gets slow, and transaction ids run out",
            "set autovacuum = on in postgresql.conf and reload",
        );
    } else {
        findings.ok(VACUUM, "autovacuum is on");
    }
}

/// What the ledger says of its schema.
pub(super) fn judge_schema(findings: &mut Findings, schema: Result<(), LedgerError>) {
    const CHECK: &str = "postgres.schema";
    match schema {
        Ok(()) => findings.ok(CHECK, "the schema is the one that this program knows"),
        // A standby: told already.
        Err(LedgerError::Unavailable { .. }) => {}
        Err(error) => findings.error(
            CHECK,
            error.to_string(),
            "no worker starts to pull on it",
            "run queue-worker migrate, as a role that may",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::super::finding::Level;
    use super::*;
    use crate::config::Environment;

    fn config(more: &str) -> Config {
        let text = format!("[[queue]]\nname = \"q\"\n{more}");
        Config::parse(&text, Path::new("f"), &Environment::default()).expect("a good file")
    }

    fn facts(settings: &[(&str, &str)]) -> Facts {
        let good = [
            ("server_version", "15.9"),
            ("server_version_num", "150009"),
            ("fsync", "on"),
            ("synchronous_commit", "on"),
            ("full_page_writes", "on"),
            ("max_connections", "100"),
            ("superuser_reserved_connections", "3"),
            ("default_transaction_isolation", "read committed"),
            ("default_transaction_read_only", "off"),
            ("autovacuum", "on"),
            ("idle_session_timeout", "0"),
        ];
        let all = good.iter().chain(settings);
        let settings = all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Facts { settings, in_recovery: false, sessions: 10, limits: [Some(-1), Some(-1)] }
    }

    fn judged(facts: &Facts, config: &Config) -> Findings {
        let mut findings = Findings::about("postgres");
        judge(&mut findings, facts, config);
        findings
    }

    #[test]
    fn a_good_server_has_no_trouble() {
        assert_eq!(judged(&facts(&[]), &config("")).trouble(), []);
    }

    #[test]
    fn each_wrong_setting_is_found_and_nothing_else() {
        type Settings = &'static [(&'static str, &'static str)];
        let wrong: [(&str, Level, Settings); 9] = [
            ("postgres.version", Level::Error, &[("server_version_num", "130012")]),
            ("postgres.writable", Level::Error, &[("default_transaction_read_only", "on")]),
            ("postgres.fsync", Level::Error, &[("fsync", "off")]),
            ("postgres.commit", Level::Error, &[("synchronous_commit", "off")]),
            ("postgres.full_page_writes", Level::Error, &[("full_page_writes", "off")]),
            ("postgres.connections", Level::Error, &[("max_connections", "19")]),
            ("postgres.connections", Level::Warning, &[("max_connections", "29")]),
            (
                "postgres.isolation",
                Level::Warning,
                &[("default_transaction_isolation", "serializable")],
            ),
            ("postgres.autovacuum", Level::Warning, &[("autovacuum", "off")]),
        ];
        for (check, level, settings) in wrong {
            let findings = judged(&facts(settings), &config(""));
            assert_eq!(findings.trouble(), [(check, level)], "{findings:#?}");
        }
        let idle = judged(&facts(&[("idle_session_timeout", "1000")]), &config(""));
        assert_eq!(idle.level("postgres.idle_session"), Some(Level::Note));
    }

    #[test]
    fn a_standby_and_limits_of_role_and_database_are_found() {
        let standby = Facts { in_recovery: true, ..facts(&[]) };
        assert_eq!(judged(&standby, &config("")).trouble(), [("postgres.writable", Level::Error)]);
        for limits in [[Some(16), Some(-1)], [None, Some(16)]] {
            let facts = Facts { limits, ..facts(&[]) };
            let findings = judged(&facts, &config(""));
            assert_eq!(findings.trouble(), [("postgres.connections", Level::Error)]);
        }
    }

    #[test]
    fn a_transaction_timeout_counts_against_the_longest_effect() {
        let sql = "[handler.k]\ntype = \"sql\"\nstatement = \"SELECT 1\"\ntimeout = \"2m\"\n";
        let level = |ms, config: &Config| {
            judged(&facts(&[("transaction_timeout", ms)]), config)
                .level("postgres.transaction_timeout")
        };
        assert_eq!(level("124999", &config(sql)), Some(Level::Error));
        assert_eq!(level("125000", &config(sql)), Some(Level::Ok));
        assert_eq!(level("0", &config(sql)), Some(Level::Ok));
        assert_eq!(level("4999", &config("")), Some(Level::Error));
    }
}

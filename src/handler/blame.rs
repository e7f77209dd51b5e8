//! Whose fault an error of Postgres is: the task's, or the database's and the connection's.
//!
//! Only what Postgres itself says about a statement is the task's own failure. Everything that the
//! same statement might not meet at another time or on another server is the database's.

use sqlx::postgres::PgDatabaseError;

use crate::domain::Failure;
use crate::ledger::EffectError;

/// A statement that raises this (`RAISE … USING ERRCODE = 'QW065'`) fails its task for good.
pub(super) const FOR_GOOD: &str = "QW065";

/// The statement ran into `statement_timeout`, or somebody cancelled it.
const QUERY_CANCELED: &str = "57014";

/// SQLSTATE classes and codes of PostgreSQL's Appendix A that say nothing about the task:
/// connection, transaction rollback (deadlock, serialization), resources, shutdown, system error,
/// damaged data; a lock timeout, a server that is read-only, an idle timeout, a transaction that had
/// failed before.
const NOBODYS: [&str; 12] =
    ["08", "40", "53", "57", "58", "XX001", "XX002", "55P03", "25006", "25P02", "25P03", "26000"];

/// Codes of these classes that a statement meets again and again all the same: a limit of its own
/// (`temp_file_limit`), a file that it names.
const STATEMENTS: [&str; 3] = ["53400", "58P01", "58P02"];

/// Turns an error into the failure of the task if it is the statement's.
pub(super) fn blame(error: sqlx::Error) -> EffectError {
    let told = error.as_database_error().and_then(|told| told.try_downcast_ref());
    match told.and_then(of_task) {
        Some(failure) => EffectError::Failed(failure),
        None => EffectError::Database(error),
    }
}

fn of_task(told: &PgDatabaseError) -> Option<Failure> {
    let mut message = told.message().to_owned();
    if let Some(detail) = told.detail() {
        message = format!("{message}: {detail}");
    }
    judge(told.code(), message)
}

fn judge(code: &str, message: String) -> Option<Failure> {
    if code == QUERY_CANCELED {
        return Some(Failure::retry(format!("timed out: {message}")).with_status("timeout"));
    }
    let is_nobodys = NOBODYS.iter().any(|prefix| code.starts_with(prefix));
    if is_nobodys && !STATEMENTS.contains(&code) {
        return None;
    }
    let failure =
        if code == FOR_GOOD { Failure::for_good(message) } else { Failure::retry(message) };
    Some(failure.with_status(format!("sqlstate {code}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::FailureClass;

    #[test]
    fn statements_are_blamed_for_what_they_do() {
        for code in [
            "22012", "23505", "42P01", "P0001", "21000", "2F005", "25001", "55000", "XX000",
            "53400", "58P01",
        ] {
            let failure = judge(code, "why".into()).expect(code);
            assert_eq!(failure.class, FailureClass::Retry { after: None });
            assert_eq!(failure.status, Some(format!("sqlstate {code}")));
        }
        assert_eq!(judge("QW065", String::new()).unwrap().class, FailureClass::ForGood);
        assert_eq!(judge("57014", String::new()).unwrap().status.as_deref(), Some("timeout"));
    }

    #[test]
    fn nobody_is_blamed_for_the_database() {
        for code in
            ["08006", "40001", "40P01", "53100", "57P01", "58030", "55P03", "25006", "XX001"]
        {
            assert_eq!(judge(code, String::new()), None, "{code}");
        }
    }
}

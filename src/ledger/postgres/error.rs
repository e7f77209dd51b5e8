//! What went wrong with Postgres, sorted by who can mend it.
//!
//! The SQLSTATE decides. Addresses never carry credentials. What the server says is kept, since it
//! names the table or the setting that is at fault.

use sqlx::postgres::PgConnectOptions;

use crate::ledger::LedgerError;

/// SQLSTATE of a statement that was cancelled, most often by `statement_timeout`.
pub(super) const QUERY_CANCELED: &str = "57014";

/// SQLSTATE of a lock that was not had within `lock_timeout`.
pub(super) const LOCK_NOT_AVAILABLE: &str = "55P03";

/// SQLSTATE of a write on a server that only reads: a standby, most often.
pub(super) const READ_ONLY: &str = "25006";

/// The class of what an operator does: a shutdown, a session ended, a server that starts.
pub(super) const SHUTDOWN: &str = "57";

/// `host:port/database` or `socket/database`.
pub(super) fn address(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{}:{}/{database}", socket.display(), options.get_port()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

/// The SQLSTATE, where the server gave one.
pub(super) fn sqlstate(error: &sqlx::Error) -> Option<String> {
    error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .map(std::borrow::Cow::into_owned)
}

/// Who has to act on an SQLSTATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// The server goes down, is full, or is a standby: the connection is of no use.
    Server,
    /// Somebody else was in the way: the same again may work.
    Contention,
    /// The role or its password.
    Login,
    /// The database or the schema is not there, or is an old one.
    Schema,
    /// The statement itself.
    Statement,
}

/// Sorts an SQLSTATE (PostgreSQL documentation, appendix A).
pub(super) fn blame(code: &str) -> Blame {
    match code {
        QUERY_CANCELED | LOCK_NOT_AVAILABLE | "25P03" => Blame::Contention,
        READ_ONLY => Blame::Server,
        "3D000" | "3F000" | "42P01" | "42703" | "42704" | "42883" => Blame::Schema,
        _ => match code.get(..2).unwrap_or("") {
            "28" => Blame::Login,
            "40" => Blame::Contention,
            "08" | "53" | SHUTDOWN | "58" | "XX" => Blame::Server,
            _ => Blame::Statement,
        },
    }
}

/// Makes the ledger's error of the client's.
pub(super) fn ledger_error(
    address: &str,
    action: &'static str,
    error: &sqlx::Error,
) -> LedgerError {
    let address = address.to_owned();
    let Some(database) = error.as_database_error() else {
        return LedgerError::Unavailable { address, message: format!("{action}: {error}") };
    };
    let code = database.code().unwrap_or_default();
    let message = format!("{} (SQLSTATE {code})", database.message());
    match blame(&code) {
        Blame::Server => LedgerError::Unavailable { address, message },
        Blame::Contention => LedgerError::Conflict { address, action, message },
        Blame::Login => LedgerError::LoginRefused { address, message },
        Blame::Schema if code == "3D000" => {
            LedgerError::Schema { address, message: format!("{message}; create the database") }
        }
        Blame::Schema => LedgerError::Schema {
            address,
            message: format!("{message}; run `queue-worker migrate`"),
        },
        Blame::Statement => LedgerError::Refused { address, action, message },
    }
}

/// Text that Postgres takes: NUL, which it refuses in `text`, is written as `\0`.
pub(super) fn text(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\\0").into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_sorted_by_who_can_act() {
        for (code, expected) in [
            ("57P01", Blame::Server),
            ("53300", Blame::Server),
            ("25006", Blame::Server),
            ("40P01", Blame::Contention),
            ("40001", Blame::Contention),
            ("55P03", Blame::Contention),
            ("28P01", Blame::Login),
            ("42P01", Blame::Schema),
            ("3D000", Blame::Schema),
            ("23505", Blame::Statement),
            ("", Blame::Statement),
        ] {
            assert_eq!(blame(code), expected, "{code}");
        }
    }

    #[test]
    fn the_address_has_no_password() {
        let options = "postgres://me:secret@db.example:5433/tasks".parse().unwrap();
        assert_eq!(address(&options), "db.example:5433/tasks");
    }

    #[test]
    fn nul_is_escaped() {
        assert_eq!(text("a\0b"), "a\\0b");
    }
}

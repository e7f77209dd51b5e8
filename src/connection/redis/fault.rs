//! What an error of the Redis client means: for the caller, and for the connection.
//!
//! Pure. A server that is loading or has become a replica answers politely and is useless all the
//! same, so its connection is given up like a broken one: the next may lead to the right server.

use redis::{ErrorKind, RedisError as ClientError};

use super::super::RedisError;

/// An error, and whether the connection that it came from is still good.
pub(super) struct Fault {
    pub(super) error: RedisError,
    pub(super) broken: bool,
}

impl Fault {
    /// Whether it was met on the way to the server or back, so that nobody knows what the server did.
    pub(super) fn is_of_the_way(error: &ClientError) -> bool {
        matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse)
    }

    /// Judges `error`, which answered `command`.
    pub(super) fn judge(error: &ClientError, address: &str, command: &'static str) -> Self {
        let address = address.to_owned();
        let message = error.to_string();
        let codes = codes(error);
        let says = |code: &&str| codes.iter().any(|found| found == code);
        let unavailable = |address, message| RedisError::Unavailable { address, message };
        if Self::is_of_the_way(error) {
            return Self { error: unavailable(address, message), broken: true };
        }
        if let Some(remedy) = login_remedy(error, says) {
            return Self {
                error: RedisError::Misconfigured { address, message: remedy },
                broken: true,
            };
        }
        // Redis 6.2 wraps what a script met in an error of its own.
        let in_script = message.contains("READONLY You can't write against a read only");
        if in_script || ["READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN"].iter().any(says) {
            return Self { error: unavailable(address, message), broken: true };
        }
        if ["BUSY", "TRYAGAIN"].iter().any(says) || message.contains("max number of clients") {
            return Self { error: unavailable(address, message), broken: false };
        }
        let broken = error.is_unrecoverable_error();
        Self { error: RedisError::Refused { address, command, message }, broken }
    }
}

/// The codes of the server's errors in it; a pipeline may have met several.
fn codes(error: &ClientError) -> Vec<String> {
    let errors = error.clone().into_server_errors();
    errors.iter().flat_map(|all| all.iter()).map(|(_, one)| one.code().to_owned()).collect()
}

fn login_remedy(error: &ClientError, says: impl Fn(&&str) -> bool) -> Option<String> {
    if says(&"WRONGPASS") || error.kind() == ErrorKind::AuthenticationFailed {
        return Some(
            "refused the username or password: check `redis.username` and the file named by \
             `redis.password_file`"
                .into(),
        );
    }
    if says(&"NOAUTH") {
        return Some("asks for a password: set `redis.password_file`".into());
    }
    (error.kind() == ErrorKind::RESP3NotSupported)
        .then(|| "is too old: Redis 6.2 or later (or Valkey) is needed".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(code: &str, detail: &str) -> Fault {
        let error = redis::make_extension_error(code.into(), Some(detail.into()));
        Fault::judge(&error, "h:1", "XADD")
    }

    #[test]
    fn codes_decide() {
        assert!(judged("READONLY", "You can't write against a read only replica.").broken);
        assert!(judged("LOADING", "Redis is loading").error.is_transient());
        let busy = judged("ERR", "max number of clients reached");
        assert!(busy.error.is_transient() && !busy.broken);
        let refused = judged("NOGROUP", "No such key 'qw:{LOADING}:tasks'");
        assert!(matches!(refused.error, RedisError::Refused { .. }) && !refused.broken);
        let login = judged("WRONGPASS", "invalid username-password pair");
        assert!(login.error.to_string().contains("redis.password_file"));
    }
}

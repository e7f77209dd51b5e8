//! The rules about the two servers: what their clients take, and one password for each.

use redis::{ConnectionAddr, IntoConnectionInfo};
use sqlx::postgres::PgConnectOptions;

use super::Rules;
use crate::config::duration::format_duration as show;
use crate::config::server_url::ServerUrl;
use crate::config::tree::Config;
use crate::domain::SentinelUrl;

/// What the Redis client takes.
const REDIS_SCHEMES: [&str; 9] = [
    "redis",
    "rediss",
    "redis+unix",
    "unix",
    "valkey",
    "valkeys",
    "valkey+unix",
    "redis+sentinel",
    "rediss+sentinel",
];

/// Whether this build follows Sentinels.
const WITH_SENTINEL: bool = cfg!(feature = "sentinel");

/// What is wrong with a URL of Sentinels, and the remedy.
fn sentinel_problem(url: &ServerUrl, supported: bool) -> Option<(&'static str, &'static str)> {
    if !supported {
        let message = "names sentinels, and this program was built without the feature `sentinel`";
        return Some((message, "build it with `cargo build --features sentinel`"));
    }
    let remedy = "write redis+sentinel://host:port,host:port/name, and /database where it is not 0";
    SentinelUrl::parse(&url.without_password()).err().map(|message| (message, remedy))
}

impl Rules<'_> {
    pub(super) fn redis(&mut self, config: &Config) {
        let redis = &config.redis;
        self.redis_url("redis.url", &redis.url);
        let url = Some(&redis.url);
        self.one_password("redis", url, redis.password.is_some(), redis.password_file.is_some());
        self.redis_client(&redis.url);
    }

    /// What the client itself does not take must not wait for the start of a worker.
    fn redis_client(&mut self, url: &ServerUrl) {
        let known = self.findings.problems.iter().any(|problem| problem.key == "redis.url");
        if known || SentinelUrl::is_scheme(url.scheme()) {
            return;
        }
        let remedy = "write redis://host:port/database, rediss:// for TLS, or redis+unix:///path";
        let text = url.without_password();
        match text.as_str().into_connection_info().map(|info| info.addr().clone()) {
            Ok(ConnectionAddr::TcpTls { insecure: true, .. }) => {
                let message = "asks for #insecure, and TLS is always verified here";
                self.broken(&["redis.url"], message, remedy);
            }
            Ok(_) => {}
            Err(error) => {
                self.broken(&["redis.url"], format!("cannot be used: {error}"), remedy);
            }
        }
    }

    pub(super) fn redis_url(&mut self, key: &str, url: &ServerUrl) {
        self.scheme(key, url, &REDIS_SCHEMES);
        if SentinelUrl::is_scheme(url.scheme()) {
            if let Some((message, remedy)) = sentinel_problem(url, WITH_SENTINEL) {
                self.broken(&[key], message, remedy);
            }
            return;
        }
        if !url.has_host() && !url.scheme().contains("unix") {
            let remedy = "write redis://host:port/database, or redis+unix:///path for a socket";
            self.broken(&[key], "names no host", remedy);
        }
    }

    pub(super) fn postgres(&mut self, config: &Config) {
        let postgres = &config.postgres;
        self.scheme("postgres.url", &postgres.url, &["postgres", "postgresql"]);
        let (given, file) = (postgres.password.is_some(), postgres.password_file.is_some());
        self.one_password("postgres", Some(&postgres.url), given, file);
        if let Err(error) = postgres.url.without_password().as_str().parse::<PgConnectOptions>() {
            let remedy = "write postgres://user@host:port/database";
            self.broken(&["postgres.url"], format!("cannot be used: {error}"), remedy);
        }
        let pool_size = usize::try_from(postgres.pool_size).unwrap_or(usize::MAX);
        self.range("postgres.pool_size", pool_size, 2, 1_000);
        self.range("postgres.committers", postgres.committers, 1, 64);
        if postgres.committers > pool_size {
            self.broken(
                &["postgres.committers", "postgres.pool_size"],
                format!("{} committers share {pool_size} connections", postgres.committers),
                "raise postgres.pool_size, or lower postgres.committers",
            );
        }
        if postgres.lock_timeout > postgres.call_timeout {
            self.broken(
                &["postgres.lock_timeout", "postgres.call_timeout"],
                format!(
                    "the lock timeout {} is longer than the call timeout {}",
                    show(postgres.lock_timeout),
                    show(postgres.call_timeout)
                ),
                "lower postgres.lock_timeout, or raise postgres.call_timeout",
            );
        }
    }

    /// Of several passwords one would win, and nobody would see which. The URLs of lock nodes have
    /// some of their own.
    pub(super) fn one_password(
        &mut self,
        section: &str,
        url: Option<&ServerUrl>,
        is_given: bool,
        has_file: bool,
    ) {
        let file = format!("{section}.password_file");
        if has_file && url.is_some_and(|url| url.password().is_some()) {
            let message = "is set, and the URL has a password too";
            let remedy = "remove the password from the URL";
            self.broken(&[&file, &format!("{section}.url")], message, remedy);
        }
        if has_file && is_given {
            let given = format!("{section}.password");
            let message = format!("is set, and so is {given} in the environment");
            self.broken(&[&file, &given], message, "remove one of the two");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_need_their_feature_and_a_name() {
        let url = |text| ServerUrl::parse(text).expect("a URL");
        let good = url("redis+sentinel://a:1,b:2/main");
        assert_eq!(sentinel_problem(&good, true), None);
        let (message, remedy) = sentinel_problem(&good, false).expect("refused");
        assert!(message.contains("`sentinel`") && remedy.contains("--features sentinel"));
        let (message, _) = sentinel_problem(&url("redis+sentinel://a:1"), true).expect("refused");
        assert!(message.contains("what the sentinels call"), "{message}");
    }
}

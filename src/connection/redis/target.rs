//! Where a Redis is and how to log in: a URL, and credentials that may be given apart from it.
//!
//! A URL of Sentinels leads to the master that they name at each connect.
//!
//! Credentials given apart are taken byte for byte, so any character works; inside a URL they must
//! be percent-encoded. Neither `Debug` nor `Display` nor an error ever shows them.

use std::fmt;
use std::sync::{Arc, Once};
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::super::{PasswordSource, RedisError};
use super::sentinel::Sentinels;
use crate::domain::SentinelUrl;

/// A silent peer is probed after this long, and then this often.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// Between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The kernel gives a connection up when sent bytes stay unacknowledged for this long.
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// The URL of a Redis cannot be used. Does not repeat the URL, which may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the redis url {0}")]
pub struct TargetError(String);

/// A Redis server, with what is needed to log in.
#[derive(Clone)]
pub struct RedisTarget {
    /// With the address of the server, unless Sentinels name it.
    info: ConnectionInfo,
    sentinels: Option<Arc<Sentinels>>,
    address: Arc<str>,
    password: Option<PasswordSource>,
    connect_timeout: Option<Duration>,
}

impl RedisTarget {
    /// Reads `redis://`, `rediss://` (TLS, verified against the system's certificates), `unix:` and,
    /// with the feature `sentinel`, `redis+sentinel://` URLs. `username` and `password`, where given,
    /// replace those of the URL.
    pub fn parse(
        url: &str,
        username: Option<&str>,
        password: Option<&str>,
    ) -> Result<Self, TargetError> {
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        if SentinelUrl::is_scheme(scheme) {
            return Self::of_sentinels(url, username, password);
        }
        let info = url.into_connection_info().map_err(|error| explain(&error))?;
        let address = info.addr().to_string().into();
        Self::with_login(info, address, username, password)
    }

    fn of_sentinels(
        url: &str,
        username: Option<&str>,
        password: Option<&str>,
    ) -> Result<Self, TargetError> {
        let refused = |message: &str| TargetError(message.to_owned());
        let url = SentinelUrl::parse(url).map_err(refused)?;
        // Of the template, everything but the address stays.
        let template = if url.tls { "rediss://localhost" } else { "redis://localhost" };
        let info = template.into_connection_info().map_err(|error| explain(&error))?;
        let settings = info.redis_settings().clone().set_db(url.database.into());
        let address = Sentinels::address(&url).into();
        let username = username.or(url.username.as_deref());
        let password = password.or(url.password());
        let info = info.set_redis_settings(settings);
        let mut target = Self::with_login(info, address, username, password)?;
        target.sentinels = Some(Arc::new(Sentinels::new(&url, &target.info).map_err(refused)?));
        Ok(target)
    }

    fn with_login(
        info: ConnectionInfo,
        address: Arc<str>,
        username: Option<&str>,
        password: Option<&str>,
    ) -> Result<Self, TargetError> {
        if let ConnectionAddr::TcpTls { insecure: true, .. } = info.addr() {
            return Err(TargetError("asks for `#insecure`; TLS is always verified here".into()));
        }
        if let ConnectionAddr::TcpTls { .. } = info.addr() {
            install_tls_provider();
        }
        let mut settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        settings = settings.set_lib_name("queue-worker", env!("CARGO_PKG_VERSION"));
        if let Some(username) = username {
            settings = settings.set_username(username);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL);
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive)
            .set_user_timeout(USER_TIMEOUT);
        Ok(Self {
            info: info.set_redis_settings(settings).set_tcp_settings(tcp),
            sentinels: None,
            address,
            password: None,
            connect_timeout: None,
        })
    }

    /// The same server, but the password is asked for at each connect, so that a secret that is
    /// mended or rotated takes effect by itself.
    #[must_use]
    pub fn with_password_source(mut self, source: PasswordSource) -> Self {
        self.password = Some(source);
        self
    }

    /// The same server, but an attempt to connect may take this long, whatever a call may take.
    #[must_use]
    pub fn with_connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = Some(limit);
        self
    }

    pub(super) fn connect_timeout(&self) -> Option<Duration> {
        self.connect_timeout
    }

    /// Whether Sentinels name another server by now than the one in use.
    pub(super) fn has_moved_from(&self, used: &str) -> bool {
        self.sentinels.as_ref().is_some_and(|all| all.has_moved_from(used))
    }

    /// `host:port`, the path of the socket, or the Sentinels and the name they are asked for.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A client of the server, and its address; Sentinels have half of `limit` to name it.
    pub(super) async fn client(
        &self,
        limit: Duration,
    ) -> Result<(redis::Client, Arc<str>), RedisError> {
        let mut info = self.info.clone();
        let password = match &self.password {
            Some(source) => source.read().map_err(|message| RedisError::Misconfigured {
                address: self.address.to_string(),
                message: format!("cannot be logged in to: {message}"),
            })?,
            None => None,
        };
        if let Some(password) = password {
            let settings = info.redis_settings().clone().set_password(password);
            info = info.set_redis_settings(settings);
        }
        let address = Arc::clone(&self.address);
        let (info, address) = match &self.sentinels {
            Some(sentinels) => {
                let master = sentinels.master(info.redis_settings(), limit / 2).await?;
                let address = master.to_string().into();
                (info.set_addr(master), address)
            }
            None => (info, address),
        };
        let client = redis::Client::open(info).map_err(|error| RedisError::Misconfigured {
            address: address.to_string(),
            message: format!("cannot be used: {error}"),
        })?;
        Ok((client, address))
    }
}

impl fmt::Debug for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisTarget").field(&self.address).finish()
    }
}

impl fmt::Display for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

fn explain(error: &redis::RedisError) -> TargetError {
    TargetError(format!(
        "cannot be read ({}): write redis://HOST:PORT, rediss://HOST:PORT or unix:/PATH, and give \
         the password apart from it in a file",
        error.category()
    ))
}

/// rustls wants one crypto provider per process; whoever installed one first is left alone.
fn install_tls_provider() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_never_shown() {
        let target =
            RedisTarget::parse("redis://u:sesame@10.0.0.1:7000/2", Some("bob"), Some("s3cret#/@"))
                .expect("a good url");
        let shown = format!("{target:?} {target}");
        assert!(!shown.contains("sesame") && !shown.contains("s3cret") && !shown.contains("bob"));
        assert_eq!(target.address(), "10.0.0.1:7000");
        let settings = target.info.redis_settings();
        assert_eq!(settings.password(), Some("s3cret#/@"));
        assert_eq!((settings.username(), settings.db()), (Some("bob"), 2));
    }

    #[test]
    fn sockets_and_tls_are_understood() {
        let socket = RedisTarget::parse("unix:/run/redis/redis.sock", None, None).expect("unix");
        assert_eq!(socket.address(), "/run/redis/redis.sock");
        let tls = RedisTarget::parse("rediss://cache.example:6380", None, None).expect("tls");
        assert_eq!(tls.address(), "cache.example:6380");
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_them() {
        for url in ["", "http://x", "redis://:hunter2@", "redis://h:hunter2@x:notaport", "hunter2"]
        {
            let error = RedisTarget::parse(url, None, None).expect_err(url).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!(RedisTarget::parse("rediss://h:1/#insecure", None, None).is_err());
    }
}

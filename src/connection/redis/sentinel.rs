//! Which server is the master now, by the Sentinels that watch it.
//!
//! All Sentinels are asked at once, and of their answers the one with the highest configuration
//! epoch counts: each failover raises it. The question is over when a majority of all Sentinels has
//! answered, so that one that was cut off cannot lead back to a master of yesterday while the others
//! can be reached; or when the time is up, with whatever was answered until then. Whether the server
//! is a master indeed is checked at the connect. See
//! <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.
//!
//! An old master that lives on takes writes for some seconds after a failover, and all of them are
//! lost; so while a connection is used the Sentinels are asked again every [`LOOK_EVERY`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    Value,
};
use tokio::time::Instant;

use super::super::RedisError;
use super::fault::Fault;
use crate::domain::SentinelUrl;

/// How often the Sentinels are asked whether the master is still the same.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long they have for that answer; nobody waits for it.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// The Sentinels of one master, and what they said last.
pub(super) struct Sentinels {
    panel: Arc<Panel>,
    look: Mutex<Look>,
}

/// Whom to ask, and for what.
struct Panel {
    list: Vec<ConnectionInfo>,
    name: String,
    address: String,
}

#[derive(Default)]
struct Look {
    master: Option<ConnectionAddr>,
    login: RedisConnectionInfo,
    due: Option<Instant>,
    /// Goes on whenever somebody asks for a connection.
    under_way: Option<BoxFuture<'static, Result<Verdict, RedisError>>>,
}

/// What the Sentinels say together.
struct Verdict {
    master: ConnectionAddr,
    /// Whether a majority of them has spoken.
    sound: bool,
}

/// What one Sentinel says.
struct Opinion {
    master: ConnectionAddr,
    epoch: u64,
}

impl Sentinels {
    /// What the master is called in errors: its name, and the Sentinels.
    pub(super) fn address(url: &SentinelUrl) -> String {
        let list: Vec<String> =
            url.sentinels.iter().map(|(host, port)| show(host, *port)).collect();
        format!("{} by the sentinels {}", url.name, list.join(", "))
    }

    /// Those of `url`; they speak TLS if the master in `template` does.
    #[expect(clippy::unnecessary_wraps, reason = "a program without the feature refuses here")]
    pub(super) fn new(url: &SentinelUrl, template: &ConnectionInfo) -> Result<Self, &'static str> {
        let login = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP2)
            .set_skip_set_lib_name();
        let base = template.clone().set_redis_settings(login);
        let at = |(host, port): &(String, u16)| {
            let address = addressed(template.addr(), host.clone(), *port);
            base.clone().set_addr(address)
        };
        let panel = Panel {
            list: url.sentinels.iter().map(at).collect(),
            name: url.name.clone(),
            address: Self::address(url),
        };
        Ok(Self { panel: Arc::new(panel), look: Mutex::default() })
    }

    /// Where the master is, told within `limit`. A Sentinel that wants a password is given that of
    /// the master, in `login`.
    pub(super) async fn master(
        &self,
        login: &RedisConnectionInfo,
        limit: Duration,
    ) -> Result<ConnectionAddr, RedisError> {
        let verdict = self.panel.judge(login, limit).await?;
        let mut look = self.look();
        look.login = login.clone();
        look.due = Some(Instant::now() + LOOK_EVERY);
        self.note(&mut look, verdict.master.clone());
        Ok(verdict.master)
    }

    /// Whether a majority has named another master than `used`. Asks them now and then, and never
    /// waits for an answer.
    pub(super) fn has_moved_from(&self, used: &str) -> bool {
        let mut look = self.look();
        if look.under_way.is_none() && look.due.is_some_and(|due| Instant::now() >= due) {
            let (panel, login) = (Arc::clone(&self.panel), look.login.clone());
            look.under_way = Some(Box::pin(async move { panel.judge(&login, LOOK_LIMIT).await }));
        }
        if let Some(answer) = look.under_way.as_mut().and_then(FutureExt::now_or_never) {
            look.under_way = None;
            look.due = Some(Instant::now() + LOOK_EVERY);
            if let Ok(Verdict { master, sound: true }) = answer {
                self.note(&mut look, master);
            }
        }
        look.master.as_ref().is_some_and(|master| master.to_string() != used)
    }

    fn note(&self, look: &mut Look, master: ConnectionAddr) {
        match &look.master {
            Some(before) if *before != master => tracing::info!(
                "the sentinels name another master for {}: {master} instead of {before}",
                self.panel.name
            ),
            Some(_) => {}
            None => {
                tracing::debug!("the sentinels name the master of {}: {master}", self.panel.name);
            }
        }
        look.master = Some(master);
    }

    fn look(&self) -> MutexGuard<'_, Look> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Panel {
    async fn judge(
        &self,
        login: &RedisConnectionInfo,
        limit: Duration,
    ) -> Result<Verdict, RedisError> {
        let deadline = Instant::now() + limit;
        let mut asked: FuturesUnordered<_> = self
            .list
            .iter()
            .map(|sentinel| tokio::time::timeout_at(deadline, self.ask(sentinel, login)))
            .collect();
        let majority = self.list.len() / 2 + 1;
        let (mut opinions, mut refusal) = (Vec::new(), None);
        while opinions.len() < majority {
            match asked.next().await {
                Some(Ok(Ok(opinion))) => opinions.push(opinion),
                // What somebody has to mend says more than that another one is away.
                Some(Ok(Err(error))) if error.is_transient() && refusal.is_some() => {}
                Some(Ok(Err(error))) => refusal = Some(error),
                Some(Err(_)) => {}
                None => break,
            }
        }
        let sound = opinions.len() >= majority;
        match opinions.into_iter().max_by_key(|opinion| opinion.epoch) {
            Some(Opinion { master, .. }) => Ok(Verdict { master, sound }),
            None => Err(refusal
                .unwrap_or_else(|| unavailable(&self.address, "none of them answered in time"))),
        }
    }

    async fn ask(
        &self,
        sentinel: &ConnectionInfo,
        login: &RedisConnectionInfo,
    ) -> Result<Opinion, RedisError> {
        let at = format!("sentinel {}", sentinel.addr());
        let fault = |error| Fault::judge(&error, &at, "SENTINEL").error;
        let client = redis::Client::open(sentinel.clone()).map_err(fault)?;
        // The whole question has a deadline.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connecting.await.map_err(fault)?;
        let mut answers = self.query(&mut connection).await.map_err(fault)?;
        if answers.first().is_some_and(wants_login)
            && let Some(password) = login.password()
        {
            let mut cmd = redis::cmd("AUTH");
            if let Some(username) = login.username() {
                cmd.arg(username);
            }
            cmd.arg(password);
            let answer = connection.send_packed_command(&cmd).await.and_then(Value::extract_error);
            answer.map_err(fault)?;
            answers = self.query(&mut connection).await.map_err(fault)?;
        }
        let [place, master] = answers.try_into().unwrap_or_default();
        let place = place.extract_error().map_err(fault)?;
        let Some((host, port)) = redis::from_redis_value::<Option<(String, u16)>>(place)
            .map_err(|_| unavailable(&at, "its answer is no address"))?
        else {
            return Err(RedisError::Misconfigured {
                address: at.clone(),
                message: format!(
                    "knows no master named {:?}: correct the name in the URL of the redis",
                    self.name
                ),
            });
        };
        let master_addr = addressed(sentinel.addr(), host, port);
        Ok(Opinion { master: master_addr, epoch: epoch(master).unwrap_or(0) })
    }

    /// The address, and what else is known: the latter may be forbidden by an ACL.
    async fn query(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> redis::RedisResult<Vec<Value>> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("SENTINEL").arg("get-master-addr-by-name").arg(&self.name);
        pipeline.cmd("SENTINEL").arg("master").arg(&self.name);
        connection.req_packed_commands(&pipeline, 0, pipeline.len()).await
    }
}

fn unavailable(address: &str, message: &str) -> RedisError {
    RedisError::Unavailable { address: address.to_owned(), message: message.to_owned() }
}

/// The address, by TLS if `like` is.
fn addressed(like: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    match like {
        ConnectionAddr::TcpTls { .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        }
        _ => ConnectionAddr::Tcp(host, port),
    }
}

fn show(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn wants_login(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "NOAUTH")
}

/// The configuration epoch in an answer to `SENTINEL master`.
fn epoch(answer: Value) -> Option<u64> {
    let fields: std::collections::HashMap<String, String> = redis::from_redis_value(answer).ok()?;
    fields.get("config-epoch")?.parse().ok()
}

//! Which server is the master now, by the Sentinels that watch it.
//!
//! All Sentinels are asked at once, and of their answers the one with the highest configuration
//! epoch counts: each failover raises it. The question is over when a majority of all Sentinels has
//! answered, so that one that was cut off cannot lead back to a master of yesterday while the others
//! can be reached; or when the time is up, with whatever was answered until then. Whether the server
//! is a master indeed is checked at the connect. See
//! <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    Value,
};
use tokio::time::Instant;

use super::super::RedisError;
use super::fault::Fault;
use crate::domain::SentinelUrl;

/// The Sentinels of one master.
pub(super) struct Sentinels {
    list: Vec<ConnectionInfo>,
    name: String,
    address: String,
    /// The master that was told last, for the log.
    told: Mutex<Option<String>>,
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
    pub(super) fn new(url: &SentinelUrl, template: &ConnectionInfo) -> Self {
        let login = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP2)
            .set_skip_set_lib_name();
        let base = template.clone().set_redis_settings(login);
        let at = |(host, port): &(String, u16)| {
            let address = addressed(template.addr(), host.clone(), *port);
            base.clone().set_addr(address)
        };
        Self {
            list: url.sentinels.iter().map(at).collect(),
            name: url.name.clone(),
            address: Self::address(url),
            told: Mutex::new(None),
        }
    }

    /// Where the master is, told within `limit`. A Sentinel that wants a password is given that of
    /// the master, in `login`.
    pub(super) async fn master(
        &self,
        login: &RedisConnectionInfo,
        limit: Duration,
    ) -> Result<ConnectionAddr, RedisError> {
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
        match opinions.into_iter().max_by_key(|opinion| opinion.epoch) {
            Some(opinion) => {
                self.tell(&opinion.master);
                Ok(opinion.master)
            }
            None => Err(refusal.unwrap_or_else(|| {
                self.unavailable(&self.address, "none of them answered in time")
            })),
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
            .map_err(|_| self.unavailable(&at, "its answer is no address"))?
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

    fn tell(&self, master: &ConnectionAddr) {
        let master = master.to_string();
        let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if told.as_ref() != Some(&master) {
            match &*told {
                Some(before) => tracing::info!(
                    "the sentinels name another master for {}: {master} instead of {before}",
                    self.name
                ),
                None => tracing::debug!("the sentinels name the master of {}: {master}", self.name),
            }
            *told = Some(master);
        }
    }

    fn unavailable(&self, address: &str, message: &str) -> RedisError {
        RedisError::Unavailable { address: address.to_owned(), message: message.to_owned() }
    }
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

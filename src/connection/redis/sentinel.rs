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
//! lost; so while a connection is used the Sentinels are asked again every [`LOOK_EVERY`]. Only a
//! majority takes a connection away; a minority's word is good for connecting, as there is no better.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    Value,
};
use tokio::task::JoinSet;
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
    /// What a majority has named last, unless a minority has led elsewhere since.
    named: Option<Opinion>,
    login: RedisConnectionInfo,
    due: Option<Instant>,
    /// One question at most. It goes on by itself: whoever uses the connection may be back only
    /// when its time is long up.
    under_way: JoinSet<Result<Verdict, RedisError>>,
}

/// What the Sentinels say together.
struct Verdict {
    opinion: Opinion,
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
        // A question that began earlier knows less; and after a minority's word the next is due.
        look.under_way = JoinSet::new();
        look.due = Some(Instant::now() + if verdict.sound { LOOK_EVERY } else { Duration::ZERO });
        Ok(look.follow(verdict, &self.panel.name))
    }

    /// Whether a majority has named another master than `used`. Asks them now and then, and never
    /// waits for an answer. Needs a runtime.
    pub(super) fn has_moved_from(&self, used: &str) -> bool {
        let mut look = self.look();
        if let Some(Ok(Ok(Verdict { opinion, sound: true }))) = look.under_way.try_join_next() {
            look.note(opinion, &self.panel.name);
        }
        let now = Instant::now();
        if look.under_way.is_empty() && look.due.is_some_and(|due| now >= due) {
            look.due = Some(now + LOOK_EVERY);
            let (panel, login) = (Arc::clone(&self.panel), look.login.clone());
            look.under_way.spawn(async move { panel.judge(&login, LOOK_LIMIT).await });
        }
        look.has_moved_from(used)
    }

    fn look(&self) -> MutexGuard<'_, Look> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Look {
    /// Where to connect after this verdict. A minority's holds unless a majority has named another
    /// master later, by the epochs; and nobody else has to follow it.
    fn follow(&mut self, verdict: Verdict, name: &str) -> ConnectionAddr {
        let Verdict { opinion, sound } = verdict;
        let master = opinion.master.clone();
        if sound {
            self.note(opinion, name);
            return master;
        }
        match &self.named {
            Some(named) if named.epoch > opinion.epoch => return named.master.clone(),
            Some(named) if named.master != master => {
                tracing::info!(
                    "a minority of the sentinels names another master for {name}: {master} \
                     instead of {}; the others do not answer",
                    named.master
                );
                self.named = None;
            }
            _ => {}
        }
        master
    }

    /// Notes what a majority has said.
    fn note(&mut self, opinion: Opinion, name: &str) {
        let master = &opinion.master;
        match &self.named {
            Some(Opinion { master: before, .. }) if before != master => tracing::info!(
                "the sentinels name another master for {name}: {master} instead of {before}"
            ),
            Some(_) => {}
            None => tracing::debug!("the sentinels name the master of {name}: {master}"),
        }
        self.named = Some(opinion);
    }

    fn has_moved_from(&self, used: &str) -> bool {
        self.named.as_ref().is_some_and(|named| named.master.to_string() != used)
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
            Some(opinion) => Ok(Verdict { opinion, sound }),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(port: u16, epoch: u64, sound: bool) -> Verdict {
        let master = ConnectionAddr::Tcp("h".into(), port);
        Verdict { opinion: Opinion { master, epoch }, sound }
    }

    fn follow(look: &mut Look, port: u16, epoch: u64, sound: bool) -> String {
        look.follow(verdict(port, epoch, sound), "main").to_string()
    }

    #[test]
    fn a_majority_moves_everybody() {
        let mut look = Look::default();
        assert!(!look.has_moved_from("h:1"), "nothing is known yet");
        assert_eq!(follow(&mut look, 1, 5, true), "h:1");
        assert!(!look.has_moved_from("h:1"));
        // The epochs start again where Sentinels are set up anew.
        assert_eq!(follow(&mut look, 2, 0, true), "h:2");
        assert!(look.has_moved_from("h:1") && !look.has_moved_from("h:2"));
    }

    #[test]
    fn a_minority_is_followed_and_moves_nobody() {
        let mut look = Look::default();
        follow(&mut look, 1, 5, true);
        assert_eq!(follow(&mut look, 2, 6, false), "h:2");
        assert!(!look.has_moved_from("h:1") && !look.has_moved_from("h:2"));
        look.note(verdict(2, 6, true).opinion, "main");
        assert!(look.has_moved_from("h:1") && !look.has_moved_from("h:2"));
    }

    #[test]
    fn a_minority_does_not_lead_back() {
        let mut look = Look::default();
        follow(&mut look, 2, 6, true);
        assert_eq!(follow(&mut look, 1, 5, false), "h:2");
        assert!(look.has_moved_from("h:1") && !look.has_moved_from("h:2"));
    }
}

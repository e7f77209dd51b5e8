//! A link: the connection that is there when it is needed.
//!
//! Invariants: making a link needs no server; a call ends by its deadline, connecting included; at
//! most one attempt to connect is under way, and after a failed one the next waits for a jittered
//! pause of at most [`PAUSE_MAX`], during which calls fail at once with what went wrong. A
//! connection that served at least one call and then broke is replaced without a pause.
//!
//! At each connect the server's eviction policy is checked: a Redis that evicts loses tasks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, Value};
use tokio::time::Instant;

use super::super::RedisError;
use super::connection::RedisConnection;
use super::fault::Fault;
use super::script::LuaScript;
use super::target::RedisTarget;

/// The pause after the first failed attempt; it doubles with each further one.
const PAUSE_BASE: Duration = Duration::from_millis(50);
/// The longest pause, so that a link is back within a second of its server.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Bytes gathered for one write to the socket: a group of locks or settlements fits.
const WRITE_BUFFER: usize = 256 * 1024;

struct Attempts {
    failures: u32,
    not_before: Option<Instant>,
    last_error: Option<RedisError>,
}

struct Inner {
    target: RedisTarget,
    address: Arc<str>,
    call_timeout: Duration,
    current: Mutex<Option<Arc<RedisConnection>>>,
    forgiven: AtomicBool,
    attempts: tokio::sync::Mutex<Attempts>,
}

/// A connection to one Redis that is made when needed and replaced when it fails. Clones share it.
#[derive(Clone)]
pub struct RedisLink(Arc<Inner>);

impl RedisLink {
    /// A link to `target` whose calls end within `call_timeout`.
    pub fn new(target: RedisTarget, call_timeout: Duration) -> Self {
        let attempts = Attempts { failures: 0, not_before: None, last_error: None };
        Self(Arc::new(Inner {
            address: target.address().into(),
            target,
            call_timeout,
            current: Mutex::new(None),
            forgiven: AtomicBool::new(false),
            attempts: tokio::sync::Mutex::new(attempts),
        }))
    }

    /// `host:port`, or the path of the socket.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// When a call that starts now has to end.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.0.call_timeout
    }

    /// Sends one command and waits for its answer.
    pub async fn query(&self, cmd: &Cmd, command: &'static str) -> Result<Value, RedisError> {
        let deadline = self.deadline();
        self.connection(deadline).await?.query(cmd, command, deadline).await
    }

    /// Sends the commands in one write; see [`RedisConnection::pipeline`].
    pub async fn pipeline(
        &self,
        pipeline: &Pipeline,
        command: &'static str,
    ) -> Result<Vec<Value>, RedisError> {
        let deadline = self.deadline();
        self.connection(deadline).await?.pipeline(pipeline, command, deadline).await
    }

    /// Runs a script; see [`RedisConnection::script`].
    pub async fn script(
        &self,
        script: &LuaScript,
        fill: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let deadline = self.deadline();
        self.connection(deadline).await?.script(script, deadline, fill).await
    }

    /// As [`RedisLink::pipeline`], and once more if the connection broke under it: for commands
    /// that may be applied twice.
    pub async fn pipeline_twice(
        &self,
        pipeline: &Pipeline,
        command: &'static str,
    ) -> Result<Vec<Value>, RedisError> {
        match self.pipeline(pipeline, command).await {
            Err(RedisError::Unavailable { .. }) => self.pipeline(pipeline, command).await,
            answer => answer,
        }
    }

    /// As [`RedisLink::script`], and once more if the connection broke under it: for scripts that
    /// may be applied twice.
    pub async fn script_twice(
        &self,
        script: &LuaScript,
        fill: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        match self.script(script, &fill).await {
            Err(RedisError::Unavailable { .. }) => self.script(script, &fill).await,
            answer => answer,
        }
    }

    /// The connection, made if there is none, by `deadline`.
    pub async fn connection(&self, deadline: Instant) -> Result<Arc<RedisConnection>, RedisError> {
        if let Some(connection) = self.established() {
            if connection.has_rested() {
                // The connection's own task runs now, and notices a server that has hung up.
                tokio::task::yield_now().await;
            }
            if !connection.is_broken() {
                return Ok(connection);
            }
        }
        let connecting = async {
            let mut attempts = self.0.attempts.lock().await;
            match self.established() {
                Some(connection) => Ok(connection),
                None => self.attempt(&mut attempts).await,
            }
        };
        match tokio::time::timeout_at(deadline, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(self.unavailable("no connection within the deadline")),
        }
    }

    /// The connection that is up now, if any.
    pub fn established(&self) -> Option<Arc<RedisConnection>> {
        self.current().clone().filter(|connection| !connection.is_broken())
    }

    /// Closes the connection, because what is under way on it is no longer awaited. Unless the
    /// server was `at_fault`, the next one is made without a pause.
    pub fn discard(&self, connection: &Arc<RedisConnection>, at_fault: bool) {
        connection.give_up();
        if !at_fault || connection.is_proved() {
            self.0.forgiven.store(true, Ordering::Relaxed);
        }
        self.current().take_if(|current| Arc::ptr_eq(current, connection));
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<Arc<RedisConnection>>> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One attempt, unless the pause after the last one is still on. The attempt is counted before
    /// it is made, so that a caller that gives up half-way counts too.
    async fn attempt(&self, attempts: &mut Attempts) -> Result<Arc<RedisConnection>, RedisError> {
        let forgiven = self.0.forgiven.swap(false, Ordering::Relaxed);
        if self.current().take().is_some_and(|gone| gone.is_proved()) || forgiven {
            attempts.failures = 0;
            attempts.not_before = None;
        }
        let now = Instant::now();
        if attempts.not_before.is_some_and(|not_before| now < not_before) {
            return Err(attempts
                .last_error
                .clone()
                .unwrap_or_else(|| self.unavailable("pausing between attempts to connect")));
        }
        attempts.not_before = Some(now + pause(attempts.failures, rand::random()));
        attempts.failures = attempts.failures.saturating_add(1);
        attempts.last_error = None;
        let connecting = tokio::time::timeout(self.0.call_timeout, self.connect());
        let connected = connecting
            .await
            .unwrap_or_else(|_| Err(self.unavailable("no connection within the deadline")));
        match connected {
            Ok(connection) => {
                if attempts.failures > 1 {
                    tracing::debug!(address = self.address(), "redis is back");
                }
                let connection = Arc::new(connection);
                *self.current() = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(error) => {
                if attempts.failures == 1 {
                    tracing::debug!(address = self.address(), %error, "redis is not available");
                }
                attempts.last_error = Some(error.clone());
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<RedisConnection, RedisError> {
        let fault = |error| Fault::judge(&error, self.address(), "connect").error;
        let broken = Arc::new(AtomicBool::new(false));
        let on_close = Arc::clone(&broken);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_write_backpressure_boundary(WRITE_BUFFER)
            .set_push_sender(move |push: PushInfo| -> Result<(), redis::aio::SendError> {
                if push.kind == PushKind::Disconnection {
                    on_close.store(true, Ordering::Release);
                }
                Ok(())
            });
        let client = self.0.target.client()?;
        let mut multiplexed =
            client.get_multiplexed_async_connection_with_config(&config).await.map_err(fault)?;
        let client_id = self.check(&mut multiplexed).await?;
        Ok(RedisConnection::new(multiplexed, Arc::clone(&self.0.address), client_id, broken))
    }

    /// Refuses a server that evicts keys, and answers the id of this connection.
    ///
    /// `INFO` and `CONFIG` may each be forbidden by an ACL or renamed; one of them suffices.
    /// `CONFIG` is tried second: where it is forbidden, each try leaves a line in `ACL LOG`.
    async fn check(&self, multiplexed: &mut MultiplexedConnection) -> Result<i64, RedisError> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("CLIENT").arg("ID");
        pipeline.cmd("INFO").arg("memory");
        let fault = |error| Fault::judge(&error, self.address(), "INFO").error;
        let answers =
            multiplexed.req_packed_commands(&pipeline, 0, pipeline.len()).await.map_err(fault)?;
        let [id, info] = answers.try_into().unwrap_or_default();
        let mut policy = policy_of_info(&info);
        if policy.is_none() {
            let mut cmd = redis::cmd("CONFIG");
            cmd.arg("GET").arg("maxmemory-policy");
            policy = policy_of_config(&multiplexed.send_packed_command(&cmd).await.map_err(fault)?);
        }
        match policy {
            Some(policy) if policy != "noeviction" => Err(RedisError::Misconfigured {
                address: self.address().to_owned(),
                message: format!(
                    "may evict tasks and locks (its maxmemory-policy is {policy}): set \
                     `maxmemory-policy noeviction`"
                ),
            }),
            Some(_) => Ok(client_id(&id)),
            None => {
                // LOADING and NOAUTH show here first; a mere NOPERM must not stop anybody.
                if let Err(error) = info.extract_error() {
                    let fault = Fault::judge(&error, self.address(), "INFO");
                    if fault.broken {
                        return Err(fault.error);
                    }
                }
                tracing::warn!(
                    address = self.address(),
                    "cannot see the eviction policy of redis: allow INFO, and make sure that \
                     maxmemory-policy is noeviction"
                );
                Ok(client_id(&id))
            }
        }
    }

    fn unavailable(&self, message: &str) -> RedisError {
        RedisError::Unavailable { address: self.address().to_owned(), message: message.to_owned() }
    }
}

/// The pause after the attempt that followed `failures` failed ones; `random` is in `[0, 1)`.
fn pause(failures: u32, random: f64) -> Duration {
    let ceiling = PAUSE_BASE.saturating_mul(1 << failures.min(10)).min(PAUSE_MAX);
    ceiling.mul_f64(0.5 + random / 2.0)
}

fn client_id(answer: &Value) -> i64 {
    if let Value::Int(id) = answer { *id } else { 0 }
}

fn policy_of_info(answer: &Value) -> Option<String> {
    let text = match answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::VerbatimString { text, .. } => text,
        _ => return None,
    };
    text.lines().find_map(|line| line.strip_prefix("maxmemory_policy:")).map(str::to_owned)
}

fn policy_of_config(answer: &Value) -> Option<String> {
    redis::from_redis_value_ref::<std::collections::HashMap<String, String>>(answer)
        .ok()?
        .remove("maxmemory-policy")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_bounded() {
        assert_eq!(pause(0, 0.0), PAUSE_BASE / 2);
        for failures in 0..100 {
            assert!(pause(failures, 0.999) <= PAUSE_MAX);
        }
        assert!(pause(50, 0.0) >= PAUSE_MAX / 2);
    }

    #[test]
    fn the_policy_is_found_in_either_answer() {
        let info = Value::BulkString(
            b"# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n".to_vec(),
        );
        assert_eq!(policy_of_info(&info).as_deref(), Some("allkeys-lru"));
        let text = |s: &str| Value::BulkString(s.as_bytes().to_vec());
        let config = Value::Map(vec![(text("maxmemory-policy"), text("noeviction"))]);
        assert_eq!(policy_of_config(&config).as_deref(), Some("noeviction"));
        assert_eq!(policy_of_info(&Value::Nil), None);
    }
}

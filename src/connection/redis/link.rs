//! A link: the connection that is there when it is needed.
//!
//! Invariants: making a link needs no server; a call ends by its deadline, connecting included; at
//! most one attempt to connect is under way, and after a failed one the next waits for a jittered
//! pause of at most [`PAUSE_MAX`], during which calls fail at once with what went wrong. A
//! connection that served at least one call and then broke is replaced without a pause; one whose
//! server only ever said that it is loading, or no master, is like a failed attempt.
//!
//! An attempt may take longer than a call: the caller gives up, and the next one goes on with it. A
//! connection to a server that is no longer the one to use is left like a broken one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::{Cmd, Pipeline, Value};
use tokio::time::Instant;

use super::super::RedisError;
use super::connect::connect;
use super::connection::RedisConnection;
use super::script::LuaScript;
use super::target::RedisTarget;

/// The pause after the first failed attempt; it doubles with each further one.
const PAUSE_BASE: Duration = Duration::from_millis(50);
/// The longest pause, so that a link is back within a second of its server.
const PAUSE_MAX: Duration = Duration::from_secs(1);

struct Attempts {
    /// The one under way; goes on only while a caller waits for it.
    under_way: Option<BoxFuture<'static, Result<RedisConnection, RedisError>>>,
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
    /// A link to `target` whose calls end within `call_timeout`. Connecting may take as long as the
    /// target says, or as a call.
    pub fn new(target: RedisTarget, call_timeout: Duration) -> Self {
        let attempts =
            Attempts { under_way: None, failures: 0, not_before: None, last_error: None };
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

    /// As [`RedisLink::pipeline`], and once more by the same deadline if the connection broke under
    /// it: for commands that may be applied twice. Each command gets its own answer.
    pub async fn pipeline_twice(
        &self,
        pipeline: &Pipeline,
        command: &'static str,
    ) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
        let deadline = self.deadline();
        let once = async || {
            let connection = self.connection(deadline).await?;
            let answers = connection.pipeline(pipeline, command, deadline).await?;
            let check = |answer| connection.check(answer, command);
            Ok::<Vec<_>, RedisError>(answers.into_iter().map(check).collect())
        };
        match once().await {
            Err(RedisError::Unavailable { .. } | RedisError::Replica { .. })
                if Instant::now() < deadline =>
            {
                once().await
            }
            Ok(answers) if answers.iter().any(is_unavailable) => once().await,
            answer => answer,
        }
    }

    /// As [`RedisLink::script`], and once more by the same deadline if the connection broke under it:
    /// for scripts that may be applied twice.
    pub async fn script_twice(
        &self,
        script: &LuaScript,
        fill: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let deadline = self.deadline();
        let once = async || self.connection(deadline).await?.script(script, deadline, &fill).await;
        match once().await {
            Err(RedisError::Unavailable { .. } | RedisError::Replica { .. })
                if Instant::now() < deadline =>
            {
                once().await
            }
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
            if self.is_current(&connection) {
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

    /// Whether the connection is up and leads to the server to use; one to another is closed. For
    /// callers that keep the connection: Sentinels are asked only if this is. Needs a runtime.
    pub fn is_current(&self, connection: &Arc<RedisConnection>) -> bool {
        if !connection.is_broken() && self.0.target.has_moved_from(connection.address()) {
            self.discard(connection, false);
        }
        !connection.is_broken()
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
        let connecting = if let Some(under_way) = attempts.under_way.as_mut() {
            under_way
        } else {
            self.may_attempt(attempts)?;
            attempts.under_way.insert(self.start_attempt())
        };
        let connected = connecting.await;
        attempts.under_way = None;
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

    fn may_attempt(&self, attempts: &mut Attempts) -> Result<(), RedisError> {
        let forgiven = self.0.forgiven.swap(false, Ordering::Relaxed);
        let gone = self.current().take();
        if gone.as_ref().is_some_and(|gone| gone.is_proved()) || forgiven {
            attempts.failures = 0;
            attempts.not_before = None;
        } else if let Some(fault) = gone.and_then(|gone| gone.fault()) {
            attempts.last_error = Some(fault);
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
        Ok(())
    }

    fn start_attempt(&self) -> BoxFuture<'static, Result<RedisConnection, RedisError>> {
        let target = self.0.target.clone();
        let limit = target.connect_timeout().unwrap_or(self.0.call_timeout);
        let late = self.unavailable("no connection within the deadline");
        let connecting = tokio::time::timeout(limit, async move { connect(&target, limit).await });
        Box::pin(async move { connecting.await.unwrap_or(Err(late)) })
    }

    fn unavailable(&self, message: &str) -> RedisError {
        RedisError::Unavailable { address: self.address().to_owned(), message: message.to_owned() }
    }
}

fn is_unavailable(answer: &Result<Value, RedisError>) -> bool {
    matches!(answer, Err(RedisError::Unavailable { .. } | RedisError::Replica { .. }))
}

/// The pause after the attempt that followed `failures` failed ones; `random` is in `[0, 1)`.
fn pause(failures: u32, random: f64) -> Duration {
    let ceiling = PAUSE_BASE.saturating_mul(1 << failures.min(10)).min(PAUSE_MAX);
    ceiling.mul_f64(0.5 + random / 2.0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinSet;

    use super::*;

    #[test]
    fn pauses_grow_and_stay_bounded() {
        assert_eq!(pause(0, 0.0), PAUSE_BASE / 2);
        for failures in 0..100 {
            assert!(pause(failures, 0.999) <= PAUSE_MAX);
        }
        assert!(pause(50, 0.0) >= PAUSE_MAX / 2);
    }

    /// A server that lets everybody in and then is still loading; counts who has come.
    async fn loading_server(listener: TcpListener, visits: Arc<AtomicU32>) {
        let mut visitors = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            visits.fetch_add(1, Ordering::Relaxed);
            visitors.spawn(serve_loading(stream));
        }
    }

    async fn serve_loading(stream: TcpStream) -> Option<()> {
        let (reader, mut writer) = stream.into_split();
        let mut lines = BufReader::new(reader).lines();
        loop {
            let words = lines.next_line().await.ok()??.strip_prefix('*')?.parse().ok()?;
            let mut command = Vec::new();
            for _ in 0..words {
                let _length = lines.next_line().await.ok()??;
                command.push(lines.next_line().await.ok()??);
            }
            let answer = match command.join(" ").as_str() {
                "CLIENT ID" => ":7\r\n",
                "INFO memory" => "$27\r\nmaxmemory_policy:noeviction\r\n",
                "INFO replication" => "$11\r\nrole:master\r\n",
                "PING" => "-LOADING Redis is loading the dataset in memory\r\n",
                _ => "+OK\r\n",
            };
            writer.write_all(answer.as_bytes()).await.ok()?;
        }
    }

    #[tokio::test]
    async fn a_server_that_is_loading_is_not_stormed() {
        const CALLS: u32 = 100;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let visits = Arc::new(AtomicU32::new(0));
        let mut server = JoinSet::new();
        server.spawn(loading_server(listener, Arc::clone(&visits)));
        let target = RedisTarget::parse(&url, None, None).unwrap();
        let link = RedisLink::new(target, Duration::from_secs(30));
        for _ in 0..CALLS {
            let error = link.query(&redis::cmd("PING"), "PING").await.unwrap_err();
            assert!(error.is_transient() && error.to_string().contains("loading"), "{error}");
        }
        let visits = visits.load(Ordering::Relaxed);
        assert!(visits < CALLS / 4, "{visits} connections for {CALLS} calls");
    }
}

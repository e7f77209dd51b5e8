//! One established connection, shared by all callers of its link.
//!
//! Commands are answered in the order in which they were submitted. A call that reaches its
//! deadline leaves its command in the server's hands: it may still be applied, before whatever is
//! submitted to the same connection afterwards. After [`MAX_TIMEOUTS`] timeouts in a row without
//! an answer in between, the connection counts as broken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, ErrorKind, Pipeline, RedisResult, ServerErrorKind, Value};
use tokio::time::Instant;

use super::super::RedisError;
use super::fault::Fault;
use super::script::LuaScript;

/// Timeouts in a row after which a connection is replaced.
const MAX_TIMEOUTS: u32 = 3;
/// A connection unused for this long is looked at before it is used: the server may have closed it.
const REST: Duration = Duration::from_millis(100);
/// How long a command that nobody waits for may take to be handed to the socket.
const SUBMIT_LIMIT: Duration = Duration::from_millis(50);

struct Silence {
    timeouts: u32,
    last_timeout: Option<Instant>,
    last_answer: Instant,
}

/// A connection that is up. Cheap to share; closed when the last user drops it.
pub struct RedisConnection {
    multiplexed: MultiplexedConnection,
    address: Arc<str>,
    client_id: i64,
    broken: Arc<AtomicBool>,
    proved: AtomicBool,
    fault: OnceLock<RedisError>,
    silence: Mutex<Silence>,
}

impl RedisConnection {
    pub(super) fn new(
        multiplexed: MultiplexedConnection,
        address: Arc<str>,
        client_id: i64,
        broken: Arc<AtomicBool>,
    ) -> Self {
        let proved = AtomicBool::new(false);
        let silence = Silence { timeouts: 0, last_timeout: None, last_answer: Instant::now() };
        let (fault, silence) = (OnceLock::new(), Mutex::new(silence));
        Self { multiplexed, address, client_id, broken, proved, fault, silence }
    }

    /// `host:port`, or the path of the socket.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What `CLIENT ID` said, for `CLIENT UNBLOCK`; 0 where that command is forbidden.
    pub fn client_id(&self) -> i64 {
        self.client_id
    }

    /// Whether the connection has closed, stopped answering or been given up.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Whether nothing has been answered for so long that the server may have hung up meanwhile.
    pub(super) fn has_rested(&self) -> bool {
        self.silence().last_answer.elapsed() >= REST
    }

    pub(super) fn give_up(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// Whether the server ever answered a call sensibly on this connection. That it is loading, or
    /// no master any more, is no sensible answer.
    pub(super) fn is_proved(&self) -> bool {
        self.proved.load(Ordering::Relaxed)
    }

    /// For what answer the connection was given up, if it was for one.
    pub(super) fn fault(&self) -> Option<RedisError> {
        self.fault.get().cloned()
    }

    /// Sends one command and waits for its answer until `deadline`.
    pub async fn query(
        &self,
        cmd: &Cmd,
        command: &'static str,
        deadline: Instant,
    ) -> Result<Value, RedisError> {
        self.raw_query(cmd, command, deadline).await?.map_err(|error| self.judge(&error, command))
    }

    /// Sends the commands in one write, and gives their answers in order. An answer may be an error
    /// of its own ([`Value::ServerError`]). See [`RedisConnection::check`].
    pub async fn pipeline(
        &self,
        pipeline: &Pipeline,
        command: &'static str,
        deadline: Instant,
    ) -> Result<Vec<Value>, RedisError> {
        let mut multiplexed = self.multiplexed.clone();
        let call = multiplexed.req_packed_commands(pipeline, 0, pipeline.len());
        let answers = self
            .timed(call, command, deadline)
            .await?
            .map_err(|error| self.judge(&error, command))?;
        if answers.iter().any(is_sensible) {
            self.prove();
        }
        Ok(answers)
    }

    /// Runs a script. `fill` appends the number of keys, the keys and the arguments; it is called
    /// again when the server does not know the script yet.
    pub async fn script(
        &self,
        script: &LuaScript,
        deadline: Instant,
        fill: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let answer = self.raw_script(script, deadline, fill).await?;
        answer.map_err(|error| self.judge(&error, script.name()))
    }

    /// As [`RedisConnection::script`], for one that must not be applied twice. Where no answer tells
    /// whether it was, the error is [`RedisError::Unsure`]; what the server has answered, it has not
    /// applied.
    pub async fn script_once(
        &self,
        script: &LuaScript,
        deadline: Instant,
        fill: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let command = script.name();
        let unsure = |error: &RedisError| RedisError::Unsure {
            address: self.address.to_string(),
            command,
            message: error.to_string(),
        };
        match self.raw_script(script, deadline, fill).await {
            Ok(answer) => answer.map_err(|error| {
                let judged = self.judge(&error, command);
                if Fault::is_of_the_way(&error) { unsure(&judged) } else { judged }
            }),
            Err(late) => Err(unsure(&late)),
        }
    }

    /// Submits a script behind all commands submitted so far, without waiting for its answer.
    pub async fn submit_script(&self, script: &LuaScript, fill: impl Fn(&mut Cmd)) {
        let mut cmd = script.by_text(fill);
        cmd.set_no_response(true);
        let mut multiplexed = self.multiplexed.clone();
        let _ = tokio::time::timeout(SUBMIT_LIMIT, multiplexed.send_packed_command(&cmd)).await;
        // Lets the connection's own task hand the command to the socket before we may be dropped.
        tokio::task::yield_now().await;
    }

    /// Judges an answer of a [`RedisConnection::pipeline`] that may be an error of its own.
    pub fn check(&self, answer: Value, command: &'static str) -> Result<Value, RedisError> {
        own_error(answer).map_err(|error| self.judge(&error, command))
    }

    /// As [`RedisConnection::script`], with errors of the server left as they are.
    async fn raw_script(
        &self,
        script: &LuaScript,
        deadline: Instant,
        fill: impl Fn(&mut Cmd),
    ) -> Result<RedisResult<Value>, RedisError> {
        let name = script.name();
        match self.raw_query(&script.by_digest(&fill), name, deadline).await? {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.raw_query(&script.by_text(&fill), name, deadline).await
            }
            answer => Ok(answer),
        }
    }

    /// As [`RedisConnection::query`], with errors of the server left as they are.
    async fn raw_query(
        &self,
        cmd: &Cmd,
        command: &'static str,
        deadline: Instant,
    ) -> Result<RedisResult<Value>, RedisError> {
        let mut multiplexed = self.multiplexed.clone();
        let call = multiplexed.send_packed_command(cmd);
        let answer = self.timed(call, command, deadline).await?.and_then(own_error);
        if answer.is_ok() {
            self.prove();
        }
        Ok(answer)
    }

    async fn timed<T>(
        &self,
        call: impl Future<Output = RedisResult<T>>,
        command: &'static str,
        deadline: Instant,
    ) -> Result<RedisResult<T>, RedisError> {
        let started = Instant::now();
        match tokio::time::timeout_at(deadline, call).await {
            Ok(Err(error)) if error.kind() == ErrorKind::Io => Ok(Err(error)),
            Ok(answer) => {
                let mut silence = self.silence();
                silence.timeouts = 0;
                silence.last_answer = Instant::now();
                drop(silence);
                Ok(answer)
            }
            Err(_) => {
                self.count_timeout(started);
                let after = deadline.saturating_duration_since(started);
                Err(RedisError::Timeout { address: self.address.to_string(), command, after })
            }
        }
    }

    /// Calls that waited side by side count once: three callers in one stall are one timeout.
    fn count_timeout(&self, started: Instant) {
        let mut silence = self.silence();
        if silence.last_timeout.is_none_or(|last| started >= last) {
            silence.timeouts += 1;
            silence.last_timeout = Some(Instant::now());
            if silence.timeouts >= MAX_TIMEOUTS {
                self.give_up();
            }
        }
    }

    fn silence(&self) -> std::sync::MutexGuard<'_, Silence> {
        self.silence.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn judge(&self, error: &redis::RedisError, command: &'static str) -> RedisError {
        let fault = Fault::judge(error, &self.address, command);
        if fault.broken {
            // Several callers may meet it; the first one's words do.
            let _ = self.fault.set(fault.error.clone());
            self.give_up();
        } else {
            self.prove();
        }
        fault.error
    }

    fn prove(&self) {
        self.proved.store(true, Ordering::Relaxed);
    }
}

/// Whether an answer of a pipeline is none of the server's errors.
fn is_sensible(answer: &Value) -> bool {
    !matches!(answer, Value::ServerError(_))
}

/// The error that the answer is, if it is one. Unlike `Value::extract_error` it leaves the inside
/// of large answers alone.
fn own_error(answer: Value) -> RedisResult<Value> {
    match answer {
        Value::ServerError(error) => Err(error.into()),
        answer => Ok(answer),
    }
}

//! Connections with deadlines, for the ledger and for results that are kept beside it.
//!
//! A small pool of its own, in place of sqlx's: there a cancelled `begin` leaks an open transaction
//! into the pool, and a silent server leaks its permits. Here a session is given back only by
//! [`Session::finish`] after an answer came; whatever else happens to it, dropped, timed out or
//! broken, its connection is closed and its permit returns. One broken connection also retires all
//! idle ones, since they went to the same server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::backend::Backend;
use super::error::{self, Blame};
use crate::connection::PasswordSource;
use crate::ledger::LedgerError;

/// Who had a session for longer may have sent or read something giant: the connection's buffers grow
/// with it, and are not to keep that for ever. Shrunk any oftener, they would only have to grow again.
const LONG: Duration = Duration::from_millis(20);

/// The part of a deadline that the server has for a statement: it gives up before the client does, so
/// that an answer comes where one can come.
pub const STATEMENT_SHARE: f64 = 0.8;

/// What a session is for: the planner's settings must not reach the users' statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The ledger's own group statements: planned once, always through the primary key.
    Ledger,
    /// The effects of tasks, and a person's questions: the planner as the server has it.
    Effects,
}

/// Connections to one server, made when they are needed.
pub struct Sessions {
    options: PgConnectOptions,
    password: Option<PasswordSource>,
    purpose: Purpose,
    address: Arc<str>,
    permits: Arc<Semaphore>,
    idle: std::sync::Mutex<Vec<Idle>>,
    generation: AtomicU64,
    deadline: Duration,
}

struct Idle {
    connection: PgConnection,
    backend: Option<Backend>,
    generation: u64,
}

impl Sessions {
    /// At most `size` connections; nothing is connected yet. `deadline` is for waiting and
    /// connecting; [`within`] takes it for a piece of work.
    pub fn new(
        connect: &PgConnectOptions,
        password: Option<PasswordSource>,
        purpose: Purpose,
        size: usize,
        deadline: Duration,
        lock_timeout: Duration,
    ) -> Self {
        Self {
            password,
            purpose,
            options: session_options(connect, purpose, deadline, lock_timeout),
            address: error::address(connect).into(),
            permits: Arc::new(Semaphore::new(size.max(1))),
            idle: std::sync::Mutex::new(Vec::new()),
            generation: AtomicU64::new(0),
            deadline,
        }
    }

    /// Where, without credentials.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A session: an idle connection, or a new one.
    pub async fn open(&self) -> Result<Session<'_>, LedgerError> {
        let Ok(session) = tokio::time::timeout(self.deadline, self.connect()).await else {
            self.retire();
            return Err(self.unavailable(format!("no connection within {:?}", self.deadline)));
        };
        session
    }

    async fn connect(&self) -> Result<Session<'_>, LedgerError> {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|_| self.unavailable("the pool is closed".to_owned()))?;
        let generation = self.generation.load(Ordering::Acquire);
        let idle = self.lock_idle().pop();
        let (connection, backend) = match idle {
            Some(idle) if idle.generation == generation => (idle.connection, idle.backend),
            _ => self.establish().await?,
        };
        let since = Instant::now();
        Ok(Session { sessions: self, connection, backend, generation, since, _permit: permit })
    }

    /// A new connection. Effects may keep it busy for long, so there its other end is known.
    async fn establish(&self) -> Result<(PgConnection, Option<Backend>), LedgerError> {
        let failed = |error| error::ledger_error(&self.address, "connect", &error);
        let mut connection = self.login()?.connect().await.map_err(failed)?;
        let backend = match self.purpose {
            Purpose::Ledger => None,
            Purpose::Effects => Backend::of(&mut connection).await.map_err(failed)?,
        };
        Ok((connection, backend))
    }

    /// The options with the password of this moment.
    fn login(&self) -> Result<PgConnectOptions, LedgerError> {
        let password = match &self.password {
            Some(source) => source.read().map_err(|message| LedgerError::LoginRefused {
                address: self.address.to_string(),
                message,
            })?,
            None => None,
        };
        let options = self.options.clone();
        Ok(match password {
            Some(password) => options.password(&password),
            None => options,
        })
    }

    /// Closes what is idle now: its server does not answer.
    fn retire(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.lock_idle().clear();
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn unavailable(&self, message: String) -> LedgerError {
        LedgerError::Unavailable { address: self.address.to_string(), message }
    }
}

/// A duration as a setting of a session: whole milliseconds in 32 bits, where 0 would mean no limit.
pub(super) fn setting(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// The settings travel with the start of the session: no round trip, and no way to forget them.
fn session_options(
    connect: &PgConnectOptions,
    purpose: Purpose,
    deadline: Duration,
    lock_timeout: Duration,
) -> PgConnectOptions {
    let statement = setting(deadline.mul_f64(STATEMENT_SHARE)).to_string();
    let lock = setting(lock_timeout).to_string();
    // Within a transaction only a handler's own effect may let the server wait.
    let idle = match purpose {
        Purpose::Ledger => deadline.saturating_mul(2),
        Purpose::Effects => deadline.saturating_mul(2).max(Duration::from_secs(60)),
    };
    let idle = setting(idle).to_string();
    let options = connect
        .clone()
        .application_name("queue-worker")
        .statement_cache_capacity(256)
        .options([
            ("statement_timeout", statement.as_str()),
            ("lock_timeout", lock.as_str()),
            ("idle_in_transaction_session_timeout", idle.as_str()),
            // The server notices a client that is gone, and frees its row locks.
            ("tcp_keepalives_idle", "5"),
            ("tcp_keepalives_interval", "2"),
            ("tcp_keepalives_count", "3"),
        ])
        .disable_statement_logging();
    match purpose {
        Purpose::Effects => options,
        // On a young table a cached plan reads the whole table, and keeps doing so while it grows.
        Purpose::Ledger => options.options([
            ("plan_cache_mode", "force_generic_plan"),
            ("enable_seqscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("jit", "off"),
        ]),
    }
}

/// Why a piece of work on a session did not end well.
#[derive(Debug)]
pub enum Trouble {
    /// The client or the server said so.
    Sql(sqlx::Error),
    /// The deadline passed: what was sent may still take effect.
    Deadline,
}

impl From<sqlx::Error> for Trouble {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

/// A connection that is ours for a while.
pub struct Session<'a> {
    sessions: &'a Sessions,
    connection: PgConnection,
    backend: Option<Backend>,
    generation: u64,
    since: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Session<'_> {
    /// The connection.
    pub fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// The server's process for it, where effects run.
    pub(super) fn backend(&self) -> Option<Backend> {
        self.backend
    }

    /// Gives the session back, and turns the trouble into an error.
    ///
    /// After an error of the server an open transaction is rolled back first. After any other
    /// trouble the connection is closed.
    pub async fn finish<T>(
        mut self,
        action: &'static str,
        answer: Result<T, Trouble>,
    ) -> Result<T, LedgerError> {
        let sessions = self.sessions;
        let trouble = match answer {
            Ok(value) => {
                self.give_back();
                return Ok(value);
            }
            Err(trouble) => trouble,
        };
        match trouble {
            Trouble::Sql(error) => {
                let kept = match error::sqlstate(&error) {
                    Some(code) => error::blame(&code) != Blame::Server && self.recovers().await,
                    None => false,
                };
                if kept {
                    self.give_back();
                } else {
                    sessions.retire();
                }
                Err(error::ledger_error(&sessions.address, action, &error))
            }
            Trouble::Deadline => {
                sessions.retire();
                let message = format!("no answer to {action} within {:?}", sessions.deadline);
                Err(sessions.unavailable(message))
            }
        }
    }

    /// Sends the rollback that a dropped transaction has queued, and waits for its answer.
    async fn recovers(&mut self) -> bool {
        let ping = tokio::time::timeout(self.sessions.deadline, self.connection.ping());
        matches!(ping.await, Ok(Ok(())))
    }

    fn give_back(self) {
        let Self { sessions, mut connection, backend, generation, since, _permit } = self;
        if since.elapsed() >= LONG {
            connection.shrink_buffers();
        }
        if generation == sessions.generation.load(Ordering::Acquire) {
            sessions.lock_idle().push(Idle { connection, backend, generation });
        }
    }
}

/// Waits for `work` up to the deadline.
pub async fn within<T, E>(
    deadline: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Trouble>
where
    Trouble: From<E>,
{
    match tokio::time::timeout(deadline, work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Trouble::Deadline),
    }
}

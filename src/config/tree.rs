//! The tree of the configuration: every key, what it means and what it defaults to.
//!
//! This is the only place that knows a default. The comments of the fields are the reference's
//! text; adding a field here adds the key to the file, to the environment and to the docs. The
//! handlers' part is in `handlers`; rules between keys are in `validate`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use toml::Value;

use super::handlers::HandlerSettings;
use super::leaf::{Leaf, Refusal};
use super::secret::{Secret, SecretError};
use super::section::section;
use super::server_url::ServerUrl;
use super::size::ByteSize;
use crate::domain::{Kind, QueueName};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn url(text: &str) -> ServerUrl {
    ServerUrl::parse(text).expect("the default is a URL")
}

/// The whole configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `[worker]`
    pub worker: WorkerSettings,
    /// `[redis]`
    pub redis: RedisSettings,
    /// `[postgres]`
    pub postgres: PostgresSettings,
    /// `[lease]`
    pub lease: LeaseSettings,
    /// `[drain]`
    pub drain: DrainSettings,
    /// `[[queue]]`, at least one, no name twice.
    pub queues: Vec<QueueSettings>,
    /// `[handler.KIND]`
    pub handlers: BTreeMap<Kind, HandlerSettings>,
    /// `[unknown_kind]`
    pub unknown_kind: UnknownKindSettings,
    /// `[retention]`
    pub retention: RetentionSettings,
    /// `[web]`
    pub web: WebSettings,
    /// `[log]`
    pub log: LogSettings,
}

impl Config {
    /// Everything at its default, with one queue and no handler.
    pub fn with_queue(queue: QueueName) -> Self {
        Self {
            worker: WorkerSettings::new(),
            redis: RedisSettings::new(),
            postgres: PostgresSettings::new(),
            lease: LeaseSettings::new(),
            drain: DrainSettings::new(),
            queues: vec![QueueSettings::new(queue)],
            handlers: BTreeMap::new(),
            unknown_kind: UnknownKindSettings::new(),
            retention: RetentionSettings::new(),
            web: WebSettings::new(),
            log: LogSettings::new(),
        }
    }
}

section! {
    /// This process.
    WorkerSettings {
        ..
        /// Where the worker keeps what must survive a restart. Default under systemd: the unit's
        /// StateDirectory= ($STATE_DIRECTORY).
        state_dir: PathBuf = PathBuf::from("/var/lib/queue-worker"),
        /// Threads that run handlers; 0 means twice the number of cores, and at least 4.
        threads: usize = 0,
        /// The most tasks that are in this worker's hands at once, over all queues, whether they
        /// run or wait for a store; each further queue may pass it by one.
        max_in_flight: usize = 2_000,
        /// The most bytes of payload that are in this worker's hands at once, over all queues; each
        /// queue may pass it by one payload. Idle queues share what is free.
        payload_budget: ByteSize = ByteSize::mib(64),
    }
}

section! {
    /// The broker, and the store of the locks. Redis 6.2 or later, or Valkey.
    RedisSettings {
        ..
        /// `redis://host:port/database`, `rediss://` for TLS, `redis+unix:///path?db=0` for a
        /// socket, or `redis+sentinel://host:port,host:port/name` for the master that Sentinels name
        /// (docs/redis.md).
        url: ServerUrl = url("redis://127.0.0.1:6379/0"),
        /// The ACL user; default: the one in the URL, else Redis' own default user.
        username: Option<String> = None,
        /// The password itself: only in the environment, as QUEUE_WORKER_REDIS__PASSWORD.
        password: Option<Secret> = None,
        /// A file that holds the password, read at each connect. A relative path is looked up in
        /// the unit's credentials ($CREDENTIALS_DIRECTORY).
        password_file: Option<PathBuf> = None,
        /// How long a command may take before the connection counts as broken.
        call_timeout: Duration = ms(500),
        /// How long connecting may take. A call that needs the connection does not wait longer than
        /// call_timeout; the next one goes on with the same attempt.
        connect_timeout: Duration = secs(2),
    }
}

impl RedisSettings {
    /// The user: `username`, else the URL's.
    pub fn user(&self) -> Option<String> {
        self.username.clone().or_else(|| self.url.username())
    }

    /// Reads the password: the environment's, else the file's, else the URL's. Call it at each
    /// connect; an error means "not ready yet", never a broken configuration.
    pub fn password(&self) -> Result<Option<Secret>, SecretError> {
        current_password(self.password.as_ref(), self.password_file.as_ref(), &self.url)
    }
}

section! {
    /// The ledger: claims, outcomes, delays and dead letters. Postgres 14 or later.
    PostgresSettings {
        ..
        /// `postgres://user@host:port/database`; for a socket append `?host=/run/postgresql`.
        url: ServerUrl = url("postgres://queue-worker@localhost/queue-worker"),
        /// The password itself: only in the environment, as QUEUE_WORKER_POSTGRES__PASSWORD.
        password: Option<Secret> = None,
        /// A file that holds the password, read at each connect. A relative path is looked up in
        /// the unit's credentials ($CREDENTIALS_DIRECTORY).
        password_file: Option<PathBuf> = None,
        /// Connections of a pool. There are two, for claims and outcomes and for effects, and a third
        /// with handlers of type git-analysis; with the heartbeat's own a worker opens up to twice
        /// (three times) this number and one.
        pool_size: u32 = 8,
        /// How long a statement may take, commit included.
        call_timeout: Duration = secs(5),
        /// How long a statement may wait for a row that somebody else has locked.
        lock_timeout: Duration = ms(500),
        /// Transactions that commit at the same time; each takes along what is ready.
        committers: usize = 3,
    }
}

impl PostgresSettings {
    /// Reads the password: the environment's, else the file's, else the URL's. Call it at each
    /// connect; an error means "not ready yet", never a broken configuration.
    pub fn password(&self) -> Result<Option<Secret>, SecretError> {
        current_password(self.password.as_ref(), self.password_file.as_ref(), &self.url)
    }
}

fn current_password(
    given: Option<&Secret>,
    file: Option<&PathBuf>,
    url: &ServerUrl,
) -> Result<Option<Secret>, SecretError> {
    match (given, file) {
        (Some(secret), _) => Ok(Some(secret.clone())),
        (None, Some(path)) => Secret::read(path).map(Some),
        (None, None) => Ok(url.password()),
    }
}

section! {
    /// Who may work on a task, and how soon another worker may take over.
    LeaseSettings {
        ..
        /// How long a lease holds after its last renewal, in both stores. A task of a killed
        /// worker runs again after about this time. At least three heartbeats and redis.call_timeout.
        ttl: Duration = secs(5),
        /// How often leases are renewed.
        heartbeat: Duration = ms(1_500),
        /// How long a delivered entry must be silent before another worker takes it. At least ttl.
        min_idle: Duration = secs(5),
        /// How often the worker looks for silent entries and due delays. At most ttl.
        sweep: Duration = ms(500),
        /// Crashes in a row that a task survives; after the next one it is dead.
        max_crashes: u32 = 3,
        /// How long a task that crashed workers waits for one to itself before the worker starts
        /// nothing else until it has run; if what runs takes as long again, the task is put back for
        /// whoever is idle.
        suspect_wait: Duration = secs(30),
        /// Independent Redis masters that hold the locks by majority (Redlock), as URLs like
        /// redis.url: three or a larger odd number, none a replica of another. Empty: the one of
        /// `[redis]` holds them.
        nodes: Vec<ServerUrl> = Vec::new(),
        /// The ACL user of the nodes whose URL names none; default: Redis' own default user.
        username: Option<String> = None,
        /// The password of the nodes whose URL has none: only in the environment, as
        /// QUEUE_WORKER_LEASE__PASSWORD.
        password: Option<Secret> = None,
        /// A file that holds that password, read at each connect. A relative path is looked up in
        /// the unit's credentials ($CREDENTIALS_DIRECTORY).
        password_file: Option<PathBuf> = None,
        /// How long a call waits for one node; what a majority can decide never waits for the
        /// others. At most redis.call_timeout.
        node_timeout: Duration = ms(50),
        /// How often taking a lock is tried again on the nodes when rivals split the votes. A lock
        /// that somebody has is not waited for: the task is put off.
        retry_count: u32 = 3,
        /// The least wait before such a retry.
        retry_delay: Duration = ms(50),
        /// The wait is longer by a random part of this, so that rivals do not meet again.
        retry_jitter: Duration = ms(50),
    }
}

impl LeaseSettings {
    /// The user at one of the nodes: the URL's, else `username`.
    pub fn node_user(&self, node: &ServerUrl) -> Option<String> {
        node.username().or_else(|| self.username.clone())
    }

    /// Reads the password of one of the nodes: the URL's, else the one of all. Call it at each
    /// connect; see [`RedisSettings::password`].
    pub fn node_password(&self, node: &ServerUrl) -> Result<Option<Secret>, SecretError> {
        match node.password() {
            Some(own) => Ok(Some(own)),
            None => current_password(self.password.as_ref(), self.password_file.as_ref(), node),
        }
    }
}

section! {
    /// The way out after SIGTERM (docs/systemd.md). The sum of timeout, kill_after and margin has to
    /// fit into the unit's TimeoutStopSec.
    DrainSettings {
        ..
        /// How long running tasks may go on.
        timeout: Duration = secs(25),
        /// How long tasks that were then asked to stop have before they are killed.
        kill_after: Duration = secs(5),
        /// What is kept for giving back tasks and locks.
        margin: Duration = secs(5),
        /// The unit's TimeoutStopSec, or what another supervisor allows: a longer sum is refused.
        /// Default under systemd: what it says itself, and a longer sum is shortened.
        stop_timeout: Option<Duration> = None,
        /// Under systemd: while tasks end, timeout starts anew, and the unit's limit is extended, by
        /// at most this long all in all. Default: never.
        extend_at_most: Option<Duration> = None,
    }
}

section! {
    /// A queue that this worker serves: one Redis stream. At least one is needed.
    QueueSettings {
        /// Its name: letters, digits and the characters . _ - :
        name: QueueName,
        ..
        /// The most tasks of this queue that run at once, 1 to 10000.
        concurrency: usize = 16,
        /// Larger payloads go to the dead letters at once.
        max_payload: ByteSize = ByteSize::kib(256),
    }
}

section! {
    /// Tasks of a kind that no handler is for: they wait, since a deploy may bring one.
    UnknownKindSettings {
        ..
        /// How long after its first delivery such a task is given up as dead.
        give_up: Duration = secs(24 * 3_600),
    }
}

section! {
    /// How long what has ended is remembered. While a task's row is there, an entry with the same
    /// id is recognised as a duplicate and not run.
    RetentionSettings {
        ..
        /// Rows of tasks that succeeded. At least as long as anything here may wait: every
        /// handler's backoff_max and timeout, and unknown_kind.give_up.
        succeeded: Duration = secs(7 * 24 * 3_600),
        /// Rows of tasks that failed for good or are dead. At least as long as those, and as
        /// dead_letters.
        failed: Duration = secs(30 * 24 * 3_600),
        /// Dead letters, with their payloads.
        dead_letters: Duration = secs(30 * 24 * 3_600),
        /// How often old rows are looked for.
        every: Duration = secs(60),
        /// Rows deleted by one statement, 1 to 10000.
        batch: u32 = 1_000,
    }
}

section! {
    /// Health and metrics over HTTP: /livez, /readyz and /metrics (docs/metrics.md).
    WebSettings {
        ..
        /// Where to listen, an address and a port; default: nowhere. While the port is taken the
        /// worker warns, works on and tries again.
        listen: Option<SocketAddr> = None,
        /// Whether listen may be an address that other machines can reach. The pages ask for no
        /// password, and show the names of queues and kinds.
        allow_remote: bool = false,
    }
}

section! {
    /// What the worker says.
    LogSettings {
        ..
        /// "auto" is the journal under systemd and text elsewhere; or "journald", "text", "json".
        format: LogFormat = LogFormat::Auto,
        /// "error", "warn", "info", "debug" or "trace", or directives like
        /// "info,queue_worker::worker=debug".
        level: String = "info".to_owned(),
    }
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// The journal under systemd, else text.
    Auto,
    /// The journal's native protocol, with fields.
    Journald,
    /// Lines on standard error, in colours on a terminal.
    Text,
    /// One JSON object a line on standard error.
    Json,
}

impl LogFormat {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Journald, Self::Text, Self::Json];

    /// The word in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Journald => "journald",
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl Leaf for LogFormat {
    const KIND: &'static str = "a log format";
    const EXAMPLE: &'static str = "\"auto\"";

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        let found = Self::ALL.into_iter().find(|format| value.as_str() == Some(format.as_str()));
        found.ok_or_else(|| Refusal {
            remedy: r#"write "auto", "journald", "text" or "json""#.to_owned(),
            ..Refusal::wrong_type::<Self>(value)
        })
    }

    fn from_env(text: &str) -> Result<Self, Refusal> {
        Self::from_value(&Value::String(text.to_owned()))
    }

    fn to_value(&self) -> Option<Value> {
        Some(Value::String(self.as_str().to_owned()))
    }
}

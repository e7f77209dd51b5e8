//! The handlers' part of the tree: `[handler.KIND]`, whose other keys depend on `type`.
//!
//! Like `tree`, this is where the keys, their docs and their defaults are. Secrets of a handler
//! are files, read when a request is made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Value;

use super::git::{GitSettings, TIMEOUT as GIT_TIMEOUT};
use super::leaf::{Leaf, Refusal};
use super::reader::Reader;
use super::secret::{Secret, SecretError};
use super::section::{Section, section};
use super::server_url::ServerUrl;
use super::size::ByteSize;
use crate::domain::RetryPolicy;

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

section! {
    /// The handler of one kind of task; the keys that every type has.
    HandlerCommon {
        ..
        /// How long one attempt may take.
        timeout: Duration = secs(60),
        /// Attempts that a task has, the first included.
        max_attempts: u32 = 5,
        /// The ceiling of the delay after the first failure; it doubles with each further one.
        backoff_base: Duration = secs(1),
        /// The ceiling of every delay.
        backoff_max: Duration = secs(300),
    }
}

section! {
    /// Runs a program: the payload on its standard input, the result from its standard output.
    ExecSettings {
        /// The program and its arguments; no shell. The program is an absolute path or is found
        /// on PATH.
        command: Vec<String>,
        ..
        /// The directory that it runs in; default: the worker's own.
        working_dir: Option<PathBuf> = None,
        /// Variables that it gets besides the few that are passed on (PATH, HOME and the like). Not
        /// for secrets.
        environment: BTreeMap<String, String> = BTreeMap::new(),
        /// The most bytes of standard output that are kept as the result.
        result_cap: ByteSize = ByteSize::kib(64),
        /// The last bytes of standard error that are kept with a failure.
        stderr_cap: ByteSize = ByteSize::kib(16),
        /// How long the process group has between SIGTERM and SIGKILL.
        kill_after: Duration = secs(5),
        /// The most memory that one run may use, all that it starts included; whatever needs more is
        /// killed, and the attempt has failed. This and the next two need a unit with Delegate=yes;
        /// else the worker warns at the start, and runs the program without them (docs/exec.md).
        memory_max: Option<ByteSize> = None,
        /// The most processes and threads that one run may have at a time.
        pids_max: Option<u32> = None,
        /// The share of the processors that one run gets where there are not enough, 1 to 10000;
        /// others have 100.
        cpu_weight: Option<u32> = None,
    }
}

section! {
    /// Runs a statement in the transaction that records the success: exactly once.
    SqlSettings {
        /// The SQL; $1 is the payload (bytea), $2 the task's id (text), $3 the fence (bigint). It runs
        /// once per task, and may be several statements.
        statement: String,
        ..
        /// Tasks that may share a transaction, 1 to 256. They still succeed or fail one by one: if
        /// one of them fails, each is tried again in a transaction of its own.
        batch: usize = 1,
    }
}

section! {
    /// Sends the payload in a POST request; 2xx is a success.
    HttpSettings {
        /// Where to, `http://` or `https://`.
        url: ServerUrl,
        ..
        /// Headers of each request. Not for secrets.
        headers: BTreeMap<String, String> = BTreeMap::new(),
        /// Headers whose values are read from files: name and path.
        header_files: BTreeMap<String, String> = BTreeMap::new(),
        /// A file that holds the token of an `Authorization: Bearer` header.
        bearer_file: Option<PathBuf> = None,
        /// A proxy that the requests go through, `http://` or `https://`. Those that the environment
        /// names are not used.
        proxy: Option<ServerUrl> = None,
        /// How long connecting may take.
        connect_timeout: Duration = secs(5),
        /// The most bytes of the response that are kept as the result.
        response_cap: ByteSize = ByteSize::kib(64),
    }
}

/// `[handler.KIND]`: how one kind of task is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerSettings {
    /// What every type has.
    pub common: HandlerCommon,
    /// What `type` names, with its own keys.
    pub action: HandlerAction,
}

impl HandlerSettings {
    /// Attempts and delays.
    pub fn retry(&self) -> RetryPolicy {
        RetryPolicy {
            max_attempts: self.common.max_attempts,
            base: self.common.backoff_base,
            max: self.common.backoff_max,
        }
    }
}

/// The types of handlers that a file can declare; native ones are registered in code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerAction {
    /// `type = "exec"`
    Exec(ExecSettings),
    /// `type = "sql"`
    Sql(SqlSettings),
    /// `type = "http"`
    Http(HttpSettings),
    /// `type = "git-analysis"`
    Git(Box<GitSettings>),
}

impl HandlerAction {
    /// The word that `type` has.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Exec(_) => "exec",
            Self::Sql(_) => "sql",
            Self::Http(_) => "http",
            Self::Git(_) => "git-analysis",
        }
    }
}

impl HttpSettings {
    /// Reads the headers whose values are secret, the bearer token included. Call it for each
    /// request or at each start of the handler; an error is worth another attempt.
    pub fn secret_headers(&self) -> Result<Vec<(String, Secret)>, SecretError> {
        let read =
            |(name, path): (&String, &String)| Ok((name.clone(), Secret::read(Path::new(path))?));
        let mut headers = self.header_files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        if let Some(path) = &self.bearer_file {
            let token = Secret::read(path)?;
            let value = Secret::new(format!("Bearer {}", token.expose()));
            headers.push(("authorization".to_owned(), value));
        }
        Ok(headers)
    }
}

/// The words that `type` can have.
#[derive(Debug, Clone, Copy)]
enum HandlerType {
    Exec,
    Sql,
    Http,
    Git,
}

impl Leaf for HandlerType {
    const KIND: &'static str = "a type of handler";
    const EXAMPLE: &'static str = "\"exec\"";

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        match value.as_str() {
            Some("exec") => Ok(Self::Exec),
            Some("sql") => Ok(Self::Sql),
            Some("http") => Ok(Self::Http),
            Some("git-analysis") => Ok(Self::Git),
            _ => Err(Refusal {
                remedy: r#"write "exec", "sql", "http" or "git-analysis""#.to_owned(),
                ..Refusal::wrong_type::<Self>(value)
            }),
        }
    }

    fn from_env(text: &str) -> Result<Self, Refusal> {
        Self::from_value(&Value::String(text.to_owned()))
    }

    fn to_value(&self) -> Option<Value> {
        None
    }
}

impl HandlerSettings {
    /// Reads one handler's table to its end.
    pub(super) fn read(mut reader: Reader<'_>) -> Option<Self> {
        let kind = reader.required::<HandlerType>("type");
        let has_timeout = reader.has("timeout");
        let mut common = HandlerCommon::read(&mut reader);
        // Without a type nobody can say which of the other keys are unknown.
        let action = match kind? {
            HandlerType::Exec => ExecSettings::read(&mut reader).map(HandlerAction::Exec),
            HandlerType::Sql => SqlSettings::read(&mut reader).map(HandlerAction::Sql),
            HandlerType::Http => HttpSettings::read(&mut reader).map(HandlerAction::Http),
            HandlerType::Git => {
                if let Some(common) = common.as_mut().filter(|_| !has_timeout) {
                    common.timeout = GIT_TIMEOUT;
                }
                let settings = GitSettings::read(&mut reader);
                settings.map(|settings| HandlerAction::Git(Box::new(settings)))
            }
        };
        reader.finish();
        Some(Self { common: common?, action: action? })
    }

    /// The names of the keys whose values differ.
    pub(super) fn changed(&self, other: &Self) -> Vec<&'static str> {
        let mut names = self.common.changed(&other.common);
        names.extend(match (&self.action, &other.action) {
            (HandlerAction::Exec(old), HandlerAction::Exec(new)) => old.changed(new),
            (HandlerAction::Sql(old), HandlerAction::Sql(new)) => old.changed(new),
            (HandlerAction::Http(old), HandlerAction::Http(new)) => old.changed(new),
            (HandlerAction::Git(old), HandlerAction::Git(new)) => old.changed(new),
            (
                HandlerAction::Exec(_)
                | HandlerAction::Sql(_)
                | HandlerAction::Http(_)
                | HandlerAction::Git(_),
                _,
            ) => vec!["type"],
        });
        names
    }
}

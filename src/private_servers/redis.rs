//! A private Redis (or Valkey) on a loopback port.
//!
//! Its settings go into a configuration file rather than the command line, so that a password is
//! not seen in the process list. It counts as ready when *this* process answers on the port and
//! has loaded its data: a foreign server on the same port is not mistaken for it.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

use super::error::PrivateServerError;
use super::folder::Folder;
use super::port::{START_ATTEMPTS, free_port};
use super::process::{Deadline, Launch, Output, ServerProcess};
use super::program;

/// How long a start may take; loading a large append-only file takes seconds.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long an orderly end may take before the process is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// How long one readiness probe may take.
const PROBE_LIMIT: Duration = Duration::from_millis(500);
/// How often readiness is probed.
const PROBE_EVERY: Duration = Duration::from_millis(10);
/// The most that is read of an INFO reply; real ones have some 6 KiB.
const INFO_BYTES: u64 = 64 * 1024;

/// When Redis flushes its append-only file to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendFsync {
    /// Before each reply: nothing that was confirmed is lost, at a price.
    Always,
    /// Once a second.
    EverySecond,
    /// When the kernel likes.
    No,
}

impl AppendFsync {
    fn setting(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::EverySecond => "everysec",
            Self::No => "no",
        }
    }
}

/// How a private Redis is set up.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// The folder of its files, made if missing; a temporary one if `None`.
    pub folder: Option<PathBuf>,
    /// The loopback port; a free one if `None`.
    pub port: Option<u16>,
    /// The append-only file and when it is flushed; without it a killed Redis forgets everything.
    pub append_only: Option<AppendFsync>,
    /// The `save` setting; empty for no snapshots.
    pub save: String,
    /// The `maxmemory-policy` setting.
    pub maxmemory_policy: String,
    /// A password that every client has to give.
    pub password: Option<String>,
    /// Further settings of redis.conf: name and value, written last.
    pub extra: Vec<(String, String)>,
}

impl Default for RedisOptions {
    /// As the queue wants it in production: append-only, flushed every second, never evicting.
    fn default() -> Self {
        Self {
            folder: None,
            port: None,
            append_only: Some(AppendFsync::EverySecond),
            save: String::new(),
            maxmemory_policy: "noeviction".to_owned(),
            password: None,
            extra: Vec::new(),
        }
    }
}

impl RedisOptions {
    /// For tests that do not ask what survives a kill: nothing is written to the disk.
    pub fn volatile() -> Self {
        Self { append_only: None, ..Self::default() }
    }

    fn configuration(&self, port: u16) -> String {
        let mut settings = vec![
            ("bind", Ipv4Addr::LOCALHOST.to_string()),
            ("port", port.to_string()),
            ("daemonize", "no".to_owned()),
            ("save", self.save.clone()),
            ("appendonly", if self.append_only.is_some() { "yes" } else { "no" }.to_owned()),
            ("maxmemory-policy", self.maxmemory_policy.clone()),
        ];
        if let Some(fsync) = self.append_only {
            settings.push(("appendfsync", fsync.setting().to_owned()));
        }
        if let Some(password) = &self.password {
            settings.push(("requirepass", password.clone()));
        }
        let extra = self.extra.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let mut text = String::new();
        for (name, value) in settings.into_iter().chain(extra) {
            let _ = writeln!(text, "{name} {}", setting_value(name, &value));
        }
        text
    }
}

/// Quotes a value, but leaves `save 60 1` and the like the several words that they are.
fn setting_value(name: &str, value: &str) -> String {
    if name != "requirepass" && !value.is_empty() {
        return value.to_owned();
    }
    let mut quoted = String::from("\"");
    for byte in value.bytes() {
        match byte {
            b'"' | b'\\' => {
                quoted.push('\\');
                quoted.push(char::from(byte));
            }
            b' '..=b'~' => quoted.push(char::from(byte)),
            _ => {
                let _ = write!(quoted, "\\x{byte:02x}");
            }
        }
    }
    quoted.push('"');
    quoted
}

/// A running private Redis. Dropping it kills the process and removes a temporary folder.
#[derive(Debug)]
pub struct RedisServer {
    // Before `folder`: the process must be gone when the folder is removed.
    process: ServerProcess,
    program: PathBuf,
    options: RedisOptions,
    port: u16,
    folder: Folder,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    pub async fn start(options: RedisOptions) -> Result<Self, PrivateServerError> {
        let program = program::redis_server()?;
        let folder = Folder::open(options.folder.as_deref(), None)?;
        let mut attempt = 1;
        loop {
            let port = match options.port {
                Some(port) => port,
                None => free_port()
                    .map_err(|source| PrivateServerError::Port { server: "redis", source })?,
            };
            let started = match launch(&program, folder.path(), &options, port) {
                Ok(mut process) => wait_ready(&mut process, port, options.password.as_deref())
                    .await
                    .map(|()| process),
                Err(error) => Err(error),
            };
            match started {
                Ok(process) => return Ok(Self { process, program, options, port, folder }),
                Err(error)
                    if error.is_lost_port()
                        && options.port.is_none()
                        && attempt < START_ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// `redis://127.0.0.1:PORT/`, with the password if there is one.
    pub fn url(&self) -> String {
        let mut url = Url::parse("redis://127.0.0.1/").expect("a constant URL");
        url.set_port(Some(self.port)).expect("the URL has a host");
        // The one character that a URL of the standard takes for an escape and lets pass.
        let password = self.options.password.as_ref().map(|text| text.replace('%', "%25"));
        url.set_password(password.as_deref()).expect("the URL has a host");
        url.into()
    }

    /// The loopback port, the same for the whole life of the value.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Whether the process runs (a paused one does).
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// SIGKILL, and waits until it is gone. What was not in the append-only file is lost.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Freezes it (SIGSTOP): connections stay open and nothing is answered.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Thaws it (SIGCONT).
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Ends it in order (SIGTERM), or by SIGKILL after ten seconds.
    pub async fn stop(&mut self) {
        self.process.stop(Signal::TERM, STOP_LIMIT).await;
    }

    /// Starts it again on the same port with its data; a running one is stopped in order first.
    pub async fn restart(&mut self) -> Result<(), PrivateServerError> {
        self.stop().await;
        self.process = launch(&self.program, self.folder.path(), &self.options, self.port)?;
        wait_ready(&mut self.process, self.port, self.options.password.as_deref()).await
    }
}

fn launch(
    program: &Path,
    folder: &Path,
    options: &RedisOptions,
    port: u16,
) -> Result<ServerProcess, PrivateServerError> {
    let file = folder.join("redis.conf");
    fs::write(&file, "").map_err(PrivateServerError::file("write", &file))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))
        .map_err(PrivateServerError::file("restrict", &file))?;
    fs::write(&file, options.configuration(port))
        .map_err(PrivateServerError::file("write", &file))?;
    ServerProcess::spawn(&Launch {
        server: "redis",
        program,
        arguments: vec!["redis.conf".to_owned()],
        folder,
        output: Output::Log(&folder.join("redis.log")),
        account: None,
        // What a client was told is in the page cache by then; a frozen Redis must die too.
        death_signal: "KILL",
    })
}

async fn wait_ready(
    process: &mut ServerProcess,
    port: u16,
    password: Option<&str>,
) -> Result<(), PrivateServerError> {
    let deadline = Deadline::after(START_LIMIT);
    while !probe(process.pid(), port, password).await {
        process.check_starting(deadline)?;
        tokio::time::sleep(PROBE_EVERY).await;
    }
    Ok(())
}

/// Whether the process `pid` answers INFO on the port and has loaded its data.
async fn probe(pid: Option<u32>, port: u16, password: Option<&str>) -> bool {
    let Some(pid) = pid else { return false };
    let ask = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()?;
        let mut request = Vec::new();
        if let Some(password) = password {
            request.extend(command(&["AUTH", password]));
        }
        request.extend(command(&["INFO"]));
        request.extend(command(&["QUIT"]));
        stream.write_all(&request).await.ok()?;
        let mut reply = Vec::new();
        stream.take(INFO_BYTES).read_to_end(&mut reply).await.ok()?;
        Some(String::from_utf8_lossy(&reply).into_owned())
    };
    let Ok(Some(info)) = timeout(PROBE_LIMIT, ask).await else { return false };
    let ours = format!("process_id:{pid}");
    info.lines().any(|line| line == ours) && info.lines().any(|line| line == "loading:0")
}

/// One command in RESP.
fn command(words: &[&str]) -> Vec<u8> {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        let _ = write!(text, "${}\r\n{word}\r\n", word.len());
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_written_as_redis_reads_them() {
        let options = RedisOptions {
            password: Some("a \"b\\\u{e9}".to_owned()),
            extra: vec![("save".to_owned(), "60 1".to_owned())],
            ..RedisOptions::default()
        };
        let text = options.configuration(1234);
        assert!(text.contains("bind 127.0.0.1\nport 1234\n"), "{text}");
        assert!(text.contains("save \"\"\nappendonly yes\n"), "{text}");
        assert!(text.contains("requirepass \"a \\\"b\\\\\\xc3\\xa9\"\n"), "{text}");
        assert!(text.ends_with("save 60 1\n"), "{text}");
    }
}

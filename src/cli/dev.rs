//! `queue-worker dev`: a whole queue in one folder: private Redis and Postgres, migrated, and a
//! worker on them.
//!
//! The servers ask for passwords, which are files that only this user can read: the other users of the
//! machine reach the loopback, too.
//!
//! The configuration file is written once, with the ports that were free then, and belongs to the
//! user from then on: later starts take the ports from it and keep everything else. The worker is
//! a process of its own, started as systemd would start it, and Ctrl-C stops it before its servers.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, bail, ensure};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{own_program, shell_word};
use crate::config::ServerUrl;
use crate::private_servers::{
    Companion, CompanionOutput, PostgresOptions, PostgresServer, RedisOptions, RedisServer,
    random_password,
};

/// The database of the queue.
const DATABASE: &str = "queue_worker";
/// The configuration file in the folder.
const FILE: &str = "queue-worker.toml";

/// Run a worker with a private Redis and Postgres, to develop against
///
/// Everything lives in one folder and survives the end of the program. Ctrl-C drains the worker
/// and stops the servers; a second Ctrl-C hurries the worker, a third kills it.
#[derive(Debug, clap::Args)]
pub(super) struct Dev {
    /// The folder of the servers' data and of the configuration, made if missing
    #[arg(long, value_name = "FOLDER", default_value = ".dev")]
    dir: PathBuf,
}

impl Dev {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut stop = StopSignals::listen()?;
        let action = || format!("prepare the folder {}", self.dir.display());
        fs::create_dir_all(self.dir.join("state")).with_context(action)?;
        let dir = fs::canonicalize(&self.dir).with_context(action)?;
        let file = dir.join(FILE);
        let ports = Ports::read(&file)?;
        let passwords = Passwords::keep(&dir, ports == Ports::default())?;

        println!("starting Postgres and Redis in {} ...", dir.display());
        let mut servers = Servers::start(&dir, &ports, passwords).await?;
        if ports == Ports::default() {
            let text = configuration(&dir, &servers)?;
            fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        }
        let outcome = work(&file, &servers, &mut stop).await;
        println!("stopping Redis and Postgres ...");
        servers.stop().await;
        outcome
    }
}

/// Migrates, runs the worker and waits for its end.
async fn work(file: &Path, servers: &Servers, stop: &mut StopSignals) -> anyhow::Result<ExitCode> {
    let program = own_program()?;
    let config = file.to_str().context("the folder's name is not UTF-8; choose another --dir")?;
    let start = |command: &str| {
        let arguments = ["--config", config, command];
        Companion::start(&program, &arguments, &CompanionOutput::Inherit)
    };
    let mut migration = start("migrate")?;
    let Some(status) = until_end(&mut migration, stop).await else { return Ok(ExitCode::SUCCESS) };
    ensure!(status.success(), "the migration failed ({status}); its message is above");

    let mut worker = start("run")?;
    io::stdout().write_all(instructions(&program, file, servers)?.as_bytes())?;
    match until_end(&mut worker, stop).await {
        None => Ok(ExitCode::SUCCESS),
        Some(status) => bail!("the worker ended by itself ({status}); its messages are above"),
    }
}

/// Waits for the end of a child. Each of our signals is passed on as SIGTERM, the third as SIGKILL.
/// `None` if it ended because it was told to.
async fn until_end(child: &mut Companion, stop: &mut StopSignals) -> Option<ExitStatus> {
    let mut signals = 0;
    loop {
        tokio::select! {
            biased;
            status = child.wait() => return (signals == 0).then_some(status),
            () = stop.next() => {
                signals += 1;
                match signals {
                    1 => println!("\ndraining; press Ctrl-C again to hurry ..."),
                    2 => println!("\nhurrying; press Ctrl-C again to kill the worker ..."),
                    _ => {
                        child.kill();
                        return None;
                    }
                }
                child.terminate();
            }
        }
    }
}

/// What asks this program to end.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl StopSignals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}

/// The ports of an earlier start.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ports {
    redis: Option<u16>,
    postgres: Option<u16>,
}

impl Ports {
    /// Reads them from the configuration file, if there is one already.
    fn read(file: &Path) -> anyhow::Result<Self> {
        match fs::read_to_string(file) {
            Ok(text) => Self::parse(&text).with_context(|| {
                format!("read the ports in {}; correct it or remove it", file.display())
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("read {}", file.display())),
        }
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let root: toml::Table = text.parse()?;
        let port = |section: &str| {
            let url = root.get(section).and_then(|table| table.get("url"));
            let url = url.and_then(toml::Value::as_str);
            let url = url.with_context(|| format!("{section}.url is missing"))?;
            let url = url::Url::parse(url).with_context(|| format!("{section}.url"))?;
            let local = url.host_str() == Some("127.0.0.1");
            let port = url.port().filter(|_| local);
            port.with_context(|| format!("{section}.url does not name 127.0.0.1 and a port"))
        };
        Ok(Self { redis: Some(port("redis")?), postgres: Some(port("postgres")?) })
    }
}

/// The password of one server, and the file that only this user can read it from.
struct Password {
    text: String,
    file: PathBuf,
}

impl Password {
    /// Reads it, or makes one in a `new` folder. A folder of a version that set none has none.
    fn keep(file: PathBuf, new: bool) -> anyhow::Result<Option<Self>> {
        let failed = |what| format!("{what} the password in {}", file.display());
        match fs::read_to_string(&file) {
            Ok(text) => Ok(Some(Self { text: text.trim().to_owned(), file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound && new => {
                let text = random_password();
                let mut options = fs::OpenOptions::new();
                let made = options.write(true).create_new(true).mode(0o600).open(&file);
                let written = made.and_then(|mut made| made.write_all(text.as_bytes()));
                written.with_context(|| failed("write"))?;
                Ok(Some(Self { text, file }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| failed("read")),
        }
    }

    /// The assignment that gives the password to a program that a shell starts: other users see its
    /// arguments, and not its environment.
    fn assigned(password: Option<&Self>, variable: &str) -> String {
        password.map_or_else(String::new, |password| {
            format!("{variable}=$(cat {}) ", shell_word(&password.file))
        })
    }
}

/// The passwords of both servers.
struct Passwords {
    redis: Option<Password>,
    postgres: Option<Password>,
}

impl Passwords {
    fn keep(dir: &Path, new: bool) -> anyhow::Result<Self> {
        Ok(Self {
            redis: Password::keep(dir.join("redis.password"), new)?,
            postgres: Password::keep(dir.join("postgres.password"), new)?,
        })
    }
}

/// Both servers, running.
struct Servers {
    redis: RedisServer,
    postgres: PostgresServer,
    database: String,
    passwords: Passwords,
}

impl Servers {
    async fn start(dir: &Path, ports: &Ports, passwords: Passwords) -> anyhow::Result<Self> {
        let text = |password: &Option<Password>| Some(password.as_ref()?.text.clone());
        // Postgres first: it notices another `dev` in the same folder, and Redis does not.
        let postgres = PostgresServer::start(PostgresOptions {
            folder: Some(dir.join("postgres")),
            port: ports.postgres,
            password: text(&passwords.postgres),
            ..PostgresOptions::default()
        })
        .await
        .context("start the private Postgres")?;
        let database = postgres.create_database(DATABASE).await?;
        let redis = RedisServer::start(RedisOptions {
            folder: Some(dir.join("redis")),
            port: ports.redis,
            password: text(&passwords.redis),
            ..RedisOptions::default()
        })
        .await
        .context("start the private Redis")?;
        Ok(Self { redis, postgres, database, passwords })
    }

    /// Their addresses without the passwords, for a file and for a terminal.
    fn addresses(&self) -> anyhow::Result<(String, String)> {
        let bare = |url: &str| Ok::<_, anyhow::Error>(ServerUrl::parse(url)?.without_password());
        Ok((bare(&self.redis.url())?, bare(&self.database)?))
    }

    async fn stop(&mut self) {
        self.redis.stop().await;
        self.postgres.stop().await;
    }
}

/// The file that a first start writes.
fn configuration(dir: &Path, servers: &Servers) -> anyhow::Result<String> {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let secret = |password: &Option<Password>| {
        password.as_ref().map_or_else(String::new, |password| {
            format!("\npassword_file = {}", quoted(&password.file.display().to_string()))
        })
    };
    let (redis, postgres) = servers.addresses()?;
    Ok(format!(
        r#"# Written by `queue-worker dev` at its first start; yours to edit. The next start takes the
# ports of the private servers from here.

[worker]
state_dir = {state}

[redis]
url = {redis}{redis_password}

[postgres]
url = {postgres}{postgres_password}

[[queue]]
name = "default"

# The payload goes to the program's standard input, the result is its standard output.
[handler.shout]
type = "exec"
command = ["tr", "a-z", "A-Z"]

# Takes a while: enqueue some and press Ctrl-C to watch a drain.
[handler.slow]
type = "exec"
command = ["sleep", "10"]
"#,
        state = quoted(&dir.join("state").display().to_string()),
        redis = quoted(&redis),
        redis_password = secret(&servers.passwords.redis),
        postgres = quoted(&postgres),
        postgres_password = secret(&servers.passwords.postgres),
    ))
}

/// How to talk to what runs now.
fn instructions(program: &Path, file: &Path, servers: &Servers) -> anyhow::Result<String> {
    let worker = format!("{} --config {}", shell_word(program), shell_word(file));
    let Passwords { redis, postgres } = &servers.passwords;
    let redis_login = Password::assigned(redis.as_ref(), "REDISCLI_AUTH");
    let postgres_login = Password::assigned(postgres.as_ref(), "PGPASSWORD");
    let (redis, database) = servers.addresses()?;
    Ok(format!(
        "\nA worker is running. From another terminal:\n\
         \x20 enqueue a task   {worker} enqueue default --kind shout --payload hello --id first\n\
         \x20 see its result   {worker} tasks show first\n\
         \x20 see the queues   {worker} status\n\
         \x20 what went wrong  {worker} dead list\n\
         \x20 look into Redis  {redis_login}redis-cli -u {redis}\n\
         \x20 and Postgres     {postgres_login}psql {database}\n\
         The handlers are in {file}. Ctrl-C stops everything.\n\n",
        file = file.display(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_are_read_back() {
        let text = "[redis]\nurl = \"redis://127.0.0.1:15001/\"\n\
            [postgres]\nurl = \"postgres://postgres@127.0.0.1:15002/queue_worker\"\n";
        let ports = Ports::parse(text).unwrap();
        assert_eq!(ports, Ports { redis: Some(15001), postgres: Some(15002) });
    }

    #[test]
    fn a_server_of_somebody_else_is_refused() {
        let text = "[redis]\nurl = \"redis://example.org:6379/\"\n";
        let error = Ports::parse(text).unwrap_err();
        assert!(error.to_string().contains("redis.url"), "{error:#}");
    }
}

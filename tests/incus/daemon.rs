//! An Incus of one's own: its state in a temporary folder, no network, the storage driver `dir`.
//!
//! The machine's own Incus, if it has one, is not asked and not touched. The daemon is stopped by
//! process id, and when this process dies it gets SIGPWR, on which it stops its containers.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use queue_worker::private_servers::{Companion, CompanionOutput};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use crate::common::no_rights;

/// Where Debian has the daemon.
const INCUSD: &str = "/usr/libexec/incus/incusd";
/// How long it may take to answer.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a command may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// How long the end may take, the containers' end included.
pub(crate) const END_LIMIT: Duration = Duration::from_secs(40);
const EVERY: Duration = Duration::from_millis(50);

/// The daemon, and its folder.
pub(crate) struct Daemon {
    process: RefCell<Companion>,
    folder: TempDir,
}

/// Why there can be no Incus here, if so.
pub(crate) fn obstacle() -> Option<String> {
    if let Some(reason) = no_rights("incusd") {
        return Some(reason);
    }
    if !Path::new(INCUSD).is_file() {
        return Some(format!("no {INCUSD}: install incus-base and incus-client"));
    }
    None
}

impl Daemon {
    /// Starts it, with a storage pool and nothing else; else why that fails.
    pub(crate) async fn start() -> Result<Self, String> {
        // A short path: sockets lie below it.
        let folder = tempfile::Builder::new().prefix("qw-incus-").tempdir_in("/var/tmp");
        let folder = folder.map_err(|error| format!("make a folder: {error}"))?;
        let state = folder.path().join("state");
        std::fs::create_dir(&state).map_err(|error| format!("make a folder: {error}"))?;
        let directory = format!("INCUS_DIR={}", state.display());
        let words =
            ["--pdeathsig", "PWR", "--", "/usr/bin/env", &directory, INCUSD, "--group", "root"];
        let log = CompanionOutput::Log(folder.path().join("log"));
        let process = Companion::start(Path::new("/usr/bin/setpriv"), &words, &log);
        let process = RefCell::new(process.map_err(|error| error.to_string())?);
        let daemon = Self { process, folder };
        daemon.until_it_answers().await?;
        daemon.try_run(&["storage", "create", "default", "dir"]).await?;
        let root =
            ["profile", "device", "add", "default", "root", "disk", "path=/", "pool=default"];
        daemon.try_run(&root).await?;
        Ok(daemon)
    }

    async fn until_it_answers(&self) -> Result<(), String> {
        let deadline = Instant::now() + START_LIMIT;
        while self.try_run(&["query", "/1.0"]).await.is_err() {
            if !self.process.borrow_mut().is_running() || Instant::now() > deadline {
                return Err(format!("incusd does not answer:\n{}", self.log()));
            }
            sleep(EVERY).await;
        }
        Ok(())
    }

    /// What the daemon has said.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The files of a container.
    pub(crate) fn root(&self, container: &str) -> PathBuf {
        self.folder.path().join("state/containers").join(container).join("rootfs")
    }

    /// The command `incus`.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("incus");
        command
            .args(words)
            .env("INCUS_DIR", self.folder.path().join("state"))
            .env("INCUS_CONF", self.folder.path().join("client"))
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs `incus`, however it ends.
    pub(crate) async fn output(&self, words: &[&str]) -> Output {
        let output = timeout(COMMAND_LIMIT, self.command(words).output()).await;
        output.unwrap_or_else(|_| panic!("incus {words:?}: {COMMAND_LIMIT:?} over")).expect("incus")
    }

    /// Runs `incus`; an error is what it said.
    pub(crate) async fn try_run(&self, words: &[&str]) -> Result<String, String> {
        let output = self.output(words).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("incus {words:?}: {}", errors.trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `incus`, which must succeed.
    pub(crate) async fn run(&self, words: &[&str]) -> String {
        self.try_run(words).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same for a caller that may not wait; gives both outputs.
    pub(crate) fn run_blocking(&self, words: &[&str]) -> String {
        let output = self.command(words).into_std().output();
        let Ok(output) = output else { return String::new() };
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
    }

    /// The machine is shut down: SIGPWR, on which the daemon stops its containers and ends.
    pub(crate) async fn shut_down(&self) -> Duration {
        let start = Instant::now();
        self.process.borrow().signal(Signal::POWER);
        let deadline = start + END_LIMIT;
        while self.process.borrow_mut().is_running() {
            assert!(Instant::now() < deadline, "incusd did not end:\n{}", self.log());
            sleep(EVERY).await;
        }
        start.elapsed()
    }
}

impl Drop for Daemon {
    /// The containers first, by force: the daemon would leave them running.
    fn drop(&mut self) {
        if !self.process.get_mut().is_running() {
            return;
        }
        let names = self.run_blocking(&["list", "--format=csv", "--columns=n"]);
        for name in names.lines() {
            self.run_blocking(&["delete", "--force", name]);
        }
        let process = self.process.get_mut();
        process.terminate();
        let mut left = 100;
        while process.is_running() && left > 0 {
            std::thread::sleep(EVERY);
            left -= 1;
        }
        process.kill();
    }
}

//! A machine with a real systemd: this one's own programs under systemd-nspawn, in about a second.
//!
//! Everything but `/usr` is fresh and in memory, the network is the host's, so servers on its
//! loopback can be reached. The machine starts nothing of what is installed here. It ends with this
//! process, however that ends, and is only ever signalled by process id.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output};
use std::time::Duration;

use futures_util::FutureExt;
use queue_worker::private_servers::{Companion, CompanionOutput};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use crate::common::no_rights;

/// How long a boot may take, on a busy machine.
const BOOT_LIMIT: Duration = Duration::from_secs(30);
/// How long an end may take before the machine is killed.
pub(crate) const END_LIMIT: Duration = Duration::from_secs(20);
/// How often something is looked for.
const EVERY: Duration = Duration::from_millis(50);
/// Tells PID 1 to power off (systemd(1), SIGRTMIN+4).
const POWER_OFF: i32 = 4;
/// The account that the units run as.
const USER: &str = "queue-worker:x:990:990::/var/lib/queue-worker:/usr/sbin/nologin\n";
const GROUP: &str = "queue-worker:x:990:\nredis-queue-worker:x:991:\n";

/// The two places of the program: before and after a deploy.
pub(crate) const OLD: &str = "/opt/queue-worker/1/bin/queue-worker";
pub(crate) const NEW: &str = "/opt/queue-worker/2/bin/queue-worker";

/// A booted machine.
pub(crate) struct Guest {
    nspawn: RefCell<Companion>,
    leader: i32,
    _folder: TempDir,
    console: PathBuf,
}

/// Why no machine can be booted here, if so.
pub(crate) fn obstacle() -> Option<String> {
    if let Some(reason) = no_rights("systemd-nspawn") {
        return Some(reason);
    }
    for (program, package) in [("systemd-nspawn", "systemd-container"), ("nsenter", "util-linux")] {
        if find(program).is_none() {
            return Some(format!("no {program}: install {package} (scripts/setup.sh does)"));
        }
    }
    None
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

impl Guest {
    /// Boots a machine and waits until its systemd and its bus answer.
    pub(crate) async fn boot(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let console = folder.path().join("console");
        let name = format!("qw-{name}-{}", std::process::id());
        let program = env!("CARGO_BIN_EXE_queue-worker");
        let (old, new) =
            (format!("--bind-ro={program}:{OLD}"), format!("--bind-ro={program}:{NEW}"));
        let arguments = [
            "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1",
            "systemd-nspawn",
            "--quiet",
            "--register=no",
            "--keep-unit",
            "--link-journal=no",
            "--volatile=yes",
            "--directory=/",
            "--console=pipe",
            "--machine",
            &name,
            &old,
            &new,
            "--boot",
            "--",
            "systemd.unit=basic.target",
            "systemd.firstboot=off",
        ];
        let output = CompanionOutput::Log(console.clone());
        let nspawn = Companion::start(Path::new("/usr/bin/env"), &arguments, &output)
            .expect("start systemd-nspawn");
        let mut guest = Self { nspawn: RefCell::new(nspawn), leader: 0, _folder: folder, console };
        let booted = timeout(BOOT_LIMIT, guest.until_booted()).await;
        assert!(booted.is_ok(), "no boot within {BOOT_LIMIT:?}:\n{}", guest.console());
        guest.furnish();
        guest
    }

    async fn until_booted(&mut self) {
        loop {
            let pid = self.nspawn.borrow().pid();
            let running = self.nspawn.borrow_mut().is_running();
            assert!(running, "systemd-nspawn ended:\n{}", self.console());
            if let Some(leader) = pid.and_then(leader) {
                self.leader = leader;
                let state = self.try_run(["systemctl", "is-system-running"]).await;
                let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
                if state == "running" || state == "degraded" {
                    return;
                }
            }
            sleep(EVERY).await;
        }
    }

    /// What a fresh `/etc` lacks.
    fn furnish(&self) {
        for (file, line) in [("/etc/passwd", USER), ("/etc/group", GROUP)] {
            let path = self.path(file);
            let text = fs::read_to_string(&path).expect("read the accounts");
            fs::write(&path, text + line).expect("add an account");
        }
        self.write("/etc/nsswitch.conf", "passwd: files systemd\ngroup: files systemd\n");
    }

    /// A path of the machine as this process reaches it. No absolute link may lie on the way.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.leader))
    }

    /// Writes a file that everybody may read, and its folders.
    pub(crate) fn write(&self, inside: &str, text: &str) {
        let path = self.path(inside);
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("make a folder");
        fs::write(&path, text).unwrap_or_else(|error| panic!("write {inside}: {error}"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("make it readable");
    }

    /// The text of a file; empty when there is none.
    pub(crate) fn read(&self, inside: &str) -> String {
        fs::read_to_string(self.path(inside)).unwrap_or_default()
    }

    /// A command in the machine, by root.
    pub(crate) fn command<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Command {
        let leader = self.leader.to_string();
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &leader, "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--"])
            .args(words)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs a command, however it ends.
    pub(crate) async fn try_run<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Output {
        self.command(words).output().await.expect("run nsenter")
    }

    /// Runs a command that must succeed, and gives what it printed.
    pub(crate) async fn run<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> String {
        let words: Vec<&str> = words.into_iter().collect();
        let output = self.try_run(words.iter().copied()).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {}: {errors}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The same for a caller that may not wait, such as a destructor; gives both outputs.
    pub(crate) fn run_blocking(&self, words: &[&str]) -> String {
        let output = self.command(words.iter().copied()).into_std().output();
        let Ok(output) = output else { return String::new() };
        let (said, errors) = (output.stdout, output.stderr);
        String::from_utf8_lossy(&said).into_owned() + &String::from_utf8_lossy(&errors)
    }

    /// A property of a unit.
    pub(crate) async fn show(&self, unit: &str, property: &str) -> String {
        let words = ["systemctl", "show", "--value", "--property", property, unit];
        self.run(words).await.trim().to_owned()
    }

    /// The version of systemd, such as 252.
    pub(crate) async fn systemd_version(&self) -> u32 {
        let text = self.run(["systemctl", "--version"]).await;
        let number = text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok());
        number.unwrap_or_else(|| panic!("a version in {text:?}"))
    }

    /// Signals a process by its id in the machine.
    pub(crate) async fn kill(&self, signal: &str, pid: u32) {
        self.run(["kill", "-s", signal, &pid.to_string()]).await;
    }

    /// Asks PID 1 to power off, as `incus stop` does, and waits for the end.
    pub(crate) async fn power_off(&self, limit: Duration) -> Duration {
        let start = Instant::now();
        signal_leader(self.leader).await;
        let status = timeout(limit, self.ended()).await;
        let status = status.unwrap_or_else(|_| panic!("no end in {limit:?}:\n{}", self.console()));
        assert!(status.success(), "systemd-nspawn ended with {status}:\n{}", self.console());
        start.elapsed()
    }

    async fn ended(&self) -> ExitStatus {
        loop {
            if let Some(status) = self.nspawn.borrow_mut().wait().now_or_never() {
                return status;
            }
            sleep(EVERY).await;
        }
    }

    /// What the machine has printed.
    fn console(&self) -> String {
        fs::read_to_string(&self.console).unwrap_or_default()
    }
}

impl Drop for Guest {
    /// Nobody waits for services here: every case has stopped its own.
    fn drop(&mut self) {
        let nspawn = self.nspawn.get_mut();
        if nspawn.is_running() {
            nspawn.kill();
        }
    }
}

async fn signal_leader(leader: i32) {
    let signal = (libc::SIGRTMIN() + POWER_OFF).to_string();
    let status = Command::new("kill").args(["-s", &signal, &leader.to_string()]).status().await;
    assert!(status.expect("run kill").success(), "PID 1 of the machine is gone");
}

/// PID 1 of the machine: the only child of systemd-nspawn, once it is systemd.
fn leader(nspawn: u32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{nspawn}/task/{nspawn}/children")).ok()?;
    let child = children.split_ascii_whitespace().next()?.parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
    (name.trim() == "systemd").then_some(child)
}

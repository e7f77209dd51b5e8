//! A private D-Bus with a manager on it that answers as systemd does.
//!
//! The daemon is the real one (dbus-daemon); the manager has one service, whose main process is
//! whoever asks for its own unit.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses another part")]
#![allow(
    clippy::unused_self,
    clippy::unnecessary_literal_bound,
    clippy::used_underscore_binding,
    reason = "the interfaces are D-Bus's"
)]

use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use zbus::fdo::{self, DBusProxy};
use zbus::message::Header;
use zbus::names::BusName;
use zbus::zvariant::OwnedObjectPath;
use zbus::{Connection, interface};

const PATH: &str = "/org/freedesktop/systemd1/unit/queue_2dworker_2eservice";
const BESIDE: &str = "/org/freedesktop/systemd1/unit/beside_2eservice";

/// What the manager says.
#[derive(Debug, Clone)]
pub struct Said {
    /// The unit's name.
    pub name: String,
    /// TimeoutStopSec in microseconds; all ones for infinity.
    pub stop_usec: u64,
    /// KillMode=
    pub kill_mode: String,
    /// DropInPaths=
    pub drop_ins: Vec<String>,
    /// LoadCredential=
    pub credentials: Vec<(String, String)>,
    /// Other units that are loaded.
    pub others: Vec<String>,
    /// A unit beside it that runs once: its name, and the arguments of its ExecStart=
    pub beside: Option<(String, Vec<String>)>,
    /// Requires= and After=
    pub requires: Vec<String>,
    /// ExecStart=, the arguments.
    pub command: Vec<String>,
    /// How long an answer takes.
    pub delay: Duration,
    /// Whether every question is refused.
    pub refuses: bool,
    /// Whether the unit's main process is somebody else.
    pub is_of_another: bool,
}

impl Default for Said {
    fn default() -> Self {
        Self {
            name: "queue-worker.service".to_owned(),
            stop_usec: 90_000_000,
            kill_mode: "mixed".to_owned(),
            drop_ins: Vec::new(),
            credentials: Vec::new(),
            others: Vec::new(),
            beside: None,
            requires: Vec::new(),
            command: Vec::new(),
            delay: Duration::ZERO,
            refuses: false,
            is_of_another: false,
        }
    }
}

/// The bus; dropping it ends the daemon.
pub struct Bus {
    address: String,
    said: Arc<Mutex<Said>>,
    _manager: Connection,
    _daemon: Child,
    _folder: TempDir,
}

impl Bus {
    /// Starts the daemon and the manager; `None`, and a word about it, where there is no
    /// dbus-daemon.
    pub async fn start(said: Said) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = folder.path().join("bus.conf");
        let socket = folder.path().join("bus");
        let text = format!(
            "<busconfig><listen>unix:path={}</listen><policy context=\"default\">\
             <allow send_destination=\"*\"/><allow receive_sender=\"*\"/><allow own=\"*\"/>\
             <allow user=\"*\"/></policy></busconfig>",
            socket.display()
        );
        std::fs::write(&config, text).expect("write the configuration");
        let daemon = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--nopidfile", "--print-address"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut daemon = match daemon {
            Ok(daemon) => daemon,
            Err(error) => {
                eprintln!("SKIPPED: dbus-daemon: {error}");
                return None;
            }
        };
        let mut lines = BufReader::new(daemon.stdout.take().expect("a pipe")).lines();
        let address = lines.next_line().await.expect("read").expect("an address");
        let said = Arc::new(Mutex::new(said));
        let main = Arc::new(AtomicU32::new(0));
        let manager = Manager { said: Arc::clone(&said), main: Arc::clone(&main) };
        let service =
            |is_beside| Service { said: Arc::clone(&said), main: Arc::clone(&main), is_beside };
        let unit = |is_beside| Unit { said: Arc::clone(&said), is_beside };
        let connecting = zbus::connection::Builder::address(address.as_str())
            .and_then(|builder| builder.serve_at("/org/freedesktop/systemd1", manager))
            .and_then(|builder| builder.serve_at(PATH, service(false)))
            .and_then(|builder| builder.serve_at(PATH, unit(false)))
            .and_then(|builder| builder.serve_at(BESIDE, service(true)))
            .and_then(|builder| builder.serve_at(BESIDE, unit(true)))
            .and_then(|builder| builder.name("org.freedesktop.systemd1"))
            .expect("good names")
            .build();
        let manager = tokio::time::timeout(Duration::from_secs(30), connecting).await;
        let manager = manager.expect("an answer of the bus").expect("connect to the bus");
        Some(Self { address, said, _manager: manager, _daemon: daemon, _folder: folder })
    }

    /// For `DBUS_SYSTEM_BUS_ADDRESS`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Says something else from now on.
    pub fn say(&self, change: impl FnOnce(&mut Said)) {
        change(&mut self.said.lock().unwrap());
    }
}

struct Manager {
    said: Arc<Mutex<Said>>,
    main: Arc<AtomicU32>,
}

impl Manager {
    async fn waits(&self) -> fdo::Result<Said> {
        let said = self.said.lock().unwrap().clone();
        tokio::time::sleep(said.delay).await;
        if said.refuses { Err(fdo::Error::AccessDenied("no".to_owned())) } else { Ok(said) }
    }
}

type Line =
    (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    #[zbus(name = "GetUnitByPID")]
    async fn get_unit_by_pid(
        &self,
        pid: u32,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> fdo::Result<OwnedObjectPath> {
        assert_eq!(pid, 0, "whoever asks is known by the bus");
        let said = self.waits().await?;
        let sender = BusName::from(header.sender().expect("a sender").to_owned());
        let asker =
            DBusProxy::new(connection).await?.get_connection_unix_process_id(sender).await?;
        self.main.store(if said.is_of_another { 1 } else { asker }, Ordering::Relaxed);
        Ok(OwnedObjectPath::try_from(PATH).expect("a path"))
    }

    async fn list_units_by_patterns(
        &self,
        _states: Vec<String>,
        patterns: Vec<String>,
    ) -> fdo::Result<Vec<Line>> {
        let said = self.waits().await?;
        let matches = |name: &String| {
            patterns.iter().any(|pattern| {
                let (start, end) = pattern.split_once('*').unwrap_or((pattern, ""));
                name.starts_with(start) && name.ends_with(end)
            })
        };
        let beside = said.beside.map(|(name, _)| name);
        let line = |name: String| {
            let none = String::new;
            let path = |path| OwnedObjectPath::try_from(path).expect("a path");
            let (loaded, active) = ("loaded".to_owned(), "active".to_owned());
            let is_beside = beside.as_ref() == Some(&name);
            let (unit, job) = (path(if is_beside { BESIDE } else { PATH }), path("/"));
            (name, none(), loaded, active, none(), none(), unit, 0, none(), job)
        };
        let all = std::iter::once(said.name).chain(said.others).chain(beside.clone());
        Ok(all.filter(matches).map(line).collect())
    }
}

struct Unit {
    said: Arc<Mutex<Said>>,
    is_beside: bool,
}

#[interface(name = "org.freedesktop.systemd1.Unit")]
impl Unit {
    #[zbus(property)]
    fn id(&self) -> String {
        let said = self.said.lock().unwrap().clone();
        if self.is_beside { said.beside.expect("a unit beside").0 } else { said.name }
    }

    #[zbus(property)]
    fn active_state(&self) -> &str {
        "active"
    }

    #[zbus(property)]
    fn drop_in_paths(&self) -> Vec<String> {
        self.said.lock().unwrap().drop_ins.clone()
    }

    #[zbus(property)]
    fn after(&self) -> Vec<String> {
        self.said.lock().unwrap().requires.clone()
    }

    #[zbus(property)]
    fn requires(&self) -> Vec<String> {
        self.said.lock().unwrap().requires.clone()
    }

    #[zbus(property)]
    fn need_daemon_reload(&self) -> bool {
        false
    }
}

struct Service {
    said: Arc<Mutex<Said>>,
    main: Arc<AtomicU32>,
    is_beside: bool,
}

type Start = (String, Vec<String>, bool, u64, u64, u64, u64, u32, i32, i32);

#[interface(name = "org.freedesktop.systemd1.Service")]
impl Service {
    #[zbus(property, name = "MainPID")]
    fn main_pid(&self) -> u32 {
        self.main.load(Ordering::Relaxed)
    }

    #[zbus(property, name = "Type")]
    fn service_type(&self) -> &str {
        if self.is_beside { "oneshot" } else { "notify" }
    }

    #[zbus(property, name = "TimeoutStopUSec")]
    fn timeout_stop_usec(&self) -> u64 {
        self.said.lock().unwrap().stop_usec
    }

    #[zbus(property, name = "WatchdogUSec")]
    fn watchdog_usec(&self) -> u64 {
        30_000_000
    }

    #[zbus(property)]
    fn kill_mode(&self) -> String {
        if self.is_beside {
            return "control-group".to_owned();
        }
        self.said.lock().unwrap().kill_mode.clone()
    }

    #[zbus(property)]
    fn kill_signal(&self) -> i32 {
        15
    }

    #[zbus(property, name = "SendSIGKILL")]
    fn send_sigkill(&self) -> bool {
        true
    }

    #[zbus(property)]
    fn restart(&self) -> &str {
        "always"
    }

    #[zbus(property)]
    fn restart_prevent_exit_status(&self) -> (Vec<i32>, Vec<i32>) {
        (vec![78], Vec::new())
    }

    #[zbus(property)]
    fn load_credential(&self) -> Vec<(String, String)> {
        self.said.lock().unwrap().credentials.clone()
    }

    #[zbus(property)]
    fn exec_start(&self) -> Vec<Start> {
        let said = self.said.lock().unwrap().clone();
        let command =
            if self.is_beside { said.beside.expect("a unit beside").1 } else { said.command };
        let path = command.first().cloned().unwrap_or_default();
        vec![(path, command, false, 0, 0, 0, 0, 0, 0, 0)]
    }

    #[zbus(property, name = "LimitNOFILESoft")]
    fn limit_nofile_soft(&self) -> u64 {
        65_536
    }
}

//! What systemd says of units, asked over D-Bus.
//!
//! A connection is made for a question and dropped after it; no answer is waited for longer than a
//! second. Whoever asks goes on without an answer: no bus, a policy that refuses and a manager
//! that is busy are all the same [`UnitError`]. Nothing here changes a unit.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use zbus::Connection;
use zbus::zvariant::{OwnedObjectPath, OwnedValue, Value};

/// How long an answer may take. PID 1 answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// No more units than these are read for one question.
const MOST_UNITS: usize = 50;

const SYSTEMD: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const SERVICE: &str = "org.freedesktop.systemd1.Service";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// systemd did not say it.
#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    /// No bus, no such unit, or a refusal.
    #[error("systemd was not asked over D-Bus: {0}")]
    Bus(#[from] zbus::Error),
    /// Nothing came.
    #[error("no answer over D-Bus within {PATIENCE:?}")]
    Silent,
}

/// What systemd has loaded of a service. Where a property is unknown to this version of systemd its
/// field is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceUnit {
    /// `queue-worker.service`
    pub name: String,
    /// `active`, `inactive`, `failed`, …
    pub active_state: String,
    /// 0 while there is none.
    pub main_pid: u32,
    /// TimeoutStopSec=
    pub stop_timeout: Option<Span>,
    /// Type=
    pub service_type: String,
    /// KillMode=
    pub kill_mode: String,
    /// KillSignal=, a number.
    pub kill_signal: i32,
    /// SendSIGKILL=
    pub send_sigkill: bool,
    /// Restart=
    pub restart: String,
    /// The exit codes of RestartPreventExitStatus=
    pub restart_prevent: Vec<i32>,
    /// WatchdogSec=
    pub watchdog: Option<Span>,
    /// StartLimitIntervalSec=
    pub start_limit_interval: Option<Span>,
    /// StartLimitBurst=
    pub start_limit_burst: u32,
    /// RestartSec=
    pub restart_delay: Option<Span>,
    /// The names of LoadCredential=
    pub credentials: Vec<String>,
    /// StateDirectory=
    pub state_directories: Vec<String>,
    /// OOMPolicy=
    pub oom_policy: String,
    /// LimitNOFILE=, the soft limit.
    pub open_files: Option<u64>,
    /// The command of ExecStart=
    pub command: Vec<String>,
    /// The unit's own file.
    pub file: PathBuf,
    /// What overrides it, in the order in which it is read.
    pub drop_ins: Vec<PathBuf>,
    /// After=
    pub after: Vec<String>,
    /// Requires=
    pub requires: Vec<String>,
    /// Whether files have changed since they were loaded.
    pub needs_reload: bool,
}

/// A limit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// So long.
    Of(Duration),
    /// `infinity`
    Endless,
}

impl Span {
    /// systemd writes microseconds, and all ones for infinity.
    const fn from_usec(usec: u64) -> Self {
        if usec == u64::MAX { Self::Endless } else { Self::Of(Duration::from_micros(usec)) }
    }
}

/// The service that this process belongs to.
pub async fn own_service() -> Result<ServiceUnit, UnitError> {
    bounded(async {
        let bus = connect().await?;
        // 0 is whoever asks, as the bus knows it.
        let path: OwnedObjectPath = call(&bus, "GetUnitByPID", &(0_u32,)).await?;
        read(&bus, &path).await
    })
    .await
}

/// The services that match a pattern such as `queue-worker*.service`, if they are loaded.
pub async fn services(pattern: &str) -> Result<Vec<ServiceUnit>, UnitError> {
    bounded(async {
        let bus = connect().await?;
        let mut units = Vec::new();
        for (_, path) in list(&bus, &[pattern]).await? {
            units.push(read(&bus, &path).await?);
        }
        units.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(units)
    })
    .await
}

/// The names of loaded units that match one of the patterns.
pub async fn names(patterns: &[&str]) -> Result<Vec<String>, UnitError> {
    bounded(async {
        let lines = list(&connect().await?, patterns).await?;
        Ok(lines.into_iter().map(|(name, _)| name).collect())
    })
    .await
}

/// Whether the machine's clock is kept in step with others'.
pub async fn clock_is_synchronized() -> Result<bool, UnitError> {
    const TIMEDATE: &str = "org.freedesktop.timedate1";
    bounded(async {
        let bus = Connection::system().await?;
        let question = (TIMEDATE, "NTPSynchronized");
        let path = "/org/freedesktop/timedate1";
        let answer =
            bus.call_method(Some(TIMEDATE), path, Some(PROPERTIES), "Get", &question).await?;
        let value: OwnedValue = answer.body().deserialize()?;
        bool::try_from(value).map_err(zbus::Error::from)
    })
    .await
}

async fn bounded<T>(
    question: impl Future<Output = Result<T, zbus::Error>>,
) -> Result<T, UnitError> {
    match tokio::time::timeout(PATIENCE, question).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(UnitError::Silent),
    }
}

/// The bus of the manager that has started us. A user's manager tells its pid to its children, who
/// may hand it on to theirs.
async fn connect() -> zbus::Result<Connection> {
    let manager = std::env::var("MANAGERPID").ok().and_then(|pid| pid.parse::<i32>().ok());
    let parent = rustix::process::getppid().map(rustix::process::Pid::as_raw_pid);
    if manager.is_some() && manager == parent {
        Connection::session().await
    } else {
        Connection::system().await
    }
}

async fn call<B, T>(bus: &Connection, method: &str, question: &B) -> zbus::Result<T>
where
    B: serde::Serialize + zbus::zvariant::DynamicType,
    T: serde::de::DeserializeOwned + zbus::zvariant::Type,
{
    let answer =
        bus.call_method(Some(SYSTEMD), MANAGER_PATH, Some(MANAGER), method, question).await?;
    answer.body().deserialize()
}

/// A unit as the manager lists it: name, description, whether it is loaded, its states, what it
/// follows, its path, and the job that it waits for.
type Line =
    (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

/// Names and paths of the loaded units that match.
async fn list(bus: &Connection, patterns: &[&str]) -> zbus::Result<Vec<(String, OwnedObjectPath)>> {
    let question = (Vec::<&str>::new(), patterns);
    let lines: Vec<Line> = call(bus, "ListUnitsByPatterns", &question).await?;
    let loaded = lines.into_iter().filter(|line| line.2 == "loaded").take(MOST_UNITS);
    Ok(loaded.map(|line| (line.0, line.6)).collect())
}

async fn read(bus: &Connection, path: &OwnedObjectPath) -> zbus::Result<ServiceUnit> {
    let mut properties = Properties::default();
    for interface in [UNIT, SERVICE] {
        let answer =
            bus.call_method(Some(SYSTEMD), path, Some(PROPERTIES), "GetAll", &interface).await?;
        properties.0.extend(answer.body().deserialize::<HashMap<String, OwnedValue>>()?);
    }
    Ok(properties.into_unit())
}

#[derive(Default)]
struct Properties(HashMap<String, OwnedValue>);

impl Properties {
    fn take<T: TryFrom<Value<'static>>>(&mut self, name: &str) -> Option<T> {
        let value = self.0.remove(name)?;
        T::try_from(Value::from(value)).ok()
    }

    fn text(&mut self, name: &str) -> String {
        self.take(name).unwrap_or_default()
    }

    fn span(&mut self, name: &str) -> Option<Span> {
        self.take(name).map(Span::from_usec)
    }

    fn into_unit(mut self) -> ServiceUnit {
        // Path, arguments, and what the last run was like.
        type Command = (String, Vec<String>, bool, u64, u64, u64, u64, u32, i32, i32);
        let commands: Vec<Command> = self.take("ExecStart").unwrap_or_default();
        let (codes, _): (Vec<i32>, Vec<i32>) =
            self.take("RestartPreventExitStatus").unwrap_or_default();
        let credentials: Vec<(String, String)> = self.take("LoadCredential").unwrap_or_default();
        let drop_ins: Vec<String> = self.take("DropInPaths").unwrap_or_default();
        ServiceUnit {
            name: self.text("Id"),
            active_state: self.text("ActiveState"),
            main_pid: self.take("MainPID").unwrap_or_default(),
            stop_timeout: self.span("TimeoutStopUSec"),
            service_type: self.text("Type"),
            kill_mode: self.text("KillMode"),
            kill_signal: self.take("KillSignal").unwrap_or_default(),
            send_sigkill: self.take("SendSIGKILL").unwrap_or_default(),
            restart: self.text("Restart"),
            restart_prevent: codes,
            watchdog: self.span("WatchdogUSec"),
            start_limit_interval: self.span("StartLimitIntervalUSec"),
            start_limit_burst: self.take("StartLimitBurst").unwrap_or_default(),
            restart_delay: self.span("RestartUSec"),
            credentials: credentials.into_iter().map(|(name, _)| name).collect(),
            state_directories: self.take("StateDirectory").unwrap_or_default(),
            oom_policy: self.text("OOMPolicy"),
            open_files: self.take("LimitNOFILESoft"),
            command: commands.into_iter().next().map(|command| command.1).unwrap_or_default(),
            file: self.text("FragmentPath").into(),
            drop_ins: drop_ins.into_iter().map(PathBuf::from).collect(),
            after: self.take("After").unwrap_or_default(),
            requires: self.take("Requires").unwrap_or_default(),
            needs_reload: self.take("NeedDaemonReload").unwrap_or_default(),
        }
    }
}

//! A container with the worker's unit, as the module makes it for containers.
//!
//! Its network is a loopback of its own, where two proxy devices stand for Redis and Postgres:
//! taking them away cuts the container off.

use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use crate::common::{Scene, instance, wait_for};
use crate::daemon::Daemon;
use crate::unit::{self, CONTAINER_DROP_IN, Committed};

/// The place of the program in the container.
const PROGRAM: &str = "/opt/queue-worker/bin/queue-worker";
const NAME: &str = "main";
const UNIT: &str = "queue-worker-main.service";
const STATE: &str = "/var/lib/queue-worker/main";
/// The account that the unit runs as.
const ACCOUNTS: [(&str, &str); 2] = [
    ("/etc/passwd", "queue-worker:x:990:990::/var/lib/queue-worker:/usr/sbin/nologin\n"),
    ("/etc/group", "queue-worker:x:990:\n"),
];
/// The ports inside.
const REDIS: u16 = 6379;
const POSTGRES: u16 = 5432;
/// What the unit wants to find, made anew at each boot as a module for secrets would.
const SECRETS: &str = "d /run/secrets 0755 root root\n\
    f /run/secrets/queue-worker.env 0600 root root - QUEUE_WORKER_POSTGRES__PASSWORD_FILE=postgres\n\
    f /run/secrets/queue-worker-postgres 0600 root root - nobody-asks-for-it\n";
/// What the generator of LXC's images writes for every service.
const GENERATED: &str = "[Service]\nProcSubset=all\nProtectProc=default\nProtectControlGroups=no\n\
    ProtectKernelTunables=no\nNoNewPrivileges=no\nLoadCredential=\nPrivateNetwork=no\n";
/// How many tasks the worker runs at once: all that a case has.
const CONCURRENCY: usize = 100;
/// How long the answer to a question may take while the container boots.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
const WAIT_LIMIT: Duration = Duration::from_secs(30);
const EVERY: Duration = Duration::from_millis(50);

/// One container.
pub(crate) struct Container {
    pub(crate) name: &'static str,
    daemon: Rc<Daemon>,
    redis: u16,
    postgres: u16,
}

impl Container {
    /// Makes the container. Its worker does not start at boot, so that a case knows who works.
    pub(crate) async fn new(daemon: &Rc<Daemon>, name: &'static str, scene: &Scene) -> Self {
        daemon.run(&["init", "debian", name, "--config", "security.privileged=true"]).await;
        let source = format!("source={}", env!("CARGO_BIN_EXE_queue-worker"));
        let path = format!("path={PROGRAM}");
        let add = ["config", "device", "add", name];
        daemon
            .run(&[&add[..], &["program", "disk", &source, &path, "readonly=true"]].concat())
            .await;
        let (redis, postgres) = (scene.redis.port(), scene.postgres.port());
        let container = Self { name, daemon: Rc::clone(daemon), redis, postgres };
        container.furnish(scene);
        container.connect().await;
        container
    }

    fn furnish(&self, scene: &Scene) {
        for (file, line) in ACCOUNTS {
            let text = fs::read_to_string(self.path(file)).expect("read the accounts");
            self.write(file, &(text + line));
        }
        let unit = format!("/etc/systemd/system/{UNIT}");
        self.write(&unit, &Committed::Container.text(NAME, PROGRAM));
        let migration = format!("/etc/systemd/system/{}", unit::migration_name(NAME));
        self.write(&migration, &Committed::Container.migration_text(NAME, PROGRAM));
        let (drop_in, text) = CONTAINER_DROP_IN;
        for unit in [unit, migration] {
            self.write(&format!("{unit}.d/{drop_in}"), text);
        }
        self.write("/etc/systemd/system/service.d/zzz-lxc-service.conf", GENERATED);
        self.write("/etc/tmpfiles.d/queue-worker.conf", SECRETS);
        let redis = format!("redis://127.0.0.1:{REDIS}/");
        let mut postgres = Url::parse(&scene.database).expect("a URL");
        postgres.set_port(Some(POSTGRES)).expect("the URL has a host");
        let drain = "[drain]\ntimeout = \"20s\"\nkill_after = \"3s\"\nmargin = \"3s\"\nstop_timeout = \"28s\"";
        let config = instance::config(&redis, postgres.as_str(), STATE, CONCURRENCY, drain);
        self.write(&format!("/etc/queue-worker/{NAME}.toml"), &config);
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.daemon.root(self.name).join(inside.trim_start_matches('/'))
    }

    fn write(&self, inside: &str, text: &str) {
        let path = self.path(inside);
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("make a folder");
        fs::write(&path, text).unwrap_or_else(|error| panic!("write {inside}: {error}"));
    }

    /// `incus VERB CONTAINER MORE`, which must succeed; tells how long it took.
    pub(crate) async fn incus(&self, verb: &str, more: &[&str]) -> Duration {
        let start = Instant::now();
        self.daemon.run(&[&[verb, self.name], more].concat()).await;
        start.elapsed()
    }

    /// Whether the container runs.
    pub(crate) async fn is_running(&self) -> bool {
        let words = ["list", self.name, "--format=csv", "--columns=s"];
        self.daemon.run(&words).await.trim() == "RUNNING"
    }

    /// Boots it unless it runs, and waits until its systemd has started everything.
    pub(crate) async fn boot(&self) {
        if !self.is_running().await {
            self.incus("start", &[]).await;
        }
        let booted = async || {
            // A command that comes too early may never be answered.
            let state = timeout(PROBE_LIMIT, self.run(&["systemctl", "is-system-running"]));
            matches!(state.await.as_deref(), Ok("running" | "degraded"))
        };
        wait_for(&format!("{} to boot", self.name), booted).await;
    }

    /// Runs a command inside, however it ends; gives its output.
    pub(crate) async fn run(&self, words: &[&str]) -> String {
        let output = self.daemon.output(&[&["exec", self.name, "--"], words].concat()).await;
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Starts the worker unless it runs, and waits until it pulls.
    pub(crate) async fn start_worker(&self) {
        self.boot().await;
        let active = async || {
            self.run(&["systemctl", "start", UNIT]).await;
            self.show("ActiveState").await == "active"
        };
        wait_for(&format!("the worker in {}", self.name), active).await;
        self.until_status("ready").await;
    }

    /// Stops the worker, if it runs.
    pub(crate) async fn stop_worker(&self) {
        self.run(&["systemctl", "stop", UNIT]).await;
    }

    /// A property of the unit.
    pub(crate) async fn show(&self, property: &str) -> String {
        self.run(&["systemctl", "show", "--value", "--property", property, UNIT]).await
    }

    /// Waits until the status text contains `text`; gives the whole.
    pub(crate) async fn until_status(&self, text: &str) -> String {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            let status = self.show("StatusText").await;
            if status.contains(text) {
                return status;
            }
            assert!(Instant::now() < deadline, "{}: {status:?}, not {text:?}", self.name);
            sleep(EVERY).await;
        }
    }

    /// What the doctor finds in a check.
    pub(crate) async fn finding(&self, check: &str) -> Value {
        let config = format!("/etc/queue-worker/{NAME}.toml");
        let words = [PROGRAM, "doctor", "--json", "--config", &config, "--unit", UNIT];
        let report = self.run(&words).await;
        let report: Value = serde_json::from_str(&report).expect("a report in JSON");
        let findings = report["findings"].as_array().expect("a list of findings");
        let found = findings.iter().find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("no {check} in {report:#}")).clone()
    }

    /// The end of the worker's journal.
    pub(crate) fn log(&self) -> String {
        let journal =
            ["journalctl", "--no-pager", "--output=short-precise", "--lines=60", "-u", UNIT];
        let words = [&["exec", self.name, "--"], &journal[..]].concat();
        let log = self.daemon.run_blocking(&words);
        // Keys of the unit that an older systemd does not know.
        let lines = log.lines().filter(|line| !line.contains("Unknown key"));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// How often `what` (`start` or `end`) was said of a task here.
    pub(crate) fn count(&self, id: &str, what: &str) -> usize {
        let path = self.path(&instance::journal_path(STATE));
        instance::count(&fs::read_to_string(path).unwrap_or_default(), id, what)
    }

    /// Waits until a task has started here.
    pub(crate) async fn until_started(&self, id: &str) {
        wait_for(&format!("{id} to start in {}", self.name), async || self.count(id, "start") > 0)
            .await;
    }

    /// Lets the handlers `gate` end, or wait again.
    pub(crate) fn gate(&self, open: bool) {
        let path = self.path(&instance::gate_path(STATE));
        if open {
            fs::write(path, "").expect("open the gate");
        } else {
            let _ = fs::remove_file(path);
        }
    }

    /// Connects it with Redis and Postgres, as far as it is not.
    pub(crate) async fn connect(&self) {
        let connected = self.daemon.run(&["config", "device", "list", self.name]).await;
        let servers = [("redis", REDIS, self.redis), ("postgres", POSTGRES, self.postgres)];
        for (device, inside, outside) in servers {
            if connected.lines().any(|line| line == device) {
                continue;
            }
            let listen = format!("listen=tcp:127.0.0.1:{inside}");
            let connect = format!("connect=tcp:127.0.0.1:{outside}");
            let add = ["config", "device", "add", self.name, device, "proxy", "bind=instance"];
            self.daemon.run(&[&add[..], &[&listen, &connect]].concat()).await;
        }
    }

    /// Cuts it off from a server: new and old connections are dead.
    pub(crate) async fn cut(&self, device: &str) {
        self.daemon.run(&["config", "device", "remove", self.name, device]).await;
    }
}

//! One instance of the worker under the guest's systemd, with a Redis and a Postgres of its own.
//!
//! The unit is the committed one; a case lays drop-ins over it. The handlers write `ID start FENCE`
//! and `ID end FENCE` into a file of the state directory. Dropping it stops the unit, whatever state
//! it is in.

use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

use tokio::process::Child;
use tokio::time::{Instant, sleep};

use super::guest::{Guest, OLD};
use super::unit::{self, Committed};
use crate::common::{GROUP, STREAM, Scene, instance, wait_for};

/// How long a condition may take.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// How many tasks the worker runs at once: all that a case has.
const CONCURRENCY: usize = 100;
/// `lease.min_idle` at its default.
const MIN_IDLE: Duration = Duration::from_secs(5);
/// More than a case has in flight.
const MOST_PENDING: usize = 10_000;
/// What an active target wants.
const WANTS: &str = "/etc/systemd/system/basic.target.wants";
/// How often it is looked at.
const EVERY: Duration = Duration::from_millis(50);

/// The instance of a case.
pub(crate) struct Service {
    pub(crate) guest: Rc<Guest>,
    pub(crate) scene: Scene,
    pub(crate) name: String,
}

impl Service {
    /// Servers, a configuration and the unit of a worker that runs programs; nothing runs yet.
    pub(crate) async fn new(guest: &Rc<Guest>, name: &str) -> Self {
        Self::with(guest, name, Committed::Exec).await
    }

    /// The same with another unit.
    pub(crate) async fn with(guest: &Rc<Guest>, name: &str, unit: Committed) -> Self {
        let scene = Scene::start().await;
        let service = Self { guest: Rc::clone(guest), scene, name: name.to_owned() };
        service.write_config("");
        guest.write(&service.unit_path(), &unit.text(name, OLD));
        let migration = format!("/etc/systemd/system/{}", unit::migration_name(name));
        guest.write(&migration, &unit.migration_text(name, OLD));
        // Wanted by an active target it stays loaded after its end, with its result.
        let wanted = guest.path(&format!("{WANTS}/{}", service.unit()));
        std::fs::create_dir_all(guest.path(WANTS)).expect("make a folder");
        std::os::unix::fs::symlink(service.unit_path(), wanted).expect("link the unit");
        service.daemon_reload().await;
        service
    }

    /// Its name for systemctl.
    pub(crate) fn unit(&self) -> String {
        unit::name(&self.name)
    }

    fn unit_path(&self) -> String {
        format!("/etc/systemd/system/{}", self.unit())
    }

    /// Its state directory.
    pub(crate) fn state(&self) -> String {
        format!("/var/lib/queue-worker/{}", self.name)
    }

    pub(crate) fn config_path(&self) -> String {
        format!("/etc/queue-worker/{}.toml", self.name)
    }

    /// Writes the configuration; `more` holds further keys of `[drain]`, then tables.
    pub(crate) fn write_config(&self, more: &str) {
        let (redis, postgres) = (self.scene.redis.url(), &self.scene.database);
        let more = format!("[drain]\n{more}");
        let text = instance::config(&redis, postgres, &self.state(), CONCURRENCY, &more);
        self.guest.write(&self.config_path(), &text);
    }

    /// Lets the handlers `gate` end.
    pub(crate) fn open_gate(&self) {
        self.guest.write(&instance::gate_path(&self.state()), "");
    }

    /// How often `what` (`start` or `end`) was said of a task.
    pub(crate) fn count(&self, id: &str, what: &str) -> usize {
        instance::count(&self.guest.read(&instance::journal_path(&self.state())), id, what)
    }

    /// Waits until `what` has been said of a task so many times.
    pub(crate) async fn until_said(&self, id: &str, what: &str, times: usize) {
        wait_for(&format!("{id} to {what}, {times} times"), async || self.count(id, what) >= times)
            .await;
    }

    /// Lays a drop-in over the unit.
    pub(crate) async fn drop_in(&self, file: &str, text: &str) {
        self.guest.write(&format!("{}.d/{file}", self.unit_path()), text);
        self.daemon_reload().await;
    }

    /// Lets the unit that migrates do nothing.
    pub(crate) async fn skip_migration(&self) {
        let unit = unit::migration_name(&self.name);
        let path = format!("/etc/systemd/system/{unit}.d/50-nothing.conf");
        self.guest.write(&path, "[Service]\nExecStart=\nExecStart=/bin/true\n");
        self.daemon_reload().await;
    }

    /// Writes the unit anew, for a deploy: its text with this done to it.
    pub(crate) fn rewrite(&self, change: impl FnOnce(&str) -> String) {
        let path = self.unit_path();
        self.guest.write(&path, &change(&self.guest.read(&path)));
    }

    pub(crate) async fn daemon_reload(&self) {
        self.guest.run(["systemctl", "daemon-reload"]).await;
    }

    /// `systemctl VERB UNIT`, which must succeed; tells how long it took.
    pub(crate) async fn systemctl(&self, verb: &str) -> Duration {
        let start = Instant::now();
        self.guest.run(["systemctl", verb, &self.unit()]).await;
        start.elapsed()
    }

    /// The same without waiting.
    pub(crate) fn spawn_systemctl(&self, verb: &str) -> Child {
        self.guest.command(["systemctl", verb, &self.unit()]).spawn().expect("run nsenter")
    }

    /// Starts it and waits until it pulls.
    pub(crate) async fn start(&self) {
        self.systemctl("start").await;
        self.until_status("ready").await;
    }

    /// Starts it, and a task that runs until the gate opens.
    pub(crate) async fn start_with_task(&self, id: &str) {
        self.start().await;
        self.scene.task(id, "gate", "").await;
        self.until_said(id, "start", 1).await;
    }

    /// A property of the unit.
    pub(crate) async fn show(&self, property: &str) -> String {
        self.guest.show(&self.unit(), property).await
    }

    /// The main process by its id in the guest.
    pub(crate) async fn pid(&self) -> u32 {
        self.show("MainPID").await.parse().expect("a process id")
    }

    /// The program that the main process runs.
    pub(crate) async fn program(&self) -> String {
        let link = format!("/proc/{}/exe", self.pid().await);
        self.guest.run(["readlink", &link]).await.trim().to_owned()
    }

    /// Waits until a property of the unit is `value`.
    pub(crate) async fn until(&self, property: &str, value: &str) {
        self.until_shown(property, |shown| shown == value, value).await;
    }

    /// Waits until the status text contains `text`; gives the whole.
    pub(crate) async fn until_status(&self, text: &str) -> String {
        self.until_shown("StatusText", |shown| shown.contains(text), text).await
    }

    async fn until_shown(
        &self,
        property: &str,
        fits: impl Fn(&str) -> bool,
        wanted: &str,
    ) -> String {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            let shown = self.show(property).await;
            if fits(&shown) {
                return shown;
            }
            assert!(
                Instant::now() < deadline,
                "{property} of {} is {shown:?}, not {wanted:?}",
                self.unit()
            );
            sleep(EVERY).await;
        }
    }

    /// What the journal has of the unit, message by message.
    pub(crate) async fn log(&self) -> String {
        let unit = self.unit();
        self.guest.run(["journalctl", "--no-pager", "--output=cat", "--unit", &unit]).await
    }

    /// How many messages contain `text`.
    pub(crate) async fn logged(&self, text: &str) -> usize {
        self.log().await.lines().filter(|line| line.contains(text)).count()
    }

    pub(crate) async fn until_logged(&self, text: &str) {
        wait_for(&format!("{} to log {text:?}", self.unit()), async || self.logged(text).await > 0)
            .await;
    }

    /// Stops it, which must drain in time, and checks that nothing is left behind.
    pub(crate) async fn stop_clean(&self) -> Duration {
        let took = self.systemctl("stop").await;
        self.assert_clean_end().await;
        took
    }

    /// The last process exited with 0, and left no lock and no delivery that has to be waited for.
    pub(crate) async fn assert_clean_end(&self) {
        let mut end = String::new();
        for property in ["ActiveState", "Result", "ExecMainCode", "ExecMainStatus"] {
            let _ = write!(end, "{} ", self.show(property).await);
        }
        assert_eq!(end.trim(), "inactive success 1 0", "state, result, how it ended, exit code");
        assert_eq!(self.scene.locks().await, Vec::<String>::new());
        assert_eq!(self.held().await, 0, "deliveries that nobody can claim at once");
    }

    /// How many deliveries are pending that nobody may claim at once.
    pub(crate) async fn held(&self) -> u64 {
        self.scene.pending().await - self.claimable().await
    }

    /// How many pending entries another worker may claim at once.
    async fn claimable(&self) -> u64 {
        let mut connection = self.scene.redis_connection().await;
        let mut command = redis::cmd("XPENDING");
        command.arg(STREAM).arg(GROUP).arg("IDLE").arg(MIN_IDLE.as_millis().to_string());
        command.arg("-").arg("+").arg(MOST_PENDING);
        // Without a group, as before the first start, there is nothing.
        let entries: Vec<redis::Value> =
            command.query_async(&mut connection).await.unwrap_or_default();
        entries.len().try_into().expect("a count")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let unit = self.unit();
        self.guest.run_blocking(&["systemctl", "--no-block", "stop", &unit]);
        self.guest.run_blocking(&["systemctl", "kill", "--signal=KILL", &unit]);
        self.guest.run_blocking(&["systemctl", "stop", &unit]);
    }
}

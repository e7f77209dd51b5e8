//! The real binary and everything that people get wrong: files, servers, secrets, entries.
//!
//! Each mistake must be named once and in plain words, must cost readiness and not the process
//! (only a broken configuration ends it, with 78), and must be over by itself once it is mended.

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod config;
mod entries;
mod life;
mod secrets;
mod stores;

use common::{Scene, Systemd, Worker};

/// The unit's WatchdogSec, in microseconds. The worker answers each second, since that is how often
/// it renews its status; half of the limit would be the least.
const WATCHDOG_USEC: &str = "4000000";

/// Seconds that a wrong state has to last before its log is judged: several probes of a store.
const A_WHILE: usize = 3;

/// A worker that believes it runs under systemd.
struct Unit {
    systemd: Systemd,
    worker: Worker,
}

impl Unit {
    fn start(scene: &Scene, name: &str, environment: &[(&str, &str)]) -> Self {
        let systemd = Systemd::start();
        let own = [("NOTIFY_SOCKET", systemd.socket()), ("WATCHDOG_USEC", WATCHDOG_USEC)];
        let environment = [&own, environment].concat();
        let worker = scene.spawn_worker(name, &environment);
        Self { systemd, worker }
    }

    /// It told systemd that it has started, says in its status why it does not work, has told the
    /// log once, and goes on living.
    async fn waits_for(&self, reason: &str) {
        self.systemd.until("READY=1").await;
        self.keeps_waiting_for(reason).await;
    }

    async fn keeps_waiting_for(&self, reason: &str) {
        self.systemd.until_status(&["not ready: ", reason]).await;
        self.systemd.until_more(A_WHILE, "WATCHDOG=1").await;
        self.systemd.until_status(&["not ready: ", reason]).await;
        let told = self.warnings().iter().filter(|line| line.contains(reason)).count();
        assert_eq!(told, 1, "{reason:?} is told once:\n{}", self.worker.log());
    }

    fn warnings(&self) -> Vec<String> {
        let log = self.worker.log();
        let loud = |line: &&str| line.contains("WARN") || line.contains("ERROR");
        log.lines().filter(loud).map(str::to_owned).collect()
    }

    /// It works again, without anybody's help, and has said nothing louder than the reason.
    async fn works_again(&self, scene: &Scene, task: &str) {
        self.worker.until_logged("is back after").await;
        scene.task(task, "effect", "").await;
        scene.until_status(task, "succeeded").await;
        self.systemd.until_status(&["ready, idle"]).await;
        let gap = self.systemd.longest_gap("WATCHDOG=1");
        assert!(gap.as_micros() < WATCHDOG_USEC.parse().unwrap(), "silent for {gap:?}");
        assert_eq!(self.systemd.count("STOPPING=1"), 0);
    }

    async fn ends(mut self) {
        self.worker.terminate().await;
        self.systemd.until("STOPPING=1").await;
    }
}

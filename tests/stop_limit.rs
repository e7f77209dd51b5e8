//! What the worker knows of its unit, and what it does with a stop that is too short or may be
//! extended: the real binary, a private D-Bus, and the test as systemd.

mod bus;
mod common;

use std::time::Duration;

use bus::{Bus, Said};
use common::{Scene, Systemd, Worker, wait_for};
use rustix::process::Signal;

/// The parts of a drain in milliseconds, as `status` tells them, and the limit.
type Told = ([u64; 3], Option<u64>);

struct Unit {
    systemd: Systemd,
    worker: Worker,
}

impl Unit {
    async fn start(scene: &Scene, bus: Option<&Bus>, environment: &[(&str, &str)]) -> Self {
        let systemd = Systemd::start();
        let nowhere = format!("unix:path={}", scene.path().join("no-bus").display());
        let address = bus.map_or(nowhere.as_str(), Bus::address);
        let own = [("NOTIFY_SOCKET", systemd.socket()), ("DBUS_SYSTEM_BUS_ADDRESS", address)];
        let worker = scene.worker_with("a", &[&own, environment].concat()).await;
        systemd.until("READY=1").await;
        Self { systemd, worker }
    }

    /// What `status` tells of the worker's drain.
    async fn told(&self, scene: &Scene) -> Told {
        let state = scene.path().join("a");
        let mut command = scene.command(["status", "--json"]);
        let output = command.env("QUEUE_WORKER_WORKER__STATE_DIR", state).output().await;
        let output = output.expect("run status");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let drain = &report["local"]["drain"];
        let part = |name: &str| drain[name].as_u64().unwrap_or_else(|| panic!("{name}: {report}"));
        let parts = ["timeout_ms", "kill_after_ms", "margin_ms"].map(part);
        (parts, drain["stop_timeout_ms"].as_u64())
    }
}

const AS_CONFIGURED: [u64; 3] = [25_000, 5_000, 5_000];

#[tokio::test]
async fn a_drain_is_fitted_into_what_the_unit_allows() {
    let Some(bus) = Bus::start(Said { stop_usec: 20_000_000, ..Said::default() }).await else {
        return;
    };
    let scene = Scene::start().await;
    let mut unit = Unit::start(&scene, Some(&bus), &[]).await;
    assert_eq!(unit.told(&scene).await, ([10_000, 5_000, 5_000], Some(20_000)));
    assert_eq!(unit.worker.logged("TimeoutStopSec is 20s: shortened to 10s + 5s + 5s"), 1);
    let mut command = scene.command(["status"]);
    let state = scene.path().join("a");
    let page = command.env("QUEUE_WORKER_WORKER__STATE_DIR", state).output().await;
    let page = String::from_utf8(page.expect("run status").stdout).expect("text");
    let pid = unit.worker.pid().as_raw_nonzero();
    assert!(
        page.contains(&format!("pid {pid}; a drain may take 10s + 5s + 5s, a stop 20s")),
        "{page}"
    );

    // A reload sees what has changed in the unit meanwhile.
    bus.say(|said| said.stop_usec = 45_000_000);
    unit.worker.signal(Signal::HUP);
    unit.worker.until_logged("a stop may take 45s").await;
    assert_eq!(unit.told(&scene).await, (AS_CONFIGURED, Some(45_000)));
    bus.say(|said| said.stop_usec = u64::MAX);
    unit.worker.signal(Signal::HUP);
    wait_for("an endless limit", async || unit.told(&scene).await == (AS_CONFIGURED, None)).await;
    bus.say(|said| said.stop_usec = 4_500_000);
    unit.worker.signal(Signal::HUP);
    let short = ([0, 0, 4_500], Some(4_500));
    wait_for("a very short one", async || unit.told(&scene).await == short).await;

    // What is left of the drain is obeyed: the task is given back and nothing is cut off.
    scene.task("t", "sleep", "60").await;
    scene.until_journal("t", "start").await;
    let took = unit.worker.terminate().await;
    assert!(took < Duration::from_millis(4_500), "{took:?}");
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.crashes), ("released", 0));
}

#[tokio::test]
async fn a_limit_that_was_lowered_since_the_start_is_seen_at_the_stop() {
    let Some(bus) = Bus::start(Said::default()).await else { return };
    let scene = Scene::start().await;
    let mut unit = Unit::start(&scene, Some(&bus), &[]).await;
    assert_eq!(unit.told(&scene).await, (AS_CONFIGURED, Some(90_000)));
    scene.task("t", "sleep", "60").await;
    scene.until_journal("t", "start").await;
    // A daemon-reload, of which the worker hears nothing.
    bus.say(|said| said.stop_usec = 12_000_000);
    let took = unit.worker.terminate().await;
    assert!(took < Duration::from_secs(12), "{took:?}");
    assert_eq!(unit.worker.logged("TimeoutStopSec is 12s: shortened to 2s + 5s + 5s"), 1);
    let row = scene.row("t").await.expect("claimed");
    assert_eq!((row.status.as_str(), row.crashes), ("released", 0));
}

#[tokio::test]
async fn without_an_answer_the_configuration_decides() {
    let scene = Scene::start().await;
    let stop = ("QUEUE_WORKER_DRAIN__STOP_TIMEOUT", "45s");
    let mut unit = Unit::start(&scene, None, &[stop]).await;
    assert_eq!(unit.told(&scene).await, (AS_CONFIGURED, Some(45_000)));
    assert!(!unit.worker.log().contains("WARN"), "{}", unit.worker.log());
    unit.worker.terminate().await;

    let Some(bus) = Bus::start(Said { stop_usec: 20_000_000, ..Said::default() }).await else {
        return;
    };
    for change in [
        |said: &mut Said| said.refuses = true,
        |said: &mut Said| said.is_of_another = true,
        |said: &mut Said| said.delay = Duration::from_secs(600),
    ] {
        bus.say(|said| *said = Said { stop_usec: 20_000_000, ..Said::default() });
        bus.say(change);
        let mut unit = Unit::start(&scene, Some(&bus), &[]).await;
        assert_eq!(unit.told(&scene).await, (AS_CONFIGURED, None));
        assert!(!unit.worker.log().contains("WARN"), "{}", unit.worker.log());
        unit.worker.terminate().await;
    }

    // A long drain under a limit that nobody knows is worth a word.
    let timeout = ("QUEUE_WORKER_DRAIN__TIMEOUT", "5m");
    let mut unit = Unit::start(&scene, None, &[timeout]).await;
    assert_eq!(unit.told(&scene).await, ([300_000, 5_000, 5_000], None));
    assert_eq!(unit.worker.logged("set drain.stop_timeout"), 1);
    unit.worker.terminate().await;
}

/// What was heard of `EXTEND_TIMEOUT_USEC`, in microseconds.
fn extensions(systemd: &Systemd) -> Vec<u64> {
    let heard = systemd.heard();
    let lines = heard.iter().flat_map(|heard| &heard.lines);
    let values = lines.filter_map(|line| line.strip_prefix("EXTEND_TIMEOUT_USEC="));
    values.map(|usec| usec.parse().expect("a number")).collect()
}

const SHORT: [(&str, &str); 3] = [
    ("QUEUE_WORKER_DRAIN__TIMEOUT", "3s"),
    ("QUEUE_WORKER_DRAIN__KILL_AFTER", "1s"),
    ("QUEUE_WORKER_DRAIN__MARGIN", "4s"),
];

#[tokio::test]
async fn a_drain_in_which_tasks_end_is_extended_up_to_its_cap() {
    let scene = Scene::start().await;
    let cap = ("QUEUE_WORKER_DRAIN__EXTEND_AT_MOST", "4s");
    let mut unit = Unit::start(&scene, None, &[&SHORT[..], &[cap]].concat()).await;
    for (id, seconds) in [("1", "2"), ("2", "4"), ("3", "6"), ("stuck", "60")] {
        scene.task(id, "sleep", seconds).await;
        scene.until_journal(id, "start").await;
    }
    unit.worker.signal(Signal::TERM);
    unit.systemd.until_status(&["draining: 4 tasks", "while tasks end"]).await;
    let (status, took) = unit.worker.exit(Duration::from_secs(60)).await;
    assert!(status.success(), "{status}\n{}", unit.worker.log());
    for id in ["1", "2", "3"] {
        assert_eq!(scene.row(id).await.expect("claimed").status, "succeeded", "{id}");
    }
    assert_eq!(scene.row("stuck").await.expect("claimed").status, "released");
    assert!(took < Duration::from_secs(3 + 4 + 1 + 4), "beyond the cap: {took:?}");
    let told = extensions(&unit.systemd);
    assert!((2..=3).contains(&told.len()), "{told:?}");
    // What a drain of its own takes at most, from the moment of the message.
    assert!(told.iter().all(|usec| *usec <= 8_000_000 && *usec > 4_000_000), "{told:?}");
    assert!(unit.systemd.count("STOPPING=1") == 1);
}

#[tokio::test]
async fn a_drain_without_progress_is_not_extended_and_by_default_none_is() {
    let scene = Scene::start().await;
    let cap = ("QUEUE_WORKER_DRAIN__EXTEND_AT_MOST", "60s");
    for (stuck, ends, environment) in
        [("1", None, [&SHORT[..], &[cap]].concat()), ("2", Some("3"), SHORT.to_vec())]
    {
        let mut unit = Unit::start(&scene, None, &environment).await;
        scene.task(stuck, "sleep", "60").await;
        scene.until_journal(stuck, "start").await;
        if let Some(ends) = ends {
            scene.task(ends, "sleep", "1").await;
            scene.until_journal(ends, "start").await;
        }
        unit.worker.signal(Signal::TERM);
        let (status, took) = unit.worker.exit(Duration::from_secs(60)).await;
        assert!(status.success(), "{status}\n{}", unit.worker.log());
        assert!(took < Duration::from_secs(3 + 1 + 4), "{took:?}");
        assert_eq!(extensions(&unit.systemd), Vec::<u64>::new());
    }
}

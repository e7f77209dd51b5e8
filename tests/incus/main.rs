//! Workers in containers of a real Incus: `make test-incus`, as root.
//!
//! One line per case: pass, FAIL or SKIP, seconds, and a figure where it tells something. Without
//! `--run` nothing is done. Redis and Postgres are private servers on this machine's loopback.

#[path = "../common/mod.rs"]
mod common;
#[path = "../systemd/unit.rs"]
#[allow(dead_code, reason = "the cases here use one of the units")]
mod unit;

mod cases;
mod container;
mod daemon;
mod image;

use std::process::ExitCode;
use std::rc::Rc;

use common::{Asked, Case, Scene, Tally, asked, case, skip_all, wait_for};
use container::Container;
use daemon::Daemon;

const WHAT: &str = "workers in containers of Incus";

const CASES: &[Case<Ground>] = &[
    case!("restart-force", 60, cases::restart_by_force),
    case!("stop", 60, cases::stop_in_time),
    case!("stop-timeout-too-short", 60, cases::stop_too_short),
    case!("stop-force", 60, cases::stop_by_force),
    case!("network-cut", 60, cases::cut_off),
    case!("redis-cut", 60, cases::cut_off_from_redis),
    case!("doctor", 60, cases::doctor),
    case!("host-shutdown", 60, cases::host_shutdown),
];

/// What the cases share: two containers and the servers that they work for.
pub(crate) struct Ground {
    // First, so that the containers end while their servers are there.
    daemon: Rc<Daemon>,
    a: Container,
    b: Container,
    scene: Scene,
}

impl common::Ground for Ground {
    fn explain(&self, _: &str) -> String {
        format!("--- a\n{}\n--- b\n{}", self.a.log(), self.b.log())
    }
}

impl Ground {
    /// Fails where no container starts: the kernel or what surrounds this machine forbids it.
    async fn new(daemon: Daemon) -> Result<Self, String> {
        let daemon = Rc::new(daemon);
        let scene = Scene::start().await;
        let a = Container::new(&daemon, "a", &scene).await;
        let b = Container::new(&daemon, "b", &scene).await;
        daemon.try_run(&["start", a.name]).await?;
        Ok(Self { daemon, a, b, scene })
    }

    /// A task that runs in the first container, while the other has no worker.
    async fn start_on_a(&self, id: &str, kind: &str, payload: &str) {
        for container in [&self.a, &self.b] {
            container.connect().await;
        }
        self.b.boot().await;
        self.b.stop_worker().await;
        self.a.start_worker().await;
        for container in [&self.a, &self.b] {
            container.gate(false);
        }
        self.scene.task(id, kind, payload).await;
        self.a.until_started(id).await;
    }

    /// The token in the only lock, if there is one.
    async fn lock(&self) -> Option<String> {
        let keys = self.scene.locks().await;
        let mut connection = self.scene.redis_connection().await;
        let key = keys.first()?;
        redis::cmd("GET").arg(key).query_async(&mut connection).await.expect("GET")
    }

    /// Neither entry nor lock is left.
    async fn assert_nothing_left(&self) {
        self.scene.until_empty().await;
        wait_for("no lock", async || self.scene.locks().await.is_empty()).await;
    }
}

async fn run(names: &[String]) -> ExitCode {
    let image = match image::ready().await {
        Ok(image) => image,
        Err(reason) => return skip_all(WHAT, &reason),
    };
    let daemon = match Daemon::start().await {
        Ok(daemon) => daemon,
        Err(reason) => return skip_all(WHAT, &reason),
    };
    let image = image.to_str().expect("the target directory is UTF-8");
    daemon.run(&["image", "import", image, "--alias", "debian"]).await;
    let ground = match Ground::new(daemon).await {
        Ok(ground) => Rc::new(ground),
        Err(reason) => return skip_all(WHAT, &reason),
    };
    let mut tally = Tally::default();
    tally.run(CASES, names, &ground).await;
    tally.end()
}

fn main() -> ExitCode {
    let Asked::Run(names) = asked() else { return ExitCode::SUCCESS };
    if let Some(reason) = daemon::obstacle() {
        return skip_all(WHAT, &reason);
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("start a runtime").block_on(run(&names))
}

//! A coordinator that is stuck: the pages say so, since they have a thread of their own.
//!
//! Alone in its binary: the worker runs inside of the test's process and takes over its signals.

#[path = "web/client.rs"]
mod client;
mod common;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use client::get;
use common::{Scene, wait_for};
use queue_worker::config::{Config, Environment};
use queue_worker::domain::Failure;
use queue_worker::handler::registry::{EntryOptions, Registry};
use queue_worker::handler::{ExternalHandler, Run};
use queue_worker::supervisor::{self, Startup};
use rustix::process::{Signal, getpid, kill_process};

/// How long the handler blocks at most, should the test fail.
const MOST: Duration = Duration::from_secs(60);

/// Claims to be light, and blocks the coordinating thread until it is let go.
struct Blocks(Mutex<Receiver<()>>);

#[async_trait]
impl ExternalHandler for Blocks {
    async fn run(&self, _run: Run) -> Result<Option<Bytes>, Failure> {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(MOST);
        Ok(None)
    }

    fn is_light(&self) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_coordinator_is_named() {
    let scene = Scene::start().await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);
    scene.write_config(&format!(
        "[web]\nlisten = \"127.0.0.1:{port}\"\n[worker]\nstate_dir = \"{}\"",
        scene.path().display()
    ));
    let config = Config::load(&scene.config_path(), &Environment::of_process()).expect("loads");
    let (let_go, gate) = channel();
    let native = Registry::builder()
        .external("blocks", EntryOptions::default(), Blocks(Mutex::new(gate)))
        .build()
        .expect("a registry");
    let startup = Startup { config, config_path: scene.config_path(), native, log: None };
    let worker = std::thread::spawn(move || supervisor::run(startup));
    wait_for("readiness", async || get(port, "/readyz").await.0 == 200).await;

    scene.task("t", "blocks", "").await;
    wait_for("the coordinator to be named", async || {
        let (status, body) = get(port, "/livez").await;
        status == 503 && body.starts_with("stuck: coordinator has not come round for 1")
    })
    .await;
    assert_eq!(get(port, "/metrics").await.0, 200, "the pages go on");

    let_go.send(()).expect("the handler waits");
    wait_for("life", async || get(port, "/livez").await.0 == 200).await;
    scene.until_status("t", "succeeded").await;
    kill_process(getpid(), Signal::TERM).expect("signal this process");
    let ended = tokio::task::spawn_blocking(move || worker.join()).await.expect("no panic");
    ended.expect("no panic").expect("drained");
    wait_for("the listener to be gone", async || get(port, "/livez").await.0 == 0).await;
}

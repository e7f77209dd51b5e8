//! What several integration tests share: a proxy that plays a bad network, a scene of servers and
//! workers, the side of systemd, clients of other languages, and waiting for events.
//!
//! Servers come from `queue_worker::private_servers`. Nothing here sleeps to wait for something.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    unused_macros,
    reason = "each test binary uses another part"
)]

mod cases;
mod clients;
pub mod instance;
mod proxy;
mod scene;
mod systemd;
mod worker;

use std::time::Duration;

pub(crate) use cases::case;
pub use cases::{Asked, Case, Ground, Running, Tally, Verdict, asked, no_rights, skip_all};
pub use clients::{node_redis, redis_py};
pub use proxy::TcpProxy;
pub use scene::{GROUP, Letter, QUEUE, STREAM, Scene, TaskRow};
pub use systemd::{Heard, Systemd};
pub use worker::Worker;

/// How long an event may take before a test gives up; generous, for a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// How often the event is looked for.
const WAIT_EVERY: Duration = Duration::from_millis(10);

/// Waits until `condition` is true; panics with `what` after half a minute.
pub async fn wait_for(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + WAIT_LIMIT;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "waited {WAIT_LIMIT:?} for {what}");
        tokio::time::sleep(WAIT_EVERY).await;
    }
}

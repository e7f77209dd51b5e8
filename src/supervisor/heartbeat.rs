//! The heartbeat's thread: a runtime and connections of its own, so that nothing else delays it.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::build;
use super::start::{StartError, system};
use crate::clock::Clock;
use crate::config::Config;
use crate::domain::WorkerId;
use crate::worker::heartbeat::{self, Beats};

/// The running thread, and how to end it.
pub(super) struct Heartbeat {
    thread: Option<std::thread::JoinHandle<()>>,
    end: Option<oneshot::Sender<()>>,
}

impl Heartbeat {
    /// Starts the thread.
    pub(super) fn start(
        config: &Config,
        worker: WorkerId,
        beats: &Arc<Beats>,
    ) -> Result<Self, StartError> {
        let (end, ended) = oneshot::channel::<()>();
        let (config, beats) = (config.clone(), Arc::clone(beats));
        let thread = std::thread::Builder::new()
            .name("heartbeat".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let Ok(runtime) = runtime else {
                    tracing::error!(
                        "the heartbeat's runtime did not start; the watchdog will tell"
                    );
                    return;
                };
                runtime.block_on(async {
                    // The coordinator built the same ones before: this cannot fail.
                    let Ok(built) = build::stores(&config, worker, Clock::System) else { return };
                    let stop = async { drop(ended.await) };
                    heartbeat::run(&beats, &built.stores, config.lease.heartbeat, stop).await;
                });
            })
            .map_err(system("start the heartbeat's thread"))?;
        Ok(Self { thread: Some(thread), end: Some(end) })
    }

    /// Asks it to end.
    pub(super) fn end(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
    }

    /// Joins the thread if it has ended; it is not waited for.
    pub(super) fn join_ended(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.is_finished()
        {
            let _ = thread.join();
        }
    }
}

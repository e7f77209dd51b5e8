//! Starts the pages about health and metrics.

use std::sync::Arc;

use crate::config::Config;
use crate::web::{Metrics, Pages, Server, Vitals};
use crate::worker::counts::Counts;
use crate::worker::progress::Progress;
use crate::worker::slots::Slots;
use crate::worker::{Context, Served};

/// What the watchdog and HTTP look at.
pub(super) fn vitals(context: &Context, queues: &[(Served, Arc<Slots>, Progress)]) -> Vitals {
    Vitals {
        phase: context.phase.clone(),
        health: Arc::clone(&context.health),
        beats: Arc::clone(&context.beats),
        coordinator: Progress::new(context.clock),
        queues: queues.iter().map(|(q, _, progress)| (q.name.clone(), progress.clone())).collect(),
    }
}

/// Health and metrics over HTTP, where they are wanted. The worker goes on without them.
pub(super) fn start(
    config: &Config,
    vitals: &Vitals,
    queues: &[(Served, Arc<Slots>, Progress)],
    counts: Arc<Counts>,
) -> Option<Server> {
    let listen = config.web.listen?;
    let slots = queues.iter().map(|(q, slots, _)| (q.name.clone(), Arc::clone(slots))).collect();
    let metrics = Metrics::new(vitals.clone(), slots, counts);
    match Server::start(listen, Pages::new(vitals.clone(), metrics)) {
        Ok(server) => Some(server),
        Err(error) => {
            tracing::warn!("no health and no metrics over HTTP: failed to start a thread: {error}");
            None
        }
    }
}

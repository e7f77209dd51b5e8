//! The page of metrics: what the worker has counted, and how things stand at the moment.
//!
//! Gauges are set when the page is asked for, so that nobody has to keep them true in between.

use std::sync::Arc;

use prometheus::{GaugeVec, IntCounterVec, TextEncoder};

use super::Vitals;
use crate::domain::QueueName;
use crate::protocol::drain::Phase;
use crate::telemetry::metrics;
use crate::worker::counts::Counts;
use crate::worker::health::State;
use crate::worker::slots::Slots;

/// Every phase's label.
const PHASES: [&str; 7] =
    ["running", "quiet", "background", "draining", "interrupting", "abandoning", "stopped"];

/// Everything that the page shows.
#[derive(Debug)]
pub struct Metrics {
    vitals: Vitals,
    queues: Vec<(QueueName, Arc<Slots>)>,
    counts: Arc<Counts>,
    in_flight: GaugeVec,
    running: GaugeVec,
    oldest: GaugeVec,
    heartbeat_age: GaugeVec,
    phase: GaugeVec,
    store_up: GaugeVec,
    leases_lost: IntCounterVec,
    store_errors: IntCounterVec,
    store_probes: IntCounterVec,
}

impl Metrics {
    /// The page of a worker. At most one for each `counts`.
    pub fn new(vitals: Vitals, queues: Vec<(QueueName, Arc<Slots>)>, counts: Arc<Counts>) -> Self {
        let registry = counts.registry();
        let build = metrics::BUILD_INFO.gauge(registry);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        Self {
            in_flight: metrics::IN_FLIGHT.gauge(registry),
            running: metrics::RUNNING.gauge(registry),
            oldest: metrics::OLDEST.gauge(registry),
            heartbeat_age: metrics::HEARTBEAT_AGE.gauge(registry),
            phase: metrics::PHASE.gauge(registry),
            store_up: metrics::STORE_UP.gauge(registry),
            leases_lost: metrics::LEASES_LOST.counter(registry),
            store_errors: metrics::STORE_ERRORS.counter(registry),
            store_probes: metrics::STORE_PROBES.counter(registry),
            vitals,
            queues,
            counts,
        }
    }

    /// The page as it is now. `&mut` since two at a time would count twice.
    pub fn render(&mut self) -> prometheus::Result<String> {
        self.look();
        TextEncoder::new().encode_to_string(&self.counts.registry().gather())
    }

    fn look(&self) {
        for (name, slots) in &self.queues {
            set(&self.in_flight, &[name.as_str()], count(slots.in_flight()));
            set(&self.running, &[name.as_str()], count(slots.running()));
        }
        let beats = &self.vitals.beats;
        let oldest = beats.census().1.unwrap_or_default();
        set(&self.oldest, &[], oldest.as_secs_f64());
        set(&self.heartbeat_age, &[], beats.silence().as_secs_f64());
        raise(&self.leases_lost, &[], beats.leases_lost());
        let now = phase_label(self.vitals.phase.get());
        for phase in PHASES {
            set(&self.phase, &[phase], f64::from(u8::from(phase == now)));
        }
        for store in self.vitals.health.stores() {
            let name = [store.name()];
            set(&self.store_up, &name, f64::from(u8::from(store.state() == State::Up)));
            raise(&self.store_errors, &name, store.errors());
            raise(&self.store_probes, &name, store.probes());
        }
    }
}

fn set(gauge: &GaugeVec, labels: &[&str], value: f64) {
    gauge.with_label_values(labels).set(value);
}

/// Lifts the counter to a number that somebody else counts.
fn raise(counter: &IntCounterVec, labels: &[&str], to: u64) {
    let counter = counter.with_label_values(labels);
    counter.inc_by(to.saturating_sub(counter.get()));
}

/// Exact below 2³², far above what a worker may hold.
fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn phase_label(phase: Phase) -> &'static str {
    match phase {
        Phase::Running => "running",
        Phase::Quiet => "quiet",
        Phase::Background => "background",
        Phase::Draining { .. } => "draining",
        Phase::Interrupting { .. } => "interrupting",
        Phase::Abandoning => "abandoning",
        Phase::Stopped => "stopped",
    }
}

//! Measures what waits in the stores, for the metrics of the queues that this worker serves.
//!
//! Only where the page is served, now and then, and on the connections that the worker has anyway;
//! it judges no store. What a store does not tell is no series: an old number would look like a new
//! one. Every worker tells the same of a queue.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{GaugeVec, Registry};

use crate::clock::Clock;
use crate::domain::QueueName;
use crate::ledger::PostgresLedger;
use crate::queue::{Backlog, RedisQueue};
use crate::telemetry::metrics;
use crate::worker::health::Health;

/// Between two looks: what alerts on a backlog does not need to be faster.
const EVERY: Duration = Duration::from_secs(15);

/// What is asked, and the gauges that tell it.
pub(super) struct BacklogGauges {
    queues: Vec<QueueName>,
    redis: Arc<RedisQueue>,
    postgres: Arc<PostgresLedger>,
    clock: Clock,
    entries: GaugeVec,
    waiting: GaugeVec,
    oldest: GaugeVec,
    delayed: GaugeVec,
    letters: GaugeVec,
}

impl BacklogGauges {
    /// Nothing measured yet. At most one for each registry.
    pub(super) fn new(
        registry: &Registry,
        queues: Vec<QueueName>,
        redis: Arc<RedisQueue>,
        postgres: Arc<PostgresLedger>,
        clock: Clock,
    ) -> Self {
        Self {
            queues,
            redis,
            postgres,
            clock,
            entries: metrics::STREAM_ENTRIES.gauge(registry),
            waiting: metrics::WAITING_ENTRIES.gauge(registry),
            oldest: metrics::OLDEST_WAITING.gauge(registry),
            delayed: metrics::DELAYED.gauge(registry),
            letters: metrics::OPEN_LETTERS.gauge(registry),
        }
    }

    /// Measures until it is dropped.
    pub(super) async fn watch(self, health: Arc<Health>) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        health.until_ready().await;
        loop {
            ticks.tick().await;
            tokio::join!(self.look_at_streams(), self.look_at_rows());
        }
    }

    async fn look_at_streams(&self) {
        for queue in &self.queues {
            match self.redis.backlog(queue).await {
                Ok(backlog) => self.tell(queue.as_str(), backlog),
                Err(error) => {
                    tracing::debug!("failed to measure the backlog: {error}");
                    for gauge in [&self.entries, &self.waiting, &self.oldest] {
                        gauge.reset();
                    }
                    return;
                }
            }
        }
    }

    fn tell(&self, queue: &str, backlog: Backlog) {
        let Backlog { length, pending, oldest } = backlog;
        let now = u64::try_from(self.clock.wall_ms()).unwrap_or(0);
        let age = oldest.map_or(0, |oldest| now.saturating_sub(oldest.ms));
        set(&self.entries, queue, length);
        set(&self.waiting, queue, length.saturating_sub(pending));
        let age = Duration::from_millis(age).as_secs_f64();
        self.oldest.with_label_values(&[queue]).set(age);
    }

    async fn look_at_rows(&self) {
        let names: Vec<String> = self.queues.iter().map(ToString::to_string).collect();
        match self.postgres.backlog(&names).await {
            Ok(all) => {
                for waiting in all {
                    set(&self.delayed, &waiting.queue, waiting.delayed);
                    set(&self.letters, &waiting.queue, waiting.letters);
                }
            }
            Err(error) => {
                tracing::debug!("failed to count what waits: {error}");
                self.delayed.reset();
                self.letters.reset();
            }
        }
    }
}

/// Exact below 2³²; more are as many as that.
fn set(gauge: &GaugeVec, queue: &str, number: u64) {
    let number = f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    gauge.with_label_values(&[queue]).set(number);
}

//! Every metric, named once: its name, unit, labels and what it means.
//!
//! The table makes the metrics and the page `docs/metrics.md`, so that the two cannot drift apart.
//! Names follow the rules of Prometheus: a prefix, base units, `_total` for what only rises. Who
//! counts what is not here. See <https://prometheus.io/docs/practices/naming/>.

use std::fmt::Write;

use prometheus::core::Collector;
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// The upper bounds of all histograms, in seconds: from a statement to an hour's work.
const SECONDS: [f64; 14] =
    [0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0];

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Only rises, from 0 at the start of the process.
    Counter,
    /// What is so at the moment.
    Gauge,
    /// How often a value was at most so much.
    Histogram,
}

impl Sort {
    /// The word of the text format.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name, with the prefix.
    pub name: &'static str,
    /// How it behaves.
    pub sort: Sort,
    /// What it is counted in.
    pub unit: &'static str,
    /// The labels of each series.
    pub labels: &'static [&'static str],
    /// What it means, in one sentence.
    pub help: &'static str,
}

macro_rules! metrics {
    ($( $(#[doc = $help:literal])+ $constant:ident: $sort:ident, $name:literal, $unit:literal, [$($label:literal),*]; )*) => {
        $(
            $(#[doc = $help])+
            pub const $constant: Metric = Metric {
                name: concat!("queue_worker_", $name),
                sort: Sort::$sort,
                unit: $unit,
                labels: &[$($label),*],
                help: concat!($($help),+).trim_ascii(),
            };
        )*

        /// All of them, in the order of the page.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    /// What became of the tasks that were delivered.
    TASKS: Counter, "tasks_total", "tasks", ["queue", "kind", "outcome"];
    /// Tasks that were put off without having run.
    DELAYS: Counter, "delays_total", "tasks", ["queue", "reason"];
    /// Dead letters written.
    DEAD_LETTERS: Counter, "dead_letters_total", "letters", ["queue", "reason"];
    /// Claims of tasks that had crashed a worker: granted with at least one crash in a row.
    TAKEOVERS: Counter, "takeovers_total", "tasks", ["queue", "kind"];
    /// How long handlers ran, successful or not; for sql until the commit.
    RUN_SECONDS: Histogram, "run_duration_seconds", "seconds", ["kind"];
    /// From when the entry was added to the stream until its task was claimed, by the clocks of
    /// Redis and this machine; a retry has a new entry.
    WAIT_SECONDS: Histogram, "wait_duration_seconds", "seconds", ["queue"];
    /// Tasks in this worker's hands, whether they run or wait for a store.
    IN_FLIGHT: Gauge, "in_flight_tasks", "tasks", ["queue"];
    /// Handlers that run now.
    RUNNING: Gauge, "running_tasks", "tasks", ["queue"];
    /// Entries in the stream: waiting, or in a worker's hands.
    STREAM_ENTRIES: Gauge, "stream_entries", "entries", ["queue"];
    /// Entries of the stream that no worker has read yet.
    WAITING_ENTRIES: Gauge, "waiting_entries", "entries", ["queue"];
    /// Age of the oldest of those, by the clocks of Redis and this machine; 0 without one.
    OLDEST_WAITING: Gauge, "oldest_waiting_entry_age_seconds", "seconds", ["queue"];
    /// Tasks that wait in Postgres for their time, a retry, a handler or their lock key; of all that
    /// wait at most 100000 are counted.
    DELAYED: Gauge, "delayed_tasks", "tasks", ["queue"];
    /// Dead letters that nobody has requeued or purged; of the newest 100000.
    OPEN_LETTERS: Gauge, "open_dead_letters", "letters", ["queue"];
    /// Age of the oldest claim that is kept alive; 0 without one.
    OLDEST: Gauge, "oldest_task_age_seconds", "seconds", [];
    /// Silent or given-back entries taken over from the pending list.
    RECLAIMED: Counter, "reclaimed_entries_total", "entries", ["queue"];
    /// Delayed or lost rows put back into the stream, also those of queues that this worker does
    /// not serve.
    PROMOTED: Counter, "promoted_rows_total", "rows", [];
    /// How long ago the heartbeat's loop last came round; it is well below 10.
    HEARTBEAT_AGE: Gauge, "heartbeat_age_seconds", "seconds", [];
    /// Runs cancelled since their lease was lost or could not be confirmed in time.
    LEASES_LOST: Counter, "leases_lost_total", "tasks", [];
    /// Whether the store answers: 1, or 0 while it is doubted or away.
    STORE_UP: Gauge, "store_up", "boolean", ["store"];
    /// Calls to the store that failed; the heartbeat's are not counted.
    STORE_ERRORS: Counter, "store_errors_total", "calls", ["store"];
    /// Probes of a store that was doubted or away, the first at the start included.
    STORE_PROBES: Counter, "store_probes_total", "probes", ["store"];
    /// Where the process stands: 1 for the phase that it is in, 0 for the others.
    PHASE: Gauge, "phase", "boolean", ["phase"];
    /// Always 1; the version is in the label.
    BUILD_INFO: Gauge, "build_info", "boolean", ["version"];
}

impl Metric {
    /// The counter, registered.
    pub fn counter(&self, registry: &Registry) -> IntCounterVec {
        let opts = Opts::new(self.name, self.help);
        register(registry, IntCounterVec::new(opts, self.labels))
    }

    /// The gauge, registered.
    pub fn gauge(&self, registry: &Registry) -> GaugeVec {
        register(registry, GaugeVec::new(Opts::new(self.name, self.help), self.labels))
    }

    /// The histogram, registered.
    pub fn histogram(&self, registry: &Registry) -> HistogramVec {
        let opts = HistogramOpts::new(self.name, self.help).buckets(SECONDS.to_vec());
        register(registry, HistogramVec::new(opts, self.labels))
    }
}

/// The table is checked by a test, and each of its metrics is made once for a registry.
fn register<T: Collector + Clone + 'static>(
    registry: &Registry,
    metric: prometheus::Result<T>,
) -> T {
    let metric = metric.expect("the table's names are well formed");
    registry.register(Box::new(metric.clone())).expect("each metric is made once");
    metric
}

/// The label of kinds that are not known here, or too many.
pub const OTHER: &str = "other";

const PAGE_INTRODUCTION: &str = "\
# Health and metrics

<!-- Generated from the program: change src/telemetry/metrics.rs, not this page. -->

With `web.listen = \"127.0.0.1:9464\"` the worker answers over HTTP, on a thread of its own:

| path | answer |
| --- | --- |
| `/livez` | 200 while every loop comes round; else 503, naming the loop that is stuck. systemd's watchdog asks the same |
| `/readyz` | 200 while tasks are pulled and the stores take the work; else 503 with the reason: `waiting for postgres: …`, `work fails: redis …` (full, or something refused for ten seconds), `quiet`, `draining` |
| `/metrics` | what follows, in the text format of Prometheus |

A worker that is not ready is well: it waits for its stores, or it drains. Restart one that is not
alive, and leave the other alone.

The pages ask for no password. An address that other machines can reach is refused unless
`web.allow_remote` is set. While the port is taken the worker warns once, works on and tries again.

A kind is a label only if this worker has a handler for it; all others are `other`. Counters begin at
0 with each process.

## Metrics

| name | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
";

const PAGE_LABELS: &str = "
## Labels

`outcome` of `queue_worker_tasks_total`:

| outcome | meaning |
| --- | --- |
| `succeeded` | the effect is committed |
| `retried` | failed, and runs again |
| `failed` | failed for good, with a dead letter |
| `dead` | given up without a verdict: it crashed too many workers, or nobody knew its kind in time; with a dead letter |
| `refused` | the entry can never run; with a dead letter |
| `delayed` | waits in Postgres: not run, and `queue_worker_delays_total` has the reason; or put off by its handler |
| `released` | interrupted by a drain or a lost lease, and given back |
| `stale` | the fence refused the outcome: another worker has claimed the task since |
| `duplicate` | the entry's task was finished or delayed already |

`reason` of `queue_worker_delays_total`: `not_before`, `unknown_kind`, `contended` (its `lock_key` is
held by another task), `suspect` (it waits to run alone).

`reason` of `queue_worker_dead_letters_total`: `malformed`, `oversized`, `refused` (its id was used
for another task), `failed`, `crashed`, `unknown_kind`.

`phase` of `queue_worker_phase`: `running`, `quiet`, `background`, `draining`, `interrupting`,
`abandoning`, `stopped`.

## What to be woken for

What waits in the stores (`stream_entries`, `waiting_entries`, `oldest_waiting_entry_age_seconds`,
`delayed_tasks`, `open_dead_letters`) is measured every 15 seconds, and every worker tells the same of a
queue: take `max by (queue)`, never `sum`. While a store does not answer its series are missing. If all
workers are gone nobody tells: hence the first of these alerts.

```yaml
groups:
  - name: queue-worker
    rules:
      - alert: QueueWorkerGone
        expr: absent(up{job=\"queue-worker\"} == 1)
        for: 2m
      - alert: QueueWorkerNotPulling
        expr: min by (instance, store) (queue_worker_store_up) == 0
        for: 5m
      - alert: TasksWaitTooLong
        expr: max by (queue) (queue_worker_oldest_waiting_entry_age_seconds) > 300
        for: 5m
      - alert: NewDeadLetters
        expr: max by (queue) (delta(queue_worker_open_dead_letters[15m])) > 0
      - alert: TaskRunsTooLong
        expr: max by (instance) (queue_worker_oldest_task_age_seconds) > 3600
```
";

/// The page about every metric, in Markdown.
pub fn metrics_md() -> String {
    let mut page = PAGE_INTRODUCTION.to_owned();
    for Metric { name, sort, unit, labels, help } in ALL {
        let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        let sort = sort.as_str();
        let _ = writeln!(page, "| `{name}` | {sort} | {unit} | {labels} | {help} |");
    }
    page.push_str(PAGE_LABELS);
    page
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_follow_the_rules() {
        let mut names = HashSet::new();
        for metric in ALL {
            let name = metric.name;
            assert!(names.insert(name), "{name} is there twice");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            assert_eq!(name.ends_with("_total"), metric.sort == Sort::Counter, "{name}");
            assert_eq!(name.ends_with("_seconds"), metric.unit == "seconds", "{name}");
            assert!(metric.help.ends_with('.'), "{name}: {}", metric.help);
        }
    }

    #[test]
    fn all_of_them_can_be_made() {
        let registry = Registry::new();
        for metric in ALL {
            match metric.sort {
                Sort::Counter => drop(metric.counter(&registry)),
                Sort::Gauge => drop(metric.gauge(&registry)),
                Sort::Histogram => drop(metric.histogram(&registry)),
            }
        }
    }
}

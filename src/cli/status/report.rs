//! What is asked of both stores, gathered into one report.
//!
//! The fields' names are those of the JSON and do not change. A store that does not answer leaves
//! its own part `null` and says why; the other part is still told.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::super::stores;
use super::super::text::{millis, rfc3339};
use crate::clock::Clock;
use crate::config::Config;
use crate::domain::QueueName;
use crate::ledger::{RunningTask, Status};
use crate::queue::{Consumer, QueueDepth};
use crate::supervisor::{DrainNote, Note};

/// Everything, at one time.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// When, by this machine's clock.
    pub(super) time: String,
    /// The broker.
    pub(super) redis: Server,
    /// The ledger.
    pub(super) postgres: Server,
    /// Those of the configuration, and those that the stores know besides.
    pub(super) queues: Vec<QueueLine>,
    /// One line for each worker and queue, the busiest first.
    pub(super) workers: Option<Vec<WorkerLine>>,
    /// The oldest claims first, as many as were asked for.
    pub(super) running: Option<Vec<RunningLine>>,
    /// The worker of this machine with this configuration, if there is one.
    pub(super) local: Option<Local>,
}

/// A worker of this machine, as its state directory tells.
#[derive(Debug, Serialize)]
pub(super) struct Local {
    pub(super) pid: u32,
    pub(super) worker: String,
    /// RFC 3339
    pub(super) started: String,
    /// What a drain of it may take, within what systemd allows.
    pub(super) drain: Option<DrainNote>,
}

/// A store, and what is wrong with it.
#[derive(Debug, Serialize)]
pub(super) struct Server {
    /// Without its password.
    pub(super) url: String,
    /// Why it did not answer, and what to do.
    pub(super) error: Option<String>,
}

/// A queue.
#[derive(Debug, Default, Serialize)]
pub(super) struct QueueLine {
    pub(super) name: String,
    /// Whether the configuration names it.
    pub(super) configured: bool,
    /// Entries in the stream.
    pub(super) length: Option<u64>,
    /// Entries delivered and not settled.
    pub(super) pending: Option<u64>,
    /// Entries never delivered, where Redis tells.
    pub(super) lag: Option<u64>,
    pub(super) running: Option<u64>,
    pub(super) released: Option<u64>,
    pub(super) delayed: Option<u64>,
    pub(super) succeeded: Option<u64>,
    pub(super) failed: Option<u64>,
    pub(super) dead: Option<u64>,
    /// Dead letters that nobody has requeued.
    pub(super) dead_letters: Option<u64>,
}

/// A worker process that reads from a queue.
#[derive(Debug, Serialize)]
pub(super) struct WorkerLine {
    pub(super) worker: String,
    pub(super) queue: String,
    pub(super) pending: u64,
    /// Since it last asked for entries.
    pub(super) idle_ms: u64,
}

/// A task that runs.
#[derive(Debug, Serialize)]
pub(super) struct RunningLine {
    pub(super) task_id: String,
    pub(super) queue: String,
    pub(super) kind: String,
    /// 1 for the first.
    pub(super) attempt: i32,
    /// In a row, before this claim.
    pub(super) crashes: i32,
    pub(super) fence: i64,
    pub(super) worker: Option<String>,
    pub(super) lock_key: Option<String>,
    /// Since its claim.
    pub(super) age_ms: u64,
    /// Until another worker may take over.
    pub(super) lease_left_ms: u64,
}

/// What the ledger says.
struct Rows {
    counts: HashMap<String, Counts>,
    running: Vec<RunningTask>,
}

#[derive(Default)]
struct Counts {
    tasks: HashMap<Status, u64>,
    letters: u64,
}

/// What the broker says.
type Depths = Vec<(QueueDepth, Vec<Consumer>)>;

impl Report {
    /// Asks both stores.
    pub(super) async fn gather(config: &Config, limit: u32) -> Self {
        let rows = read_ledger(config, limit).await;
        let mut queues: BTreeMap<&str, bool> =
            config.queues.iter().map(|queue| (queue.name.as_str(), true)).collect();
        // A stream that nobody reads is a queue that somebody has mistyped.
        let streams = find_streams(config).await;
        let rows_of = rows.iter().flat_map(|rows| rows.counts.keys().map(String::as_str));
        for name in rows_of.chain(streams.iter().flatten().map(QueueName::as_str)) {
            queues.entry(name).or_insert(false);
        }
        let queues: Vec<(QueueName, bool)> = queues
            .into_iter()
            .filter_map(|(name, configured)| Some((QueueName::new(name).ok()?, configured)))
            .collect();
        let depths = read_streams(config, &queues).await;
        let server = |url: String, error: Option<&anyhow::Error>| Server {
            url,
            error: error.map(|error| format!("{error:#}")),
        };
        Self {
            time: rfc3339(Clock::System.wall_ms()),
            redis: server(config.redis.url.without_password(), depths.as_ref().err()),
            postgres: server(config.postgres.url.without_password(), rows.as_ref().err()),
            workers: depths.as_ref().ok().map(|depths| workers(&queues, depths)),
            queues: lines(&queues, rows.as_ref().ok(), depths.as_ref().ok()),
            running: rows.ok().map(|rows| rows.running.into_iter().map(running).collect()),
            local: local(config),
        }
    }

    /// Whether both stores answered.
    pub(super) fn is_whole(&self) -> bool {
        self.redis.error.is_none() && self.postgres.error.is_none()
    }
}

/// A note that is not there, cannot be read or belongs to a dead process tells nothing.
fn local(config: &Config) -> Option<Local> {
    let (note, alive) = Note::read(&config.worker.state_dir).ok()??;
    alive.then(|| Local {
        pid: note.pid,
        worker: note.worker.to_string(),
        started: rfc3339(note.started_ms),
        drain: note.drain,
    })
}

async fn read_ledger(config: &Config, limit: u32) -> anyhow::Result<Rows> {
    let ledger = stores::ledger(config).await?;
    let mut counts: HashMap<String, Counts> = HashMap::new();
    for count in ledger.counts().await? {
        counts.entry(count.queue).or_default().tasks.insert(count.status, count.rows);
    }
    for (queue, letters) in ledger.open_letters().await? {
        counts.entry(queue).or_default().letters = letters;
    }
    Ok(Rows { counts, running: ledger.running(limit).await? })
}

async fn find_streams(config: &Config) -> anyhow::Result<Vec<QueueName>> {
    Ok(stores::queues(config)?.streams().await?)
}

async fn read_streams(config: &Config, queues: &[(QueueName, bool)]) -> anyhow::Result<Depths> {
    let streams = stores::queues(config)?;
    let mut depths = Vec::with_capacity(queues.len());
    for (queue, _) in queues {
        depths.push((streams.depth(queue).await?, streams.consumers(queue).await?));
    }
    Ok(depths)
}

fn lines(
    queues: &[(QueueName, bool)],
    rows: Option<&Rows>,
    depths: Option<&Depths>,
) -> Vec<QueueLine> {
    let line = |(index, (name, configured)): (usize, &(QueueName, bool))| {
        let depth = depths.and_then(|depths| depths.get(index)).map(|(depth, _)| depth);
        let counts = rows.map(|rows| rows.counts.get(name.as_str()));
        let tasks = |status| {
            let counts = counts?;
            Some(counts.and_then(|counts| counts.tasks.get(&status).copied()).unwrap_or(0))
        };
        QueueLine {
            name: name.to_string(),
            configured: *configured,
            length: depth.map(|depth| depth.length),
            pending: depth.map(|depth| depth.pending),
            lag: depth.and_then(|depth| depth.lag),
            running: tasks(Status::Running),
            released: tasks(Status::Released),
            delayed: tasks(Status::Delayed),
            succeeded: tasks(Status::Succeeded),
            failed: tasks(Status::Failed),
            dead: tasks(Status::Dead),
            dead_letters: counts.map(|counts| counts.map_or(0, |counts| counts.letters)),
        }
    };
    queues.iter().enumerate().map(line).collect()
}

fn workers(queues: &[(QueueName, bool)], depths: &Depths) -> Vec<WorkerLine> {
    let mut workers: Vec<WorkerLine> = queues
        .iter()
        .zip(depths)
        .flat_map(|((queue, _), (_, consumers))| consumers.iter().map(move |one| (queue, one)))
        .map(|(queue, consumer)| WorkerLine {
            worker: consumer.name.clone(),
            queue: queue.to_string(),
            pending: consumer.pending,
            idle_ms: millis(consumer.idle),
        })
        .collect();
    workers.sort_by(|a, b| (b.pending, a.idle_ms).cmp(&(a.pending, b.idle_ms)));
    workers
}

fn running(task: RunningTask) -> RunningLine {
    RunningLine {
        task_id: task.task_id,
        queue: task.queue,
        kind: task.kind,
        attempt: task.attempts.saturating_add(1),
        crashes: task.crashes,
        fence: task.fence,
        worker: task.worker.map(|worker| worker.to_string()),
        lock_key: task.lock_key,
        age_ms: millis(task.age),
        lease_left_ms: millis(task.lease_left),
    }
}

//! What became of the plan: asked of the ledger, of the effects, the journal, the receiver, Redis.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use sqlx::Row;

use super::ground::{GROUP, Ground, NOBODY, STREAM, TTL};
use super::plan::{Handler, PlannedTask, RESOURCES, resource};
use crate::cli::trial;

/// What the drill found, besides times and faults.
#[derive(Debug, Default)]
pub(super) struct Count {
    pub(super) succeeded: u32,
    pub(super) failed: u32,
    pub(super) dead: u32,
    /// Tasks that ended otherwise than planned.
    pub(super) wrong_ends: u32,
    /// Failed attempts more or less than the plan has.
    pub(super) wrong_attempts: u32,
    /// Transactional effects beyond one per task.
    pub(super) duplicate_effects: u32,
    /// Successes without their effect, and effects of tasks that did not succeed.
    pub(super) effects_amiss: u32,
    /// Effects on a resource that are out of the order of its fences.
    pub(super) fence_inversions: i64,
    /// Starts of programs and requests beyond the attempts that the plan has.
    pub(super) external_reruns: u32,
    pub(super) refused_by_receiver: u32,
    pub(super) refused_by_ledger: u32,
    pub(super) worker_panics: u32,
    /// Ids of tasks that are not as planned, for the evidence.
    pub(super) suspects: Vec<String>,
}

/// The row of a task.
struct Ended {
    status: String,
    attempts: i64,
}

/// How long the stream and the locks may take to empty once all tasks have ended: a lease, a
/// sweep, and the time to acknowledge.
const TIDY_LIMIT: Duration = Duration::from_secs(TTL.as_secs() * 2 + 5);

impl Count {
    pub(super) async fn take(
        ground: &Ground,
        plan: &[PlannedTask],
        workers: u32,
    ) -> anyhow::Result<Self> {
        let rows = rows(ground).await?;
        let effects = effects(ground).await?;
        let journal = Journal::read(ground);
        let mut count = Self::default();
        {
            let received = ground.receiver.received();
            count.refused_by_receiver = received.refused;
            for task in plan {
                let runs = match task.handler {
                    Handler::Render => journal.starts.get(&task.id),
                    Handler::Notify => received.requests.get(&task.id),
                    _ => None,
                };
                let planned = task.failed_attempts() + u32::from(!task.for_good);
                count.external_reruns += runs.map_or(0, |runs| runs.saturating_sub(planned));
                let applied = match task.handler {
                    Handler::Render => journal.ends.contains_key(&task.id),
                    Handler::Notify => received.applied.contains_key(&task.id),
                    _ => effects.contains_key(&task.id),
                };
                let copies = effects.get(&task.id).copied().unwrap_or(0);
                count.judge(task, rows.get(&task.id), applied, copies);
            }
        }
        count.fence_inversions = fence_inversions(ground).await?;
        for worker in 0..workers {
            let log = std::fs::read_to_string(ground.log(worker)).unwrap_or_default();
            count.refused_by_ledger += occurrences(&log, "outcome refused");
            count.worker_panics += occurrences(&log, "panicked at");
        }
        Ok(count)
    }

    fn judge(&mut self, task: &PlannedTask, row: Option<&Ended>, applied: bool, copies: u32) {
        let before = (self.wrong_ends, self.wrong_attempts, self.effects_amiss);
        self.duplicate_effects += copies.saturating_sub(1);
        let status = row.map_or("absent", |row| row.status.as_str());
        match status {
            "succeeded" => self.succeeded += 1,
            "failed" => self.failed += 1,
            "dead" => self.dead += 1,
            _ => {}
        }
        self.wrong_ends += u32::from(status != if task.for_good { "failed" } else { "succeeded" });
        if let Some(row) = row {
            self.wrong_attempts += u32::from(row.attempts != i64::from(task.failed_attempts()));
        }
        // A program that fails for good has written its last line too.
        let amiss = match status {
            "succeeded" => !applied,
            _ => task.handler.is_transactional() && applied,
        };
        self.effects_amiss += u32::from(amiss);
        if copies > 1 || before != (self.wrong_ends, self.wrong_attempts, self.effects_amiss) {
            self.suspects.push(task.id.clone());
        }
    }
}

async fn rows(ground: &Ground) -> anyhow::Result<HashMap<String, Ended>> {
    let rows = sqlx::query(
        "SELECT task_id, status::text, attempts::bigint FROM queue_worker.processed_tasks",
    )
    .fetch_all(&ground.pool)
    .await?;
    rows.iter()
        .map(|row| {
            let ended = Ended { status: row.try_get(1)?, attempts: row.try_get(2)? };
            Ok((row.try_get(0)?, ended))
        })
        .collect()
}

async fn effects(ground: &Ground) -> anyhow::Result<HashMap<String, u32>> {
    let rows = sqlx::query("SELECT task_id, count(*)::int FROM effects GROUP BY 1")
        .fetch_all(&ground.pool)
        .await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, u32::try_from(row.try_get::<i32, _>(1)?)?)))
        .collect()
}

/// A resource is held before its effect is written, so `seq` has to rise with the fence.
async fn fence_inversions(ground: &Ground) -> anyhow::Result<i64> {
    Ok(sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT fence, lag(fence) OVER (PARTITION BY resource ORDER BY seq) \
         AS before FROM effects WHERE resource IS NOT NULL) ordered WHERE fence <= before",
    )
    .fetch_one(&ground.pool)
    .await?)
}

/// What the programs wrote.
struct Journal {
    starts: HashMap<String, u32>,
    ends: HashMap<String, u32>,
}

impl Journal {
    fn read(ground: &Ground) -> Self {
        let text = std::fs::read_to_string(ground.journal()).unwrap_or_default();
        let mut journal = Self { starts: HashMap::new(), ends: HashMap::new() };
        for line in text.lines() {
            let mut words = line.split(' ');
            let (Some(id), Some(what)) = (words.next(), words.next()) else { continue };
            let lines = if what == "start" { &mut journal.starts } else { &mut journal.ends };
            *lines.entry(id.to_owned()).or_default() += 1;
        }
        journal
    }
}

fn occurrences(text: &str, what: &str) -> u32 {
    u32::try_from(text.matches(what).count()).unwrap_or(u32::MAX)
}

/// How many tasks of each status there are, for the bar.
pub(super) async fn statuses(ground: &Ground) -> anyhow::Result<BTreeMap<String, u32>> {
    let rows = sqlx::query(
        "SELECT status::text, count(*)::int FROM queue_worker.processed_tasks GROUP BY 1",
    )
    .fetch_all(&ground.pool)
    .await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, u32::try_from(row.try_get::<i32, _>(1)?)?)))
        .collect()
}

/// What is left behind in Redis.
#[derive(Debug, Default, Clone)]
pub(super) struct Left {
    pub(super) locks: Vec<String>,
    pub(super) stream_length: u64,
    pub(super) pending: u64,
    pub(super) consumers: u64,
}

impl Left {
    fn is_nothing(&self) -> bool {
        self.locks.is_empty() && self.stream_length == 0 && self.pending == 0
    }

    /// Waits until nothing is left, or as long as that may take, and answers what is.
    pub(super) async fn after_tidying(ground: &Ground) -> anyhow::Result<Self> {
        let mut left = Self::default();
        let look = async || {
            left = Self::look(ground).await?;
            Ok(left.is_nothing().then_some(()))
        };
        // What is left then is told in the report.
        let _ = trial::until("the stream and the locks to be gone", TIDY_LIMIT, look).await;
        Self::look(ground).await
    }

    async fn look(ground: &Ground) -> anyhow::Result<Self> {
        let mut locks = trial::task_locks(&ground.redis_url).await?;
        let mut connection = ground.redis().await?;
        for name in (0..RESOURCES).map(resource) {
            if redis::cmd("EXISTS").arg(&name).query_async::<bool>(&mut connection).await? {
                locks.push(name);
            }
        }
        let length = redis::cmd("XLEN").arg(STREAM).query_async(&mut connection).await?;
        let groups: Vec<HashMap<String, redis::Value>> =
            redis::cmd("XINFO").arg("GROUPS").arg(STREAM).query_async(&mut connection).await?;
        let number = |group: &HashMap<String, redis::Value>, field: &str| match group.get(field) {
            Some(redis::Value::Int(number)) => u64::try_from(*number).unwrap_or(0),
            _ => 0,
        };
        let is_ours = |group: &&HashMap<String, redis::Value>| {
            matches!(group.get("name"),
                Some(redis::Value::BulkString(name)) if name == GROUP.as_bytes())
        };
        let group = groups.iter().find(is_ours);
        let consumers = match group {
            Some(_) => consumers(&mut connection).await?,
            None => 0,
        };
        Ok(Self {
            locks,
            stream_length: length,
            pending: group.map_or(0, |group| number(group, "pending")),
            consumers,
        })
    }
}

/// The consumers that are workers, or were: all but the one that holds what was given back.
async fn consumers(connection: &mut redis::aio::MultiplexedConnection) -> anyhow::Result<u64> {
    let found: Vec<HashMap<String, redis::Value>> =
        redis::cmd("XINFO").arg("CONSUMERS").arg(STREAM).arg(GROUP).query_async(connection).await?;
    let is_worker = |consumer: &&HashMap<String, redis::Value>| {
        !matches!(consumer.get("name"),
            Some(redis::Value::BulkString(name)) if name == NOBODY.as_bytes())
    };
    Ok(found.iter().filter(is_worker).count() as u64)
}

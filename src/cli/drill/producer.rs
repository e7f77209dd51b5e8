//! Enqueues the plan at its times, straight into Redis, through every outage of it.
//!
//! A task counts as enqueued when Redis has confirmed it; until then it is added again, which may
//! bring a copy too many, as with every producer. `--append-fsync always` keeps what is confirmed.

use std::time::Duration;

use tokio::time::Instant;

use super::ground::{Ground, STREAM};
use super::plan::PlannedTask;
use crate::clock::Clock;

/// How often what has become due is added.
const TICK: Duration = Duration::from_millis(50);
/// Entries added by one write.
const PIPELINE: usize = 256;
/// Between two tries to reach Redis.
const AGAIN: Duration = Duration::from_millis(100);
/// Redis is never away for longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// An entry to add.
struct Arrival<'a> {
    at: Duration,
    task: &'a PlannedTask,
    /// Copies do not wait: the first one decides.
    is_copy: bool,
}

/// Adds everything; answers how many writes had to be repeated.
pub(super) async fn produce(
    ground: &Ground,
    plan: &[PlannedTask],
    start: Instant,
) -> anyhow::Result<u32> {
    let firsts = plan.iter().map(|task| Arrival { at: task.at, task, is_copy: false });
    let copies =
        plan.iter().filter_map(|task| Some(Arrival { at: task.again?, task, is_copy: true }));
    let mut arrivals: Vec<Arrival<'_>> = firsts.chain(copies).collect();
    arrivals.sort_by_key(|arrival| arrival.at);
    let mut connection = None;
    let mut repeated = 0;
    let mut left = arrivals.as_slice();
    while let Some(next) = left.first() {
        tokio::time::sleep_until((start + next.at).max(Instant::now() + TICK)).await;
        let now = start.elapsed();
        let due = left.partition_point(|arrival| arrival.at <= now).clamp(1, PIPELINE);
        let (batch, rest) = left.split_at(due);
        let trying = Instant::now();
        while let Err(error) = add(ground, &mut connection, batch).await {
            if trying.elapsed() > PATIENCE {
                return Err(error.context("enqueue tasks"));
            }
            repeated += 1;
            connection = None;
            tokio::time::sleep(AGAIN).await;
        }
        left = rest;
    }
    Ok(repeated)
}

async fn add(
    ground: &Ground,
    connection: &mut Option<redis::aio::MultiplexedConnection>,
    batch: &[Arrival<'_>],
) -> anyhow::Result<()> {
    let mut open = match connection.take() {
        Some(open) => open,
        None => ground.redis().await?,
    };
    let mut pipeline = redis::pipe();
    for arrival in batch {
        let task = arrival.task;
        let add = pipeline.cmd("XADD").arg(STREAM).arg("*");
        add.arg(&["task_id", &task.id, "kind", task.handler.kind(), "payload", &task.payload]);
        if let Some(key) = &task.lock_key {
            add.arg(&["lock_key", key]);
        }
        if let Some(delay) = task.delay.filter(|_| !arrival.is_copy) {
            let at = Clock::System.wall_ms() + i64::try_from(delay.as_millis())?;
            add.arg("not_before_ms").arg(at);
        }
        add.ignore();
    }
    pipeline.query_async::<()>(&mut open).await?;
    *connection = Some(open);
    Ok(())
}

//! How long it takes until the tasks of a killed worker are in other hands.
//!
//! At each kill the ledger says which tasks the worker held, and under which fences; from then on
//! they are watched until each has a higher fence. Kills whose window (TTL + 1 s) overlaps the
//! outage of a store, or a worker that was frozen, are left out: then nobody could have taken over.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::{PgPool, Row};

use super::ground::TTL;
use crate::clock::Clock;

/// How soon after a kill its tasks have to be in other hands.
pub(super) const BOUND: Duration = Duration::from_secs(TTL.as_secs() + 1);
/// How often the ledger is asked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// After a store has come back, clients need this long to notice.
const SETTLING_MS: i64 = 2_000;

/// A task that a killed worker held.
#[derive(Debug, Clone)]
struct Orphan {
    kill: usize,
    task_id: String,
    fence: i64,
    killed_ms: i64,
}

/// Watches orphans.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    kills: usize,
    open: Vec<Orphan>,
    /// Kill, when it was, task, and how long its task took.
    done: Vec<(usize, i64, String, Duration)>,
    /// When nobody could have taken over, in milliseconds of wall clock.
    outages: Vec<(i64, i64)>,
}

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Shortest first.
    pub(super) seconds: Vec<f64>,
    /// Kills that held at least one task.
    pub(super) kills: usize,
    /// Those of them that are left out.
    pub(super) kills_left_out: usize,
    /// The slowest tasks, for the evidence.
    pub(super) slowest: Vec<(String, f64)>,
}

impl Recovery {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker was killed just now that held these.
    pub(super) fn killed(&self, held: Vec<(String, i64)>) {
        let killed_ms = Clock::System.wall_ms();
        let mut book = self.book();
        let kill = book.kills;
        book.kills += 1;
        book.open.extend(held.into_iter().map(|(task_id, fence)| Orphan {
            kill,
            task_id,
            fence,
            killed_ms,
        }));
    }

    /// From `since` until now a store was away, or a worker frozen.
    pub(super) fn outage(&self, since_ms: i64) {
        let until = Clock::System.wall_ms() + SETTLING_MS;
        self.book().outages.push((since_ms, until));
    }

    /// Looks again and again; never ends.
    pub(super) async fn watch(&self, pool: &PgPool) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // While Postgres is away there is nothing to see.
            let _ = self.look(pool).await;
        }
    }

    async fn look(&self, pool: &PgPool) -> anyhow::Result<()> {
        let ids: Vec<String> = self.book().open.iter().map(|task| task.task_id.clone()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let rows = sqlx::query(
            "SELECT task_id, fence, status::text, \
             COALESCE((EXTRACT(EPOCH FROM started_at) * 1000)::bigint, 0) \
             FROM queue_worker.processed_tasks WHERE task_id = ANY($1)",
        )
        .bind(&ids)
        .fetch_all(pool)
        .await?;
        let now = Clock::System.wall_ms();
        let mut found = HashMap::new();
        for row in &rows {
            let state: (i64, String, i64) = (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
            found.insert(row.try_get::<String, _>(0)?, state);
        }
        let mut book = self.book();
        let Book { open, done, .. } = &mut *book;
        open.retain(|orphan| {
            let Some((fence, status, started)) = found.get(&orphan.task_id) else { return true };
            if *fence == orphan.fence {
                // Otherwise its last word had been on the way when it died.
                return status == "running";
            }
            let seen = if *fence == orphan.fence + 1 && *started > orphan.killed_ms {
                *started
            } else {
                now
            };
            let took = u64::try_from(seen - orphan.killed_ms).unwrap_or(0);
            let task = orphan.task_id.clone();
            done.push((orphan.kill, orphan.killed_ms, task, Duration::from_millis(took)));
            false
        });
        Ok(())
    }

    /// Sums up. What nobody has taken over until now counts with the time until now.
    pub(super) fn measured(&self) -> Measured {
        let mut book = self.book();
        let now = Clock::System.wall_ms();
        for orphan in std::mem::take(&mut book.open) {
            let took = Duration::from_millis(u64::try_from(now - orphan.killed_ms).unwrap_or(0));
            book.done.push((orphan.kill, orphan.killed_ms, orphan.task_id, took));
        }
        let bound = i64::try_from(BOUND.as_millis()).unwrap_or(i64::MAX);
        let left_out = |killed: i64| {
            book.outages.iter().any(|(from, to)| *from <= killed + bound && *to >= killed)
        };
        let mut kills: HashMap<usize, bool> = HashMap::new();
        let mut counted = Vec::new();
        for (kill, killed_ms, task, took) in &book.done {
            let out = left_out(*killed_ms);
            kills.insert(*kill, out);
            if !out {
                counted.push((task.clone(), took.as_secs_f64()));
            }
        }
        counted.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        Measured {
            kills: kills.len(),
            kills_left_out: kills.values().filter(|out| **out).count(),
            slowest: counted.iter().rev().take(10).cloned().collect(),
            seconds: counted.into_iter().map(|(_, seconds)| seconds).collect(),
        }
    }
}

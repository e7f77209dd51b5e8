//! How long it takes until the tasks of a killed worker are in other hands.
//!
//! At each kill the ledger says which tasks the worker held, and under which fences; from then on
//! they are watched until each has a higher fence. Kills whose window (TTL + 1 s) overlaps the
//! outage of a store, or a worker that was frozen, are left out: then nobody could have taken over.
//! So are suspects, tasks that had crashed before: they wait until a worker has nothing else to do,
//! for `lease.suspect_wait` and longer while workers go on dying.

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
/// A task that had crashed this often in a row is a suspect after one crash more.
const FIRST_OF_SUSPECT: i32 = 1;
/// So many of the slowest are told of.
const SLOWEST: usize = 10;

/// A task in the hands of a worker.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) task_id: String,
    pub(super) fence: i64,
    /// Crashes in a row before this run.
    pub(super) crashes: i32,
}

/// A task that a killed worker held.
#[derive(Debug, Clone)]
struct Orphan {
    kill: usize,
    held: Held,
    killed_ms: i64,
}

/// An orphan in other hands.
#[derive(Debug)]
struct Recovered {
    orphan: Orphan,
    took: Duration,
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
    done: Vec<Recovered>,
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
    /// Suspects, which waited until they could run alone, and how long the last one waited.
    pub(super) suspects: usize,
    pub(super) suspect_max: f64,
    /// The slowest tasks, for the evidence.
    pub(super) slowest: Vec<(String, f64)>,
}

impl Recovery {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker was killed just now that held these.
    pub(super) fn killed(&self, held: Vec<Held>) {
        let killed_ms = Clock::System.wall_ms();
        let mut book = self.book();
        let kill = book.kills;
        book.kills += 1;
        book.open.extend(held.into_iter().map(|held| Orphan { kill, held, killed_ms }));
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
        let ids: Vec<String> =
            self.book().open.iter().map(|orphan| orphan.held.task_id.clone()).collect();
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
        for orphan in std::mem::take(&mut book.open) {
            let Some((fence, status, started)) = found.get(&orphan.held.task_id) else {
                book.open.push(orphan);
                continue;
            };
            if *fence == orphan.held.fence {
                // Otherwise its last word had been on the way when it died.
                if status == "running" {
                    book.open.push(orphan);
                }
                continue;
            }
            let by_next = *fence == orphan.held.fence + 1 && *started > orphan.killed_ms;
            book.done.push(orphan.recovered(if by_next { *started } else { now }));
        }
        Ok(())
    }

    /// Sums up. What nobody has taken over until now counts with the time until now.
    pub(super) fn measured(&self) -> Measured {
        let mut book = self.book();
        let now = Clock::System.wall_ms();
        for orphan in std::mem::take(&mut book.open) {
            book.done.push(orphan.recovered(now));
        }
        let mut kills: HashMap<usize, bool> = HashMap::new();
        let mut measured = Measured::default();
        for Recovered { orphan, took } in &book.done {
            let out = book.is_outage_near(orphan.killed_ms);
            kills.insert(orphan.kill, out);
            if out {
                continue;
            }
            if orphan.held.crashes >= FIRST_OF_SUSPECT {
                measured.suspects += 1;
                measured.suspect_max = measured.suspect_max.max(took.as_secs_f64());
            } else {
                measured.slowest.push((orphan.held.task_id.clone(), took.as_secs_f64()));
            }
        }
        measured.slowest.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        measured.seconds = measured.slowest.iter().rev().map(|(_, seconds)| *seconds).collect();
        measured.slowest.truncate(SLOWEST);
        measured.kills = kills.len();
        measured.kills_left_out = kills.values().filter(|out| **out).count();
        measured
    }
}

impl Book {
    /// Whether a store was away, or a worker frozen, while the tasks of this kill waited.
    fn is_outage_near(&self, killed_ms: i64) -> bool {
        let bound = i64::try_from(BOUND.as_millis()).unwrap_or(i64::MAX);
        self.outages.iter().any(|(from, to)| *from <= killed_ms + bound && *to >= killed_ms)
    }
}

impl Orphan {
    fn recovered(self, at_ms: i64) -> Recovered {
        let took = u64::try_from(at_ms - self.killed_ms).unwrap_or(0);
        Recovered { orphan: self, took: Duration::from_millis(took) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(task: &str, crashes: i32) -> Held {
        Held { task_id: task.to_owned(), fence: 1, crashes }
    }

    #[test]
    fn kills_near_an_outage_and_suspects_are_left_out() {
        let recovery = Recovery::default();
        recovery.killed(vec![held("a", 0), held("b", 1)]);
        let measured = recovery.measured();
        assert_eq!((measured.seconds.len(), measured.suspects), (1, 1));
        assert_eq!((measured.kills, measured.kills_left_out), (1, 0));
        recovery.killed(vec![held("c", 0)]);
        recovery.outage(Clock::System.wall_ms());
        let measured = recovery.measured();
        assert_eq!(measured.seconds.len(), 0);
        assert_eq!((measured.kills, measured.kills_left_out), (2, 2));
    }
}

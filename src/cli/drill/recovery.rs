//! How long it takes until the tasks of a killed worker are in other hands.
//!
//! At each kill the ledger says which tasks the worker held, and under which fences; from then on
//! they are watched until each has a higher fence. Where the worker that had taken over the entry
//! was killed too before it could claim the task, the time counts from that kill: see `owners`.
//! Kills whose window (TTL + 1 s) overlaps the outage of a store, or a worker that was frozen, are
//! left out: then nobody could have taken over. So are suspects, tasks that had crashed before: they
//! wait until a worker has nothing else to do, for `lease.suspect_wait` and longer while workers go
//! on dying. What the machine was late by, which `slowness` measures and bounds, is allowed on top.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::{PgPool, Row};
use uuid::Uuid;

use super::fleet::Fleet;
use super::ground::{Ground, TTL};
use super::orphan::{Held, Orphan, Recovered};
use super::owners::Owners;
use super::slowness::{Outage, Slowness, whole_ms};
use crate::clock::Clock;

/// How soon after a kill its tasks have to be in other hands.
pub(super) const BOUND: Duration = Duration::from_secs(TTL.as_secs() + 1);
/// How often the ledger is asked.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A task that had crashed this often in a row is a suspect after one crash more.
const FIRST_OF_SUSPECT: i32 = 1;
/// So many of the slowest are told of.
const SLOWEST: usize = 10;

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
    /// When which workers were killed.
    killed: HashMap<Uuid, i64>,
    slowness: Slowness,
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
    /// Recoveries that count from a second kill.
    pub(super) killed_twice: usize,
    /// Those that took longer than the bound and what the machine was late by: which task, for how
    /// long it waited, and what was allowed, in seconds.
    pub(super) late: Vec<(String, f64, f64)>,
    /// The most that was allowed on top of the bound.
    pub(super) slowness_max: f64,
}

impl Recovery {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker was killed just now that held these.
    pub(super) fn killed(&self, worker: Uuid, held: Vec<Held>) {
        let killed_ms = Clock::System.wall_ms();
        let mut book = self.book();
        let kill = book.kills;
        book.kills += 1;
        book.killed.insert(worker, killed_ms);
        let orphan = |held| Orphan { kill, held, kills_ms: vec![killed_ms] };
        book.open.extend(held.into_iter().map(orphan));
    }

    /// From now on a store is away, or a worker frozen.
    pub(super) fn outage_begins(&self) -> Outage {
        self.book().slowness.outage_begins(Clock::System.wall_ms())
    }

    /// It is there again.
    pub(super) fn outage_ends(&self, outage: &Outage) {
        self.book().slowness.outage_ends(outage, Clock::System.wall_ms());
    }

    /// Connections of the workers are cut now.
    pub(super) fn cut(&self) {
        self.book().slowness.cut(Clock::System.wall_ms());
    }

    /// Looks again and again; never ends.
    pub(super) async fn watch(&self, ground: &Ground, fleet: &Fleet) {
        let mut owners = Owners::default();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // While a store is away there is nothing to see.
            let _ = commit(&ground.pool).await;
            let _ = self.look(&ground.pool).await;
            let _ = self.look_for_second_kills(ground, &mut owners).await;
            let is_nobody_there = fleet.free().is_empty();
            self.book().slowness.looked(Clock::System.wall_ms(), is_nobody_there);
        }
    }

    /// Orphans whose entries lie with workers that were killed later wait for those.
    async fn look_for_second_kills(
        &self,
        ground: &Ground,
        owners: &mut Owners,
    ) -> anyhow::Result<()> {
        if self.book().open.is_empty() {
            return Ok(());
        }
        let owners = owners.look(ground).await?;
        let mut book = self.book();
        let Book { open, killed, slowness, .. } = &mut *book;
        for orphan in open {
            let owners = owners.get(&orphan.held.task_id).map_or(&[][..], Vec::as_slice);
            // The entry that is free first counts; none is excused that somebody has who lives.
            let kills = owners.iter().map(|owner| killed.get(owner).copied());
            if let Some(kill_ms) = kills.min().flatten() {
                orphan.had_by_one_killed(kill_ms, slowness);
            }
        }
        Ok(())
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
            let by_next = *fence == orphan.held.fence + 1 && *started > orphan.kills_ms[0];
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
        for Recovered { orphan, at_ms } in &book.done {
            let since_ms = orphan.killed_before(*at_ms);
            let waited = millis(at_ms - since_ms);
            let slowness = book.slowness.between(since_ms, *at_ms);
            let allowed = BOUND + slowness;
            // An outage that began while it was allowed to wait still hinders it, none after that.
            let judged_ms = whole_ms(waited.clamp(BOUND, allowed));
            let out = book.slowness.is_outage(since_ms, since_ms + judged_ms);
            // A kill is judged if one of its tasks is.
            *kills.entry(orphan.kill).or_insert(true) &= out;
            let took = waited.as_secs_f64();
            if out {
                continue;
            }
            if orphan.held.crashes >= FIRST_OF_SUSPECT {
                measured.suspects += 1;
                measured.suspect_max = measured.suspect_max.max(took);
                continue;
            }
            measured.killed_twice += usize::from(since_ms > orphan.kills_ms[0]);
            measured.slowest.push((orphan.held.task_id.clone(), took));
            measured.slowness_max = measured.slowness_max.max(slowness.as_secs_f64());
            if waited > allowed {
                measured.late.push((orphan.held.task_id.clone(), took, allowed.as_secs_f64()));
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

/// Commits something, so that a look takes as long as the disk does: claims wait for it too.
async fn commit(pool: &PgPool) -> sqlx::Result<()> {
    sqlx::query("UPDATE looks SET n = n + 1").execute(pool).await.map(drop)
}

/// Milliseconds that may be none.
pub(super) fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
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
        recovery.killed(Uuid::new_v4(), vec![held("a", 0), held("b", 1)]);
        let measured = recovery.measured();
        assert_eq!((measured.seconds.len(), measured.suspects), (1, 1));
        assert_eq!((measured.kills, measured.kills_left_out), (1, 0));
        recovery.killed(Uuid::new_v4(), vec![held("c", 0)]);
        let outage = recovery.outage_begins();
        recovery.outage_ends(&outage);
        let measured = recovery.measured();
        assert_eq!(measured.seconds.len(), 0);
        assert_eq!((measured.kills, measured.kills_left_out), (2, 2));
    }

    #[test]
    fn what_is_over_the_bound_and_the_slowness_of_the_machine_is_late() {
        let recovery = Recovery::default();
        recovery.killed(Uuid::new_v4(), vec![held("a", 0), held("b", 0), held("c", 0)]);
        {
            let mut book = recovery.book();
            let now = Clock::System.wall_ms();
            let since = now - 7_000;
            for orphan in &mut book.open {
                orphan.kills_ms = vec![since];
            }
            // Another worker had the entry of `b` and was killed.
            book.open[1].kills_ms.push(now - 5_000);
        }
        let late: Vec<String> = recovery.measured().late.into_iter().map(|late| late.0).collect();
        assert_eq!(late, ["a", "c"]);
        assert_eq!(recovery.measured().killed_twice, 1);
        let mut book = recovery.book();
        let since = book.done[0].orphan.kills_ms[0];
        for at in (since..since + 6_500).step_by(500) {
            book.slowness.looked(at, false);
        }
        drop(book);
        assert_eq!(recovery.measured().late, [], "every look was 450 ms late");
    }

    /// One task, killed long ago and in other hands after so many milliseconds; looks begin with
    /// the kill, and one is a second late.
    fn recovered_after(took_ms: i64) -> (Recovery, i64) {
        let recovery = Recovery::default();
        let since = Clock::System.wall_ms() - 60_000;
        let orphan = Orphan { kill: 0, held: held("a", 0), kills_ms: vec![since] };
        let mut book = recovery.book();
        book.done.push(orphan.recovered(since + took_ms));
        for at in (0..20_000).step_by(50).filter(|at| *at <= 2_000 || *at >= 3_050) {
            book.slowness.looked(since + at, false);
        }
        drop(book);
        (recovery, since)
    }

    #[test]
    fn a_late_machine_does_not_excuse_a_second_lease() {
        for (took_ms, late) in [(8_500, 0), (8_501, 1), (9_900, 1)] {
            let (recovery, _) = recovered_after(took_ms);
            assert_eq!(recovery.measured().late.len(), late, "after {took_ms} ms");
        }
    }

    #[test]
    fn an_outage_counts_as_long_as_the_recovery_may_wait() {
        for (took_ms, begins_ms, left_out) in
            [(5_000, 5_900, 1), (5_000, 6_500, 0), (7_000, 6_500, 1), (9_900, 8_600, 0)]
        {
            let (recovery, since) = recovered_after(took_ms);
            let mut book = recovery.book();
            let outage = book.slowness.outage_begins(since + begins_ms);
            book.slowness.outage_ends(&outage, since + begins_ms + 1_000);
            drop(book);
            let measured = recovery.measured();
            assert_eq!(measured.kills_left_out, left_out, "{took_ms} ms, outage at {begins_ms} ms");
            assert_eq!(measured.late.len(), usize::from(took_ms > 9_000));
        }
    }

    #[test]
    fn a_second_kill_long_after_the_first_is_no_excuse_on_a_late_machine() {
        for (kill_ms, counts) in [(8_500, true), (8_501, false), (9_900, false)] {
            let (recovery, since) = recovered_after(0);
            let mut orphan = Orphan { kill: 0, held: held("a", 0), kills_ms: vec![since] };
            orphan.had_by_one_killed(since + kill_ms, &recovery.book().slowness);
            assert_eq!(orphan.kills_ms.len() == 2, counts, "after {kill_ms} ms");
        }
    }
}

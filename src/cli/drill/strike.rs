//! Does the faults at their times, each in a task of its own, and counts what was done.
//!
//! A worker is frozen for a moment before it is killed, while the ledger is asked what it holds: a
//! task that has crashed three times in a row is dead by design after one more, so whoever runs
//! such a task is spared. The same look tells what has to be recovered.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use sqlx::Row;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::fleet::{Fleet, Target};
use super::ground::{Ground, TTL};
use super::orphan::Held;
use super::recovery::Recovery;
use super::schedule::{Fault, Strike};

/// A task that has crashed this often in a row must not crash again.
const LAST_CRASH: i32 = 3;
/// What a frozen worker has asked of Postgres is done after this.
const IN_FLIGHT: Duration = Duration::from_millis(5);
/// How long to look for somebody to hit, and how often.
const SEARCH: Duration = Duration::from_secs(3);
const SEARCH_EVERY: Duration = Duration::from_millis(50);
/// How long the ledger may take to say what a frozen worker holds.
const LOOK_LIMIT: Duration = Duration::from_millis(300);

/// What was done.
#[derive(Debug, Default, Clone)]
pub(super) struct Tally {
    pub(super) faults: BTreeMap<&'static str, u32>,
    /// Workers that were left alone for the sake of a task.
    pub(super) spared: u32,
    /// Faults that found nobody to hit.
    pub(super) missed: u32,
}

/// Does faults.
pub(super) struct Striker {
    pub(super) ground: Arc<Ground>,
    pub(super) fleet: Arc<Fleet>,
    pub(super) recovery: Arc<Recovery>,
    tally: Mutex<Tally>,
}

impl Striker {
    pub(super) fn new(ground: Arc<Ground>, fleet: Arc<Fleet>, recovery: Arc<Recovery>) -> Self {
        Self { ground, fleet, recovery, tally: Mutex::default() }
    }

    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of the schedule, and waits for the last to be over.
    pub(super) async fn strike_all(
        self: Arc<Self>,
        schedule: Vec<Strike>,
        start: Instant,
    ) -> anyhow::Result<()> {
        let mut striking = JoinSet::new();
        for strike in schedule {
            tokio::time::sleep_until(start + strike.at).await;
            let striker = Arc::clone(&self);
            striking.spawn(async move { striker.strike(strike).await });
        }
        while let Some(done) = striking.join_next().await {
            done??;
        }
        Ok(())
    }

    async fn strike(&self, strike: Strike) -> anyhow::Result<()> {
        let mut rng = StdRng::seed_from_u64(strike.seed);
        let done = match strike.fault {
            Fault::Kill => self.kill(&mut rng).await,
            Fault::Freeze => self.freeze(&mut rng).await,
            Fault::Terminate => self.terminate(&mut rng).await,
            Fault::CutRedis => self.cut_redis().await,
            Fault::CutPostgres => self.cut_postgres().await,
            Fault::RestartRedis => self.restart_redis().await?,
            Fault::RestartPostgres => self.restart_postgres().await?,
            Fault::DropAck => {
                self.ground.proxy.drop_next();
                // Counted by the proxy, when there is an acknowledgement to lose.
                return Ok(());
            }
        };
        let mut tally = self.tally();
        if done {
            *tally.faults.entry(strike.fault.name()).or_default() += 1;
        } else {
            tally.missed += 1;
        }
        Ok(())
    }

    async fn kill(&self, rng: &mut StdRng) -> bool {
        let Some((target, held)) = self.frozen_target(rng).await else { return false };
        let worker = target.worker;
        target.kill();
        self.recovery.killed(worker, held);
        true
    }

    async fn freeze(&self, rng: &mut StdRng) -> bool {
        let Some((target, _)) = self.frozen_target(rng).await else { return false };
        let outage = self.recovery.outage_begins();
        let longer = Duration::from_millis(rng.random_range(1_000..3_000));
        tokio::time::sleep(TTL + longer).await;
        target.thaw();
        self.recovery.outage_ends(&outage);
        true
    }

    async fn terminate(&self, rng: &mut StdRng) -> bool {
        let searching = Instant::now();
        while searching.elapsed() < SEARCH {
            if let Some(target) = self.choose(rng).into_iter().find_map(|n| self.fleet.take(n)) {
                target.terminate();
                return true;
            }
            tokio::time::sleep(SEARCH_EVERY).await;
        }
        false
    }

    /// The free workers in a random order.
    fn choose(&self, rng: &mut StdRng) -> Vec<usize> {
        let mut free = self.fleet.free();
        free.shuffle(rng);
        free
    }

    /// A worker that may be hit, frozen, with the tasks that it holds and their fences.
    async fn frozen_target(&self, rng: &mut StdRng) -> Option<(Target, Vec<Held>)> {
        let searching = Instant::now();
        while searching.elapsed() < SEARCH {
            for n in self.choose(rng) {
                let Some(target) = self.fleet.take(n) else { continue };
                target.freeze();
                tokio::time::sleep(IN_FLIGHT).await;
                match self.look(&target).await {
                    Some(held) => return Some((target, held)),
                    None => target.thaw(),
                }
            }
            tokio::time::sleep(SEARCH_EVERY).await;
        }
        None
    }

    /// What a worker holds; `None` if it must be spared, or if nobody can say.
    async fn look(&self, target: &Target) -> Option<Vec<Held>> {
        // An outage of Postgres is nobody's crash: then nobody needs to be spared.
        if self.ground.is_postgres_away() {
            return Some(Vec::new());
        }
        let rows = sqlx::query(
            "SELECT task_id, fence, crashes FROM queue_worker.processed_tasks \
             WHERE status = 'running' AND worker = $1",
        )
        .bind(target.worker)
        .fetch_all(&self.ground.pool);
        let rows = tokio::time::timeout(LOOK_LIMIT, rows).await.ok()?.ok()?;
        let mut held = Vec::with_capacity(rows.len());
        for row in &rows {
            let one = Held {
                task_id: row.try_get(0).ok()?,
                fence: row.try_get(1).ok()?,
                crashes: row.try_get(2).ok()?,
            };
            if one.crashes >= LAST_CRASH {
                self.tally().spared += 1;
                return None;
            }
            held.push(one);
        }
        Some(held)
    }

    async fn cut_redis(&self) -> bool {
        self.recovery.cut();
        let cut = async {
            let mut connection = self.ground.redis().await?;
            let mut kill = redis::cmd("CLIENT");
            kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
            anyhow::Ok(kill.query_async::<i64>(&mut connection).await?)
        };
        cut.await.is_ok_and(|cut| cut > 0)
    }

    async fn cut_postgres(&self) -> bool {
        self.recovery.cut();
        let cut = sqlx::query_scalar::<_, i64>(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE application_name = 'queue-worker'",
        );
        cut.fetch_one(&self.ground.pool).await.is_ok_and(|cut| cut > 0)
    }

    async fn restart_redis(&self) -> anyhow::Result<bool> {
        let mut redis = self.ground.redis.lock().await;
        let outage = self.recovery.outage_begins();
        redis.kill();
        redis.restart().await?;
        self.recovery.outage_ends(&outage);
        Ok(true)
    }

    async fn restart_postgres(&self) -> anyhow::Result<bool> {
        let mut postgres = self.ground.postgres.lock().await;
        let outage = self.recovery.outage_begins();
        self.ground.postgres_is_away.store(true, Ordering::SeqCst);
        postgres.kill();
        let restarted = postgres.restart().await;
        self.ground.postgres_is_away.store(false, Ordering::SeqCst);
        self.recovery.outage_ends(&outage);
        restarted?;
        Ok(true)
    }
}

//! Which commits are done, which are ours, and how far a repository is.

use std::collections::HashSet;

use sqlx::Row;

use super::{Claim, Place, Results, ResultsError};
use crate::handler::git::oid::ObjectId;

/// Commits of one statement when many are looked up.
pub(super) const AT_ONCE: usize = 5_000;

const TERMINAL: &str = "\
    SELECT oid FROM queue_worker_git.analyses \
    WHERE repository_id = $1 AND profile_id = $2 AND oid = ANY($3) \
        AND status IN ('succeeded', 'failed')";

/// One statement for all: in the order of their ids, so that two claims never wait for each other in a
/// circle.
const CLAIM: &str = "\
    INSERT INTO queue_worker_git.analyses AS a \
        (repository_id, profile_id, oid, status, fence, attempts, task_id, started_at) \
    SELECT $1, $2, k.oid, 'running', 1, 1, $4, clock_timestamp() \
    FROM (SELECT DISTINCT oid FROM unnest($3::bytea[]) AS u (oid) ORDER BY oid) AS k \
    ON CONFLICT (repository_id, profile_id, oid) DO UPDATE SET status = 'running', \
        fence = a.fence + 1, attempts = a.attempts + 1, task_id = EXCLUDED.task_id, \
        started_at = EXCLUDED.started_at, finished_at = NULL, took_us = NULL, error_detail = NULL \
    WHERE a.status IN ('queued', 'running', 'released') \
    RETURNING id, oid, fence";

const GIVE_BACK: &str = "\
    UPDATE queue_worker_git.analyses a SET status = 'released' \
    FROM unnest($1::bigint[], $2::bigint[]) AS k (id, fence) \
    WHERE a.id = k.id AND a.fence = k.fence AND a.status = 'running'";

/// Neither done nor refused, and nobody is going to do it: the task has ended, or it had claimed the
/// commit and is forgotten, or there is none. A commit that was queued for a task that the ledger does
/// not know is none of them, since that task may wait in the stream.
macro_rules! abandoned {
    () => {
        "a.status IN ('queued', 'running', 'released') AND (a.task_id IS NULL OR EXISTS \
            (SELECT 1 FROM queue_worker.processed_tasks t WHERE t.task_id = a.task_id \
                AND t.status IN ('succeeded', 'failed', 'dead')) \
        OR a.status <> 'queued' AND NOT EXISTS \
            (SELECT 1 FROM queue_worker.processed_tasks t WHERE t.task_id = a.task_id))"
    };
}
pub(super) use abandoned;

const PROGRESS: &str = concat!(
    "SELECT count(*) FILTER (WHERE a.status = 'succeeded'), \
        count(*) FILTER (WHERE a.status = 'failed'), \
        count(*) FILTER (WHERE a.status NOT IN ('succeeded', 'failed')), \
        count(*) FILTER (WHERE ",
    abandoned!(),
    ") FROM queue_worker_git.analyses a WHERE a.repository_id = $1 AND a.profile_id = $2"
);

/// `$3` tasks.
const LEFT_BY: &str = "\
    SELECT count(*) FROM queue_worker_git.analyses \
    WHERE repository_id = $1 AND profile_id = $2 AND task_id = ANY($3) \
        AND status NOT IN ('succeeded', 'failed')";

/// How far the commits of a repository are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Analysed.
    pub succeeded: u64,
    /// Refused for good, under a name.
    pub refused: u64,
    /// Neither.
    pub open: u64,
    /// Of these: their task has ended or is forgotten, and nobody works on them.
    pub abandoned: u64,
}

impl Results {
    /// Those of `commits` that are done or refused for good.
    pub async fn terminal(
        &self,
        place: Place,
        commits: &[ObjectId],
    ) -> Result<HashSet<ObjectId>, ResultsError> {
        let mut terminal = HashSet::new();
        for part in commits.chunks(AT_ONCE) {
            let rows = self
                .call("look up commits", async |connection| {
                    sqlx::query(TERMINAL)
                        .bind(place.repository)
                        .bind(place.profile)
                        .bind(raw(part))
                        .fetch_all(connection)
                        .await
                })
                .await?;
            terminal.extend(rows.iter().filter_map(|row| ObjectId::from_bytes(row.get(0))));
        }
        Ok(terminal)
    }

    /// Claims those of `commits` that are neither done nor refused for good, each under a new fence.
    pub async fn claim(
        &self,
        place: Place,
        commits: &[ObjectId],
        task: &str,
    ) -> Result<Vec<Claim>, ResultsError> {
        let rows = self
            .call("claim commits", async |connection| {
                sqlx::query(CLAIM)
                    .bind(place.repository)
                    .bind(place.profile)
                    .bind(raw(commits))
                    .bind(task)
                    .fetch_all(connection)
                    .await
            })
            .await?;
        let claim = |row: &sqlx::postgres::PgRow| {
            let id = ObjectId::from_bytes(row.get(1))?;
            Some(Claim { key: row.get(0), id, fence: row.get(2) })
        };
        Ok(rows.iter().filter_map(claim).collect())
    }

    /// Says of claimed commits that nobody works on them any more.
    pub async fn give_back(&self, claims: &[Claim]) -> Result<(), ResultsError> {
        let keys: Vec<i64> = claims.iter().map(|claim| claim.key).collect();
        let fences: Vec<i64> = claims.iter().map(|claim| claim.fence).collect();
        self.call("give commits back", async |connection| {
            sqlx::query(GIVE_BACK).bind(keys).bind(fences).execute(connection).await
        })
        .await
        .map(drop)
    }

    /// How far the commits of a repository are. Reads all its rows.
    pub async fn progress(&self, place: Place) -> Result<Progress, ResultsError> {
        let row = self
            .call("count commits", async |connection| {
                sqlx::query(PROGRESS)
                    .bind(place.repository)
                    .bind(place.profile)
                    .fetch_one(connection)
                    .await
            })
            .await?;
        let count = |column: usize| row.get::<i64, _>(column).try_into().unwrap_or(0);
        Ok(Progress { succeeded: count(0), refused: count(1), open: count(2), abandoned: count(3) })
    }

    /// How many commits of a repository are open and belong to one of these tasks.
    pub async fn left_by(&self, place: Place, tasks: &[String]) -> Result<u64, ResultsError> {
        let left: i64 = self
            .call("count commits", async |connection| {
                sqlx::query_scalar(LEFT_BY)
                    .bind(place.repository)
                    .bind(place.profile)
                    .bind(tasks)
                    .fetch_one(connection)
                    .await
            })
            .await?;
        Ok(left.try_into().unwrap_or(0))
    }
}

pub(super) fn raw(commits: &[ObjectId]) -> Vec<&[u8]> {
    commits.iter().map(ObjectId::as_bytes).collect()
}

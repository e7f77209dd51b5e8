//! Commits that were refused, or that nobody works on any more, made open again.
//!
//! For after the cause was mended: access that was denied, a repository that was damaged, tasks that
//! have failed. Nothing is lost by it, since such commits have no rows but their status; only what is
//! asked for although it was analysed loses its rows until it is analysed again.

use sqlx::Row;

use super::claims::abandoned;
use super::{Place, Results, ResultsError};
use crate::handler::git::flags::Flags;
use crate::handler::git::oid::ObjectId;

/// `$3` codes or null, `$4` milliseconds since the Unix epoch or null for now. The minute is for
/// clocks that differ, and more: whoever errs makes a task too many, which finds its commits done.
const REOPEN: &str = concat!(
    "UPDATE queue_worker_git.analyses a SET status = 'queued', error_code = NULL, task_id = NULL \
    WHERE a.repository_id = $1 AND a.profile_id = $2 AND ( \
        a.status = 'failed' AND ($3::text[] IS NULL OR a.error_code = ANY($3)) \
        OR $3::text[] IS NULL AND (",
    abandoned!(),
    " OR a.status = 'queued' \
            AND a.queued_at < COALESCE(to_timestamp($4::bigint / 1000), clock_timestamp()) \
                - interval '1 minute' \
            AND NOT EXISTS \
                (SELECT 1 FROM queue_worker.processed_tasks t WHERE t.task_id = a.task_id))) \
    RETURNING a.oid"
);

/// `$3` the flag.
const REOPEN_FLAGGED: &str = "\
    WITH gone AS ( \
        DELETE FROM queue_worker_git.commits c \
        WHERE c.repository_id = $1 AND c.profile_id = $2 AND c.flags & $3 <> 0 RETURNING c.id) \
    UPDATE queue_worker_git.analyses a SET status = 'queued', task_id = NULL \
    FROM gone WHERE a.id = gone.id AND a.status = 'succeeded' RETURNING a.oid";

const SOURCE: &str = "SELECT name, url FROM queue_worker_git.repositories WHERE id = $1";

/// Which commits are to be done again.
#[derive(Debug, Clone, Copy)]
pub struct Reopen<'a> {
    /// Those refused under one of these; `None` for all that were, and those that nobody works on.
    pub codes: Option<&'a [String]>,
    /// Also those whose lines were not counted: [`Flags::TRUNCATED`].
    pub truncated: bool,
    /// When the oldest entry was added that still is in a stream, in milliseconds since the Unix
    /// epoch: whatever was queued before has lost its task, unless the ledger knows it. `None` where
    /// the streams are empty.
    pub oldest_ms: Option<i64>,
}

impl Results {
    /// Opens commits again; they belong to nobody until [`Results::hand_on`]. Answers which.
    pub async fn reopen(
        &self,
        place: Place,
        which: Reopen<'_>,
    ) -> Result<Vec<ObjectId>, ResultsError> {
        let mut rows = self
            .call("reopen commits", async |connection| {
                sqlx::query(REOPEN)
                    .bind(place.repository)
                    .bind(place.profile)
                    .bind(which.codes)
                    .bind(which.oldest_ms)
                    .fetch_all(connection)
                    .await
            })
            .await?;
        if which.truncated {
            let flag = Flags::TRUNCATED.bits().cast_signed();
            let flagged = self
                .call("reopen commits", async |connection| {
                    sqlx::query(REOPEN_FLAGGED)
                        .bind(place.repository)
                        .bind(place.profile)
                        .bind(flag)
                        .fetch_all(connection)
                        .await
                })
                .await?;
            rows.extend(flagged);
        }
        Ok(rows.iter().filter_map(|row| ObjectId::from_bytes(row.get(0))).collect())
    }

    /// The name and the last URL of a repository.
    pub async fn source(&self, place: Place) -> Result<(String, String), ResultsError> {
        let row = self
            .call("look up the repository", async |connection| {
                sqlx::query(SOURCE).bind(place.repository).fetch_one(connection).await
            })
            .await?;
        Ok((row.get(0), row.get(1)))
    }
}

//! Commits that were refused, or that nobody works on any more, made open again.
//!
//! For after the cause was mended: access that was denied, a repository that was damaged, tasks that
//! have failed. Nothing is lost by it, since such commits have no rows but their status.

use sqlx::Row;

use super::{Place, Results, ResultsError};
use crate::handler::git::oid::ObjectId;

/// Those without a task that could still do them: it has ended, or there never was one.
const REOPEN: &str = "\
    UPDATE queue_worker_git.analyses a SET status = 'released', error_code = NULL \
    WHERE a.repository_id = $1 AND a.profile_id = $2 AND ( \
        a.status = 'failed' AND ($3::text[] IS NULL OR a.error_code = ANY($3)) \
        OR $3::text[] IS NULL AND a.status IN ('queued', 'running', 'released') \
            AND (EXISTS (SELECT 1 FROM queue_worker.processed_tasks t WHERE t.task_id = a.task_id \
                    AND t.status IN ('succeeded', 'failed', 'dead')) \
                OR a.status = 'released' AND NOT EXISTS \
                    (SELECT 1 FROM queue_worker.processed_tasks t WHERE t.task_id = a.task_id))) \
    RETURNING a.oid";

const SOURCE: &str = "SELECT name, url FROM queue_worker_git.repositories WHERE id = $1";

impl Results {
    /// Opens commits again that were refused under one of `codes`; without codes all that were, and
    /// those whose task has ended without them. Answers which.
    pub async fn reopen(
        &self,
        place: Place,
        codes: Option<&[String]>,
    ) -> Result<Vec<ObjectId>, ResultsError> {
        let rows = self
            .call("reopen commits", async |connection| {
                sqlx::query(REOPEN)
                    .bind(place.repository)
                    .bind(place.profile)
                    .bind(codes)
                    .fetch_all(connection)
                    .await
            })
            .await?;
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

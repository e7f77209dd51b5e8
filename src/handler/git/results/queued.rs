//! Commits that tasks are made for.
//!
//! They are noted after the task's entry is in the stream, so a commit that is queued for a task that
//! nobody has ever seen is one whose entry was lost. A commit that is opened again belongs to whoever
//! opened it until then.

use std::collections::{HashMap, HashSet};

use sqlx::Row;

use super::claims::{AT_ONCE, raw};
use super::{Place, Results, ResultsError};
use crate::handler::git::oid::ObjectId;
use crate::handler::git::outcome::Refusal;

/// What is proved wrong of a commit that a mirror has just listed; the last only if its parents are
/// there as well.
const DISPROVED: [Refusal; 3] =
    [Refusal::CommitGone, Refusal::RepoUnreadable, Refusal::ShallowBoundary];

/// `$3` commits, `$4` whether their parents are there, `$5` for whom, `$6` all codes, `$7` the one of
/// missing parents. What was opened for the same before and has no task yet is answered again.
const DISPROVE: &str = "\
    UPDATE queue_worker_git.analyses a SET status = 'queued', error_code = NULL, task_id = $5, \
        queued_at = clock_timestamp() \
    FROM unnest($3::bytea[], $4::bool[]) AS k (oid, whole) \
    WHERE a.repository_id = $1 AND a.profile_id = $2 AND a.oid = k.oid \
        AND (a.status = 'failed' AND a.error_code = ANY($6::text[]) \
                AND (k.whole OR a.error_code <> $7) \
            OR a.status = 'queued' AND a.task_id = $5) \
    RETURNING a.oid, a.fence";

/// `$3` commits, `$4` their tasks.
const QUEUE: &str = "\
    INSERT INTO queue_worker_git.analyses (repository_id, profile_id, oid, status, task_id) \
    SELECT $1, $2, k.oid, 'queued', k.task \
    FROM unnest($3::bytea[], $4::text[]) AS k (oid, task) ORDER BY k.oid \
    ON CONFLICT (repository_id, profile_id, oid) DO NOTHING";

/// `$3` commits, `$4` their tasks, `$5` who had them.
const HAND_ON: &str = "\
    UPDATE queue_worker_git.analyses a SET task_id = k.task, queued_at = clock_timestamp() \
    FROM unnest($3::bytea[], $4::text[]) AS k (oid, task) \
    WHERE a.repository_id = $1 AND a.profile_id = $2 AND a.oid = k.oid AND a.status = 'queued' \
        AND a.task_id IS NOT DISTINCT FROM $5::text";

impl Results {
    /// Opens again those of `commits`, which a mirror has just listed, that were refused because they
    /// or their repository were not there; `boundary` are those whose parents are still missing. They
    /// belong to `task` until [`Results::hand_on`]. Answers them with their fences: a second time the
    /// same, as long as no run has claimed them.
    pub async fn disprove(
        &self,
        place: Place,
        commits: &[ObjectId],
        boundary: &HashSet<ObjectId>,
        task: &str,
    ) -> Result<HashMap<ObjectId, i64>, ResultsError> {
        let codes = DISPROVED.map(Refusal::as_str);
        let mut opened = HashMap::new();
        for part in commits.chunks(AT_ONCE) {
            let whole: Vec<bool> = part.iter().map(|commit| !boundary.contains(commit)).collect();
            let rows = self
                .call("reopen commits", async |connection| {
                    sqlx::query(DISPROVE)
                        .bind(place.repository)
                        .bind(place.profile)
                        .bind(raw(part))
                        .bind(&whole)
                        .bind(task)
                        .bind(codes)
                        .bind(Refusal::ShallowBoundary.as_str())
                        .fetch_all(connection)
                        .await
                })
                .await?;
            let pair =
                |row: &sqlx::postgres::PgRow| Some((ObjectId::from_bytes(row.get(0))?, row.get(1)));
            opened.extend(rows.iter().filter_map(pair));
        }
        Ok(opened)
    }

    /// Notes commits whose tasks are in the stream; what is known already stays as it is.
    pub async fn queue(
        &self,
        place: Place,
        commits: &[(ObjectId, &str)],
    ) -> Result<(), ResultsError> {
        for part in commits.chunks(AT_ONCE) {
            let (ids, tasks) = columns(part);
            self.call("queue commits", async |connection| {
                sqlx::query(QUEUE)
                    .bind(place.repository)
                    .bind(place.profile)
                    .bind(ids)
                    .bind(tasks)
                    .execute(connection)
                    .await
            })
            .await?;
        }
        Ok(())
    }

    /// Notes the tasks of commits that were opened again by `from` and that nobody has claimed; their
    /// entries are in the stream.
    pub async fn hand_on(
        &self,
        place: Place,
        commits: &[(ObjectId, &str)],
        from: Option<&str>,
    ) -> Result<(), ResultsError> {
        for part in commits.chunks(AT_ONCE) {
            let (ids, tasks) = columns(part);
            self.call("queue commits", async |connection| {
                sqlx::query(HAND_ON)
                    .bind(place.repository)
                    .bind(place.profile)
                    .bind(ids)
                    .bind(tasks)
                    .bind(from)
                    .execute(connection)
                    .await
            })
            .await?;
        }
        Ok(())
    }
}

fn columns<'a>(commits: &'a [(ObjectId, &'a str)]) -> (Vec<&'a [u8]>, Vec<&'a str>) {
    commits.iter().map(|(id, task)| (id.as_bytes(), *task)).unzip()
}

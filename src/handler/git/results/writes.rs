//! Writes what was found out: all rows of a commit in one transaction, its status last.
//!
//! The transaction begins by locking the rows of the commits whose fence is still ours; the others are
//! left out. What Postgres refuses of one commit does not hold up its neighbours.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};

use super::columns::{
    COMMITS, Commit, FILE_CHANGES, PARENTS, TRAILERS, bind_changes, bind_commits, bind_parents,
    bind_trailers, text,
};
use super::facts::IdentityKey;
use super::{Finished, Place, Results, ResultsError};
use crate::handler::git::analysis::Analysis;
use crate::handler::git::change::FileChange;
use crate::handler::git::outcome::Outcome;

/// What Postgres writes in a second at the least, in bytes of [`Analysis::weight`]: a transaction gets
/// so much more time.
const SLOWEST: usize = 256 * 1024;
/// File changes of one statement.
const CHANGES_AT_ONCE: usize = 5_000;

const STILL_OURS: &str = "\
    SELECT a.id FROM queue_worker_git.analyses a \
    JOIN unnest($1::bigint[], $2::bigint[]) AS k (id, fence) ON a.id = k.id AND a.fence = k.fence \
    WHERE a.status = 'running' ORDER BY a.id FOR UPDATE OF a";

const FINISH: &str = "\
    UPDATE queue_worker_git.analyses a SET status = k.status, error_code = k.code, \
        error_detail = k.detail, finished_at = clock_timestamp(), took_us = k.took \
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[]) \
        AS k (id, fence, status, code, detail, took) \
    WHERE a.id = k.id AND a.fence = k.fence AND a.status = 'running'";

impl Results {
    /// Writes how commits ended, all or none of them, except those whose fence has moved on. Answers
    /// the keys of those that were written.
    ///
    /// # Errors
    /// [`ResultsError::Refused`] if Postgres takes some value not; then nothing is written.
    pub async fn write(
        &self,
        place: Place,
        finished: &[Finished<'_>],
    ) -> Result<HashSet<i64>, ResultsError> {
        let analyses = finished.iter().filter_map(|one| one.outcome.analysis());
        let identities = analyses.clone().flat_map(|it| [&it.author, &it.committer]);
        let people = self.identities(place.repository, identities).await?;
        let weight: usize = analyses.map(Analysis::weight).sum();
        let time = self.timeout + Duration::from_secs((weight / SLOWEST) as u64);
        self.call_within(time, "write results", async |connection| {
            let mut transaction = connection.begin().await?;
            let ours = lock(&mut transaction, finished).await?;
            let finished: Vec<&Finished<'_>> =
                finished.iter().filter(|one| ours.contains(&one.claim.key)).collect();
            rows(&mut transaction, place, &finished, &people).await?;
            statuses(&mut transaction, &finished).await?;
            transaction.commit().await?;
            Ok(ours)
        })
        .await
    }
}

async fn lock(
    connection: &mut PgConnection,
    finished: &[Finished<'_>],
) -> Result<HashSet<i64>, sqlx::Error> {
    let rows = sqlx::query(STILL_OURS)
        .bind(finished.iter().map(|one| one.claim.key).collect::<Vec<_>>())
        .bind(finished.iter().map(|one| one.claim.fence).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn rows(
    connection: &mut PgConnection,
    place: Place,
    finished: &[&Finished<'_>],
    people: &HashMap<IdentityKey, i64>,
) -> Result<(), sqlx::Error> {
    let commits: Vec<Commit<'_>> = finished
        .iter()
        .filter_map(|one| Some(Commit { key: one.claim.key, analysis: one.outcome.analysis()? }))
        .collect();
    if commits.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(COMMITS).bind(place.repository).bind(place.profile);
    // Every identity was looked up just now; 0 names nobody and is refused.
    bind_commits(query, &commits, |key| people.get(key).copied().unwrap_or(0))
        .execute(&mut *connection)
        .await?;
    let parents: Vec<_> = commits
        .iter()
        .flat_map(|commit| {
            (0_i32..).zip(&commit.analysis.parents).map(|(ord, oid)| (commit.key, ord, oid))
        })
        .collect();
    if !parents.is_empty() {
        bind_parents(sqlx::query(PARENTS), &parents).execute(&mut *connection).await?;
    }
    let changes: Vec<(i64, &FileChange)> = commits
        .iter()
        .flat_map(|commit| commit.analysis.changes.iter().map(|change| (commit.key, change)))
        .collect();
    for part in changes.chunks(CHANGES_AT_ONCE) {
        bind_changes(sqlx::query(FILE_CHANGES), part).execute(&mut *connection).await?;
    }
    if commits.iter().any(|commit| !commit.analysis.trailers.is_empty()) {
        bind_trailers(sqlx::query(TRAILERS), &commits).execute(connection).await?;
    }
    Ok(())
}

async fn statuses(
    connection: &mut PgConnection,
    finished: &[&Finished<'_>],
) -> Result<(), sqlx::Error> {
    let ends: Vec<End<'_>> = finished.iter().map(|one| end(one.outcome)).collect();
    let took = |one: &&Finished<'_>| i64::try_from(one.took.as_micros()).unwrap_or(i64::MAX);
    sqlx::query(FINISH)
        .bind(finished.iter().map(|one| one.claim.key).collect::<Vec<_>>())
        .bind(finished.iter().map(|one| one.claim.fence).collect::<Vec<_>>())
        .bind(ends.iter().map(|end| end.status).collect::<Vec<_>>())
        .bind(ends.iter().map(|end| end.code).collect::<Vec<_>>())
        .bind(ends.iter().map(|end| end.detail.map(text)).collect::<Vec<_>>())
        .bind(finished.iter().map(took).collect::<Vec<_>>())
        .execute(connection)
        .await
        .map(drop)
}

/// What the row of a commit says of its end.
struct End<'a> {
    status: &'static str,
    code: Option<&'static str>,
    detail: Option<&'a str>,
}

fn end(outcome: &Outcome) -> End<'_> {
    match outcome {
        Outcome::Analysed(_) => End { status: "succeeded", code: None, detail: None },
        Outcome::Refused { reason, detail } => {
            End { status: "failed", code: Some(reason.as_str()), detail: Some(detail) }
        }
        Outcome::Failed { detail } => End { status: "released", code: None, detail: Some(detail) },
    }
}

//! The heartbeat's renewal of leases.
//!
//! On a connection of its own. A row that another transaction has locked is passed over instead of
//! waited for: most likely it is our own completion, and one slow completion must not cost all the
//! others their leases.

use std::collections::HashMap;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};

use super::session::within;
use super::{Inner, statements};
use crate::domain::Held;
use crate::ledger::{Beat, LedgerError};

/// See [`crate::ledger::Ledger::renew`].
pub(super) async fn renew(inner: &Inner, held: &[Held]) -> Result<Vec<Beat>, LedgerError> {
    if held.is_empty() {
        return Ok(Vec::new());
    }
    let mut session = inner.beats.open().await?;
    let answer = within(inner.call_timeout, renew_rows(inner, session.connection(), held)).await;
    session.finish("renew leases", answer).await
}

async fn renew_rows(
    inner: &Inner,
    connection: &mut PgConnection,
    held: &[Held],
) -> Result<Vec<Beat>, sqlx::Error> {
    let tasks: Vec<(&str, i64)> =
        held.iter().map(|held| (held.task_id.as_str(), held.fence.0)).collect();
    let resources: Vec<(&str, i64)> = held
        .iter()
        .filter_map(|held| held.resource.as_ref())
        .map(|(key, fence)| (key.as_str(), fence.0))
        .collect();
    let renewed = if resources.is_empty() {
        let tasks = renew_all(inner, connection, statements::RENEW_TASKS, &tasks).await?;
        Fences { tasks, resources: HashMap::new() }
    } else {
        let mut both = connection.begin().await?;
        let resources =
            renew_all(inner, &mut both, statements::RENEW_RESOURCES, &resources).await?;
        let tasks = renew_all(inner, &mut both, statements::RENEW_TASKS, &tasks).await?;
        both.commit().await?;
        Fences { tasks, resources }
    };
    let missing: Vec<&Held> = held.iter().filter(|held| !renewed.cover(held)).collect();
    if missing.is_empty() {
        return Ok(vec![Beat::Renewed; held.len()]);
    }
    let standing = look_up(connection, &missing).await?;
    Ok(held
        .iter()
        .map(|held| {
            if renewed.cover(held) {
                Beat::Renewed
            } else if standing.cover(held) {
                Beat::Locked
            } else {
                Beat::Lost
            }
        })
        .collect())
}

/// The fences of rows and resources, by their ids and keys.
struct Fences {
    tasks: HashMap<String, i64>,
    resources: HashMap<String, i64>,
}

impl Fences {
    /// Whether the task is here with its fence, and so is its resource.
    fn cover(&self, held: &Held) -> bool {
        self.tasks.get(held.task_id.as_str()) == Some(&held.fence.0)
            && held
                .resource
                .as_ref()
                .is_none_or(|(key, fence)| self.resources.get(key.as_str()) == Some(&fence.0))
    }
}

async fn renew_all(
    inner: &Inner,
    connection: &mut PgConnection,
    statement: &'static str,
    rows: &[(&str, i64)],
) -> Result<HashMap<String, i64>, sqlx::Error> {
    let query = sqlx::query_as(statement)
        .bind(rows.iter().map(|(id, _)| *id).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, fence)| *fence).collect::<Vec<_>>())
        .bind(inner.lease_ms());
    // Only tasks are looked after when their lease is over.
    let query =
        if statement == statements::RENEW_TASKS { query.bind(inner.lease_ms()) } else { query };
    let renewed: Vec<(String, i64)> = query.fetch_all(connection).await?;
    Ok(renewed.into_iter().collect())
}

/// The fences that stand, locked or not.
async fn look_up(connection: &mut PgConnection, missing: &[&Held]) -> Result<Fences, sqlx::Error> {
    let ids: Vec<&str> = missing.iter().map(|held| held.task_id.as_str()).collect();
    let keys: Vec<&str> = missing
        .iter()
        .filter_map(|held| held.resource.as_ref().map(|(key, _)| key.as_str()))
        .collect();
    let rows = sqlx::query(statements::OUTCOMES).bind(ids).fetch_all(&mut *connection).await?;
    let mut tasks = HashMap::with_capacity(rows.len());
    for row in &rows {
        if row.try_get::<&str, _>(1)? == "running" {
            tasks.insert(row.try_get(0)?, row.try_get(2)?);
        }
    }
    let resources: Vec<(String, i64)> = if keys.is_empty() {
        Vec::new()
    } else {
        sqlx::query_as(statements::RESOURCE_FENCES).bind(keys).fetch_all(connection).await?
    };
    Ok(Fences { tasks, resources: resources.into_iter().collect() })
}

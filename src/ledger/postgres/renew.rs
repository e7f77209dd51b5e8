//! The heartbeat's renewal of leases.
//!
//! On a connection of its own. A row that another transaction has locked is passed over instead of
//! waited for: most likely it is our own completion, and one slow completion must not cost all the
//! others their leases.

use std::collections::{HashMap, HashSet};

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
    let (renewed, renewed_resources) = if resources.is_empty() {
        (renew_all(inner, connection, statements::RENEW_TASKS, &tasks).await?, HashSet::new())
    } else {
        let mut both = connection.begin().await?;
        let keys = renew_all(inner, &mut both, statements::RENEW_RESOURCES, &resources).await?;
        let ids = renew_all(inner, &mut both, statements::RENEW_TASKS, &tasks).await?;
        both.commit().await?;
        (ids, keys)
    };
    let is_renewed = |held: &Held| {
        renewed.contains(held.task_id.as_str())
            && held
                .resource
                .as_ref()
                .is_none_or(|(key, _)| renewed_resources.contains(key.as_str()))
    };
    let missing: Vec<&Held> = held.iter().filter(|held| !is_renewed(held)).collect();
    if missing.is_empty() {
        return Ok(vec![Beat::Renewed; held.len()]);
    }
    let alive = still_ours(connection, &missing).await?;
    Ok(held
        .iter()
        .map(|held| {
            if is_renewed(held) {
                Beat::Renewed
            } else if alive.contains(held.task_id.as_str()) {
                Beat::Locked
            } else {
                Beat::Lost
            }
        })
        .collect())
}

async fn renew_all(
    inner: &Inner,
    connection: &mut PgConnection,
    statement: &'static str,
    rows: &[(&str, i64)],
) -> Result<HashSet<String>, sqlx::Error> {
    sqlx::query_scalar(statement)
        .bind(rows.iter().map(|(id, _)| *id).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, fence)| *fence).collect::<Vec<_>>())
        .bind(inner.lease_ms())
        .fetch_all(connection)
        .await
        .map(|ids: Vec<String>| ids.into_iter().collect())
}

/// The ids of those whose fences stand, on row and resource.
async fn still_ours<'a>(
    connection: &mut PgConnection,
    missing: &[&'a Held],
) -> Result<HashSet<&'a str>, sqlx::Error> {
    let ids: Vec<&str> = missing.iter().map(|held| held.task_id.as_str()).collect();
    let keys: Vec<&str> = missing
        .iter()
        .filter_map(|held| held.resource.as_ref().map(|(key, _)| key.as_str()))
        .collect();
    let rows = sqlx::query(statements::OUTCOMES).bind(ids).fetch_all(&mut *connection).await?;
    let mut running: HashMap<&str, i64> = HashMap::with_capacity(rows.len());
    for row in &rows {
        if row.try_get::<&str, _>(1)? == "running" {
            running.insert(row.try_get(0)?, row.try_get(2)?);
        }
    }
    let rows = if keys.is_empty() {
        Vec::new()
    } else {
        sqlx::query(statements::RESOURCE_FENCES).bind(keys).fetch_all(connection).await?
    };
    let mut resources: HashMap<&str, i64> = HashMap::with_capacity(rows.len());
    for row in &rows {
        resources.insert(row.try_get(0)?, row.try_get(1)?);
    }
    Ok(missing
        .iter()
        .filter(|held| {
            running.get(held.task_id.as_str()) == Some(&held.fence.0)
                && held
                    .resource
                    .as_ref()
                    .is_none_or(|(key, fence)| resources.get(key.as_str()) == Some(&fence.0))
        })
        .map(|held| held.task_id.as_str())
        .collect())
}

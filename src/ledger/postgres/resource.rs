//! Resources: what tasks with the same lock key share, one at a time.
//!
//! A resource is taken in the transaction of its task, before the row: everywhere resources are
//! locked before rows, and in the order of their keys. That transaction commits only if every task
//! in it is granted, so that a refused task never raises the fence of a resource.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};

use super::claim::{MOVED_ON, claim_rows, classify, duration};
use super::session::Trouble;
use super::{Inner, statements};
use crate::domain::{Fence, Held, LockKey, Task};
use crate::ledger::{Claimed, Grant};

/// Claims tasks with a lock key; each answer is final and committed.
pub(super) async fn claim_keyed(
    inner: &Inner,
    connection: &mut PgConnection,
    tasks: &[Arc<Task>],
    suspects: i32,
) -> Result<Vec<Claimed>, Trouble> {
    let mut answers: Vec<Option<Claimed>> = vec![None; tasks.len()];
    let mut keys = HashSet::new();
    let mut candidates: Vec<usize> =
        (0..tasks.len()).filter(|&at| keys.insert(tasks[at].lock_key.as_ref())).collect();
    // Each round either commits or leaves out at least one candidate.
    while !candidates.is_empty() {
        let group: Vec<Arc<Task>> = candidates.iter().map(|&at| Arc::clone(&tasks[at])).collect();
        let mut transaction = connection.begin().await?;
        let mut grants = claim_with_resources(inner, &mut transaction, &group, suspects).await?;
        let complete = grants.iter().all(|grant| !matches!(grant, Keyed::Refused));
        if complete {
            transaction.commit().await?;
            for (&at, grant) in candidates.iter().zip(grants) {
                if let Keyed::Granted(grant) = grant {
                    answers[at] = Some(Claimed::Granted(grant));
                }
            }
            break;
        }
        transaction.rollback().await?;
        let mut kept = grants.drain(..).map(|grant| !matches!(grant, Keyed::Refused));
        candidates.retain(|_| kept.next().unwrap_or(false));
    }
    let open: Vec<&Arc<Task>> =
        tasks.iter().zip(&answers).filter(|(_, a)| a.is_none()).map(|(task, _)| task).collect();
    if open.is_empty() {
        return Ok(answers.into_iter().flatten().collect());
    }
    let mut refusals = refuse_keyed(inner, connection, &open, suspects).await?.into_iter();
    Ok(answers
        .into_iter()
        .map(|answer| answer.or_else(|| refusals.next()).unwrap_or(MOVED_ON))
        .collect())
}

/// What became of a claim with a resource, in a transaction that is still open.
enum Keyed {
    /// Resource and task are ours.
    Granted(Grant),
    /// The resource is another task's; nothing was written.
    Busy,
    /// The resource would be ours, but the task is not: the transaction must not commit.
    Refused,
}

/// Takes the resources of tasks with distinct lock keys, then the tasks; sorted by id.
async fn claim_with_resources(
    inner: &Inner,
    connection: &mut PgConnection,
    tasks: &[Arc<Task>],
    suspects: i32,
) -> Result<Vec<Keyed>, sqlx::Error> {
    let mut wanted: Vec<(&LockKey, &str)> = tasks
        .iter()
        .filter_map(|task| task.lock_key.as_ref().map(|key| (key, task.id.as_str())))
        .collect();
    wanted.sort_unstable();
    let rows = sqlx::query(statements::CLAIM_RESOURCES)
        .bind(wanted.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>())
        .bind(wanted.iter().map(|(_, id)| *id).collect::<Vec<_>>())
        .bind(inner.lease_ms())
        .fetch_all(&mut *connection)
        .await?;
    let mut fences = HashMap::with_capacity(rows.len());
    for row in &rows {
        fences.insert(row.try_get::<&str, _>(0)?, Fence(row.try_get(1)?));
    }
    let fence = |task: &Task| {
        task.lock_key.as_ref().and_then(|key| Some((key.clone(), *fences.get(key.as_str())?)))
    };
    let won: Vec<Arc<Task>> = tasks.iter().filter(|task| fence(task).is_some()).cloned().collect();
    let grants = if won.is_empty() {
        Vec::new()
    } else {
        claim_rows(inner, connection, &won, false, suspects).await?
    };
    let mut grants = grants.into_iter();
    Ok(tasks
        .iter()
        .map(|task| match fence(task) {
            None => Keyed::Busy,
            Some(resource) => match grants.next().flatten() {
                None => Keyed::Refused,
                Some(mut grant) => {
                    grant.held.resource = Some(resource);
                    Keyed::Granted(grant)
                }
            },
        })
        .collect())
}

/// Says what stands in the way of each task: its own row first, else its resource.
async fn refuse_keyed(
    inner: &Inner,
    connection: &mut PgConnection,
    tasks: &[&Arc<Task>],
    suspects: i32,
) -> Result<Vec<Claimed>, sqlx::Error> {
    let refusals = classify(inner, connection, tasks, suspects).await?;
    let keys: Vec<&str> =
        tasks.iter().filter_map(|task| task.lock_key.as_ref().map(LockKey::as_str)).collect();
    let rows =
        sqlx::query(statements::RESOURCE_LEASES).bind(keys).fetch_all(&mut *connection).await?;
    let mut leases = HashMap::with_capacity(rows.len());
    for row in &rows {
        leases.insert(row.try_get::<&str, _>(0)?, duration(row.try_get(1)?));
    }
    let left = |task: &Task| {
        let key = task.lock_key.as_ref()?;
        leases.get(key.as_str()).copied()
    };
    Ok(tasks
        .iter()
        .zip(refusals)
        .map(|(task, refusal)| {
            refusal.unwrap_or(Claimed::Contended { remaining: left(task).unwrap_or_default() })
        })
        .collect())
}

/// Frees the resources that are still held under their fences, and answers which. One that is
/// missing was taken over by another task: whatever was done to it may not count as a success.
pub(super) async fn free(
    connection: &mut PgConnection,
    held: impl Iterator<Item = &Held>,
) -> Result<HashSet<String>, sqlx::Error> {
    let mut resources: Vec<(&LockKey, Fence, &str)> = held
        .filter_map(|held| {
            held.resource.as_ref().map(|(key, fence)| (key, *fence, held.task_id.as_str()))
        })
        .collect();
    if resources.is_empty() {
        return Ok(HashSet::new());
    }
    resources.sort_unstable();
    let freed: Vec<String> = sqlx::query_scalar(statements::FREE_RESOURCES)
        .bind(resources.iter().map(|(key, ..)| key.as_str()).collect::<Vec<_>>())
        .bind(resources.iter().map(|(_, fence, _)| fence.0).collect::<Vec<_>>())
        .bind(resources.iter().map(|(.., holder)| *holder).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    Ok(freed.into_iter().collect())
}

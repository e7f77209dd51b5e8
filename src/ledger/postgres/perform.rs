//! Effects that commit together with the success of their tasks.
//!
//! Tasks of the same effect share a transaction: claims (where they are part of it), then the
//! effect, then the fenced success last. A claim of this transaction marks its row as succeeded at
//! once: the row stays locked until the commit, so nobody can see or change it meanwhile. Whatever
//! goes wrong in a shared transaction rolls it back, and each task is tried again in one of its own.
//!
//! An effect may take long, and its connection cannot tell a server that works from one that is gone. So
//! a transaction of claimed tasks is given up, with its connection, when nobody waits for it any more
//! (their leases are over, or the worker leaves) or when the server no longer has the session. What had
//! become of it is then as unknown as when the answer to a COMMIT is lost: the rows tell, under their
//! fences.
//!
//! Effects run on sessions of their own, with the planner's settings as the server has them. What
//! an effect sets for its session (`SET` without `LOCAL`) stays there for later tasks.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

use super::backend::vanished;
use super::claim::{self, MOVED_ON};
use super::error::{self, Blame, QUERY_CANCELED, READ_ONLY, SHUTDOWN};
use super::record::{self, Outcome};
use super::resource;
use super::session::{Trouble, setting};
use super::{Inner, statements};
use crate::coalesce::{Pending, Reply};
use crate::domain::{Failure, Held, Task};
use crate::ledger::{
    Claimed, Effect, EffectConnection, EffectError, EffectItem, Grant, LedgerError, Performed,
    Recorded, Verdict,
};

/// A wish to apply an effect. All requests of a group have the same one.
pub(super) struct Request {
    /// The task.
    pub(super) task: Arc<Task>,
    /// Its claim; absent if that is to be part of the transaction.
    pub(super) grant: Option<Grant>,
    /// What to apply.
    pub(super) effect: Arc<dyn Effect>,
    /// The time limit of the effect.
    pub(super) timeout: Duration,
}

/// What a performance answers.
pub(super) type Answer = Result<Performed, LedgerError>;

/// Serves a group of requests for the same effect.
pub(super) async fn serve(inner: Arc<Inner>, group: Vec<Pending<Request, Answer>>) {
    let mut waiting: Vec<(Request, Reply<Answer>)> =
        group.into_iter().map(Pending::split).collect();
    waiting.sort_by(|(a, _), (b, _)| a.task.id.cmp(&b.task.id));
    let mut requests: Vec<Request> = Vec::with_capacity(waiting.len());
    let mut replies = Vec::with_capacity(waiting.len());
    for (request, reply) in waiting {
        if requests.last().is_some_and(|last| last.task.id == request.task.id) {
            let running = Claimed::Running { remaining: inner.lease };
            reply.answer(Ok(Performed::NotClaimed(running)));
        } else {
            requests.push(request);
            replies.push(reply);
        }
    }
    let waiting: Vec<_> = requests.into_iter().zip(replies).collect();
    for piece in inner.pieces.cut(waiting, |(request, _)| request.task.payload.len()) {
        perform_and_answer(&inner, piece).await;
    }
}

async fn perform_and_answer(inner: &Inner, waiting: Vec<(Request, Reply<Answer>)>) {
    let (requests, mut replies): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
    if requests.len() > 1 {
        match perform_together(inner, &requests, unwanted(&requests, &mut replies)).await {
            Ok(answers) => {
                let answers = replies.into_iter().zip(answers);
                return answers.for_each(|(reply, answer)| reply.answer(Ok(answer)));
            }
            Err(fault) => tracing::debug!(?fault, "group of effects rolled back, now singly"),
        }
    }
    for (request, mut reply) in requests.into_iter().zip(replies) {
        if request.grant.is_none() || !reply.is_unwanted() {
            let answer = perform_singly(inner, request, &mut reply).await;
            reply.answer(answer);
        }
    }
}

/// Resolves when nobody waits for any of the answers. Claims that are part of the transaction are
/// quick, and brought to their end.
async fn unwanted(requests: &[Request], replies: &mut [Reply<Answer>]) {
    if requests.iter().any(|request| request.grant.is_none()) {
        std::future::pending::<()>().await;
    }
    for reply in replies {
        reply.unwanted().await;
    }
}

/// Why a transaction was rolled back.
#[derive(Debug)]
enum Fault {
    /// The effect said so.
    Effect(EffectError),
    /// The effect panicked; the connection may be in the middle of something.
    Panicked,
    /// A row was no longer running under its fence.
    Stale,
    /// One of the ledger's own statements failed.
    Sql(sqlx::Error),
    /// The session could not be had, or went away.
    Ledger(LedgerError),
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

async fn perform_singly(inner: &Inner, request: Request, reply: &mut Reply<Answer>) -> Answer {
    let one = std::slice::from_ref(&request);
    let unwanted = unwanted(one, std::slice::from_mut(reply));
    let fault = match perform_together(inner, one, unwanted).await {
        Ok(mut answers) => return Ok(answers.pop().unwrap_or(Performed::NotClaimed(MOVED_ON))),
        Err(fault) => fault,
    };
    let address = inner.effects.address();
    match fault {
        Fault::Effect(EffectError::Failed(failure)) => Ok(Performed::Failed(failure)),
        Fault::Effect(EffectError::Database(error)) => match own_fault(&error) {
            Some(failure) => Ok(Performed::Failed(failure)),
            None => match hindrance(&error) {
                Some(failure) => Ok(Performed::Hindered(failure)),
                None => Err(error::ledger_error(address, "apply effect", &error)),
            },
        },
        Fault::Panicked => {
            let message = format!("the effect {} panicked", request.effect.name());
            Ok(Performed::Failed(Failure::retry(message).with_status("panic")))
        }
        // Another transaction is working on the very row.
        Fault::Ledger(LedgerError::Conflict { .. }) if request.grant.is_none() => {
            let running = Claimed::Running { remaining: inner.lock_timeout };
            Ok(Performed::NotClaimed(running))
        }
        Fault::Sql(error) => Err(error::ledger_error(address, "perform", &error)),
        Fault::Ledger(error) => Err(error),
        Fault::Stale => {
            let Some(grant) = request.grant else { return Ok(Performed::Stale) };
            let verdict = Verdict::Succeeded { result: None };
            let outcome = Outcome { task: request.task, held: grant.held, verdict };
            Ok(match record::is_recorded(inner, &outcome).await? {
                Recorded::Committed => Performed::Committed,
                Recorded::Stale => Performed::Stale,
            })
        }
    }
}

/// The failure of a task whose own statement Postgres refused; `None` if it was not its fault.
fn own_fault(error: &sqlx::Error) -> Option<Failure> {
    let Some(code) = error::sqlstate(error) else {
        return match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::BeginFailed => None,
            other => Some(Failure::retry(other.to_string())),
        };
    };
    if code == QUERY_CANCELED {
        return Some(Failure::retry("the effect ran over its time limit").with_status("timeout"));
    }
    match error::blame(&code) {
        Blame::Server | Blame::Contention | Blame::Login => None,
        Blame::Schema | Blame::Statement => Some(refused(error, &code)),
    }
}

/// What stood in the way of a statement, if the session is as good as before: it was rolled back there.
/// A server that goes down or only reads has to be found out about otherwise.
fn hindrance(error: &sqlx::Error) -> Option<Failure> {
    let code = error::sqlstate(error)?;
    let is_gone = code == READ_ONLY || code.starts_with(SHUTDOWN);
    (!is_gone).then(|| refused(error, &code))
}

fn refused(error: &sqlx::Error, code: &str) -> Failure {
    Failure::retry(error.to_string()).with_status(format!("sqlstate {code}"))
}

async fn perform_together(
    inner: &Inner,
    requests: &[Request],
    unwanted: impl Future<Output = ()>,
) -> Result<Vec<Performed>, Fault> {
    let limit = requests.iter().map(|request| request.timeout).min().unwrap_or_default();
    let mut session = inner.effects.open().await.map_err(Fault::Ledger)?;
    let backend = session.backend();
    let work = transact(inner, session.connection(), requests, limit);
    let ended = tokio::select! {
        biased;
        ended = tokio::time::timeout(limit.saturating_add(inner.call_timeout), work) => ended.ok(),
        () = unwanted => None,
        () = vanished(inner, backend) => None,
    };
    match ended {
        // Dropped, and so closed.
        Some(Err(Fault::Panicked)) => Err(Fault::Panicked),
        Some(Err(Fault::Sql(error))) => {
            let answer = session.finish::<()>("perform", Err(Trouble::Sql(error))).await;
            Err(answer.map_or_else(Fault::Ledger, |()| Fault::Stale))
        }
        Some(Err(Fault::Effect(EffectError::Database(error))))
            if error.as_database_error().is_none() =>
        {
            Err(Fault::Effect(EffectError::Database(error)))
        }
        Some(answer) => {
            session.finish("perform", Ok(())).await.map_err(Fault::Ledger)?;
            answer
        }
        None => {
            let answer = session.finish::<()>("perform", Err(Trouble::Deadline)).await;
            Err(answer.map_or_else(Fault::Ledger, |()| Fault::Stale))
        }
    }
}

async fn transact(
    inner: &Inner,
    connection: &mut PgConnection,
    requests: &[Request],
    limit: Duration,
) -> Result<Vec<Performed>, Fault> {
    // An effect may wait for locks as long as it likes; a claim that is part of the transaction
    // may not, or a duplicate delivery would hold up the whole group.
    let claims = requests.iter().any(|request| request.grant.is_none());
    let patience = if claims { limit.min(inner.call_timeout / 2) } else { limit };
    let begin = format!(
        "BEGIN; SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = {}",
        setting(limit),
        setting(patience),
    );
    let mut transaction = connection.begin_with(AssertSqlSafe(begin)).await?;
    match work(inner, &mut transaction, requests).await {
        Ok(performed) => {
            transaction.commit().await?;
            Ok(performed)
        }
        Err(fault @ (Fault::Panicked | Fault::Sql(_) | Fault::Ledger(_))) => Err(fault),
        Err(fault) => {
            transaction.rollback().await?;
            Err(fault)
        }
    }
}

async fn work(
    inner: &Inner,
    connection: &mut PgConnection,
    requests: &[Request],
) -> Result<Vec<Performed>, Fault> {
    let (mut grants, refusals) = claim_missing(inner, connection, requests).await?;
    let items: Vec<EffectItem> = requests
        .iter()
        .zip(&grants)
        .filter_map(|(request, grant)| {
            let grant = grant.as_ref()?;
            Some(EffectItem {
                task: Arc::clone(&request.task),
                fence: grant.held.effect_fence(),
                attempt: grant.attempt,
            })
        })
        .collect();
    if let (Some(request), false) = (requests.first(), items.is_empty()) {
        AssertUnwindSafe(request.effect.apply(EffectConnection::Postgres(connection), &items))
            .catch_unwind()
            .await
            .map_err(|_| Fault::Panicked)?
            .map_err(Fault::Effect)?;
    }
    let holders = grants.iter().flatten().filter(|grant| grant.held.resource.is_some()).count();
    let held = grants.iter().flatten().map(|grant| &grant.held);
    if resource::free(connection, held).await?.len() != holders {
        return Err(Fault::Stale);
    }
    let held: Vec<&Held> = requests
        .iter()
        .filter_map(|request| request.grant.as_ref().map(|grant| &grant.held))
        .collect();
    if !held.is_empty() && succeed(connection, &held).await? != held.len() {
        return Err(Fault::Stale);
    }
    let mut refusals = refusals.into_iter();
    Ok(grants
        .drain(..)
        .map(|grant| match grant {
            Some(_) => Performed::Committed,
            None => Performed::NotClaimed(refusals.next().unwrap_or(MOVED_ON)),
        })
        .collect())
}

/// One grant for each request: the one that it came with, or that of a claim in this transaction;
/// and the refusals, in order, of those that are none.
async fn claim_missing(
    inner: &Inner,
    connection: &mut PgConnection,
    requests: &[Request],
) -> Result<(Vec<Option<Grant>>, Vec<Claimed>), Fault> {
    let wanting: Vec<Arc<Task>> = requests
        .iter()
        .filter(|request| request.grant.is_none())
        .map(|request| Arc::clone(&request.task))
        .collect();
    let grants = match wanting.as_slice() {
        [] => Vec::new(),
        wanting => {
            claim::claim_rows(inner, connection, wanting, true, claim::SUSPECT_CRASHES).await?
        }
    };
    let refused: Vec<&Arc<Task>> = wanting
        .iter()
        .zip(&grants)
        .filter(|(_, grant)| grant.is_none())
        .map(|(task, _)| task)
        .collect();
    let mut refusals = Vec::new();
    if !refused.is_empty() {
        let answers = claim::classify(inner, connection, &refused, claim::SUSPECT_CRASHES).await?;
        refusals.extend(answers.into_iter().map(|answer| answer.unwrap_or(MOVED_ON)));
    }
    let mut claimed = grants.into_iter();
    let grants = requests
        .iter()
        .map(|request| request.grant.clone().or_else(|| claimed.next().flatten()))
        .collect();
    Ok((grants, refusals))
}

/// Runs the fenced success; answers how many rows were running under their fences.
async fn succeed(connection: &mut PgConnection, held: &[&Held]) -> Result<usize, sqlx::Error> {
    let done: i64 = sqlx::query_scalar(statements::SUCCEED_AFTER_EFFECT)
        .bind(held.iter().map(|held| held.task_id.as_str()).collect::<Vec<_>>())
        .bind(held.iter().map(|held| held.fence.0).collect::<Vec<_>>())
        .fetch_one(connection)
        .await?;
    Ok(usize::try_from(done).unwrap_or(0))
}

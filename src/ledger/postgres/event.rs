//! The history of a task: what happened to it besides being claimed and done.
//!
//! Written on the slow paths only, in the transaction of what it tells wherever there is one.

use std::borrow::Cow;

use sqlx::postgres::PgConnection;

use super::session::within;
use super::{Inner, statements};

/// One line of a task's history.
pub(super) struct Event<'a> {
    /// Which task.
    pub(super) task_id: &'a str,
    /// What happened, in a word.
    pub(super) what: &'static str,
    /// Under which fence.
    pub(super) fence: Option<i64>,
    /// In which attempt.
    pub(super) attempt: Option<i32>,
    /// One sentence more.
    pub(super) detail: Option<Cow<'a, str>>,
}

/// Writes events on a connection.
pub(super) async fn write(
    inner: &Inner,
    connection: &mut PgConnection,
    events: &[Event<'_>],
) -> Result<(), sqlx::Error> {
    sqlx::query(statements::EVENTS)
        .bind(events.iter().map(|event| event.task_id).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.what).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.fence).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.attempt).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.detail.as_deref()).collect::<Vec<_>>())
        .bind(inner.worker.0)
        .execute(connection)
        .await?;
    Ok(())
}

/// Writes events that are worth having but not worth an error.
pub(super) async fn note(inner: &Inner, events: &[Event<'_>]) {
    let noted = async {
        let mut session = inner.ledger.open().await?;
        let answer = within(inner.call_timeout, write(inner, session.connection(), events)).await;
        session.finish("note events", answer).await
    };
    if let Err(error) = noted.await {
        tracing::debug!(%error, "task history not written");
    }
}

//! Tasks that run Rust code of whoever uses this library.
//!
//! *External* handlers get the [`Run`] and do what they do at least once; *transactional* ones get
//! the connection of the completion's transaction, and their writes exist if and only if the task
//! has succeeded. A panic is a failure of the task and not the end of the worker. What a handler
//! spawns by itself is its own affair: it is neither awaited nor stopped.
//!
//! ```
//! use queue_worker::domain::Failure;
//! use queue_worker::handler::native;
//!
//! #[derive(serde::Deserialize)]
//! struct Resize { width: u32 }
//!
//! let resize = native::external(async |run| {
//!     let Resize { width } = native::json(&run.task.payload)?;
//!     if width == 0 {
//!         return Err(Failure::for_good("an image cannot be 0 pixels wide"));
//!     }
//!     Ok(Some(format!("{width} pixels").into()))
//! });
//! ```

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use sqlx::PgConnection;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::blame::blame;
use super::{ExternalHandler, Handler, Run};
use crate::domain::Failure;
use crate::ledger::{Effect, EffectConnection, EffectError, EffectItem};

/// Decodes a JSON payload. What does not fit the type now will not fit later: a failure for good.
pub fn json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(payload)
        .map_err(|error| Failure::for_good(format!("the payload is not what is expected: {error}")))
}

/// A handler with an effect outside of the ledger, run where the worker runs.
///
/// For cheap asynchronous code: whatever computes or blocks holds up the worker and belongs on a
/// runtime of its own, see [`external_on`].
pub fn external<F, Fut>(run: F) -> Handler
where
    F: Fn(Run) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<Bytes>, Failure>> + Send + 'static,
{
    Handler::External(Arc::new(Inline(run)))
}

/// A handler with an effect outside of the ledger, run on the runtime of `runtime`.
///
/// ```
/// use queue_worker::handler::native;
///
/// let handlers = tokio::runtime::Runtime::new().unwrap();
/// let checksum = native::external_on(handlers.handle().clone(), async |run| {
///     let sum: u64 = run.task.payload.iter().map(|byte| u64::from(*byte)).sum();
///     Ok(Some(sum.to_string().into()))
/// });
/// ```
pub fn external_on<F, Fut>(runtime: Handle, run: F) -> Handler
where
    F: Fn(Run) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<Bytes>, Failure>> + Send + 'static,
{
    on(runtime, Inline(run))
}

/// Any external handler, run on the runtime of `runtime`. When the worker drops a run, the handler's
/// future is dropped there too, at its next await.
pub fn on(runtime: Handle, handler: impl ExternalHandler) -> Handler {
    Handler::External(Arc::new(On { runtime, handler: Arc::new(handler) }))
}

/// A handler whose effect is part of the completion's transaction, from a closure.
///
/// ```
/// use futures_util::FutureExt;
/// use queue_worker::handler::native;
///
/// let greet = native::transactional("greet", |connection, item| {
///     async move {
///         let name: String = native::json(&item.task.payload)?;
///         sqlx::query("INSERT INTO greeting (task, name) VALUES ($1, $2)")
///             .bind(item.task.id.as_str())
///             .bind(name)
///             .execute(connection)
///             .await?;
///         Ok(())
///     }
///     .boxed()
/// });
/// ```
pub fn transactional<F>(kind: impl Into<String>, apply: F) -> Handler
where
    F: for<'a> Fn(&'a mut PgConnection, &'a EffectItem) -> BoxFuture<'a, Result<(), EffectError>>
        + Send
        + Sync
        + 'static,
{
    transactional_with(kind, Closure(apply))
}

/// A handler whose effect is part of the completion's transaction.
pub fn transactional_with(kind: impl Into<String>, handler: impl TransactionHandler) -> Handler {
    Handler::InTransaction(Arc::new(Transactional { kind: kind.into(), handler }))
}

/// Code that writes within the transaction in which a task succeeds.
#[async_trait]
pub trait TransactionHandler: Send + Sync + 'static {
    /// Applies the effect of one task. The transaction is neither to be ended nor to be kept.
    /// An [`EffectError::Failed`] (a [`Failure`] by `?`) counts as the task's own; an error of the
    /// database (by `?` too) counts as nobody's, unless Postgres blames the statement.
    async fn apply(
        &self,
        connection: &mut PgConnection,
        item: &EffectItem,
    ) -> Result<(), EffectError>;
}

impl From<Failure> for EffectError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

struct Inline<F>(F);

#[async_trait]
impl<F, Fut> ExternalHandler for Inline<F>
where
    F: Fn(Run) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<Bytes>, Failure>> + Send + 'static,
{
    async fn run(&self, run: Run) -> Result<Option<Bytes>, Failure> {
        // Inside of the block, so that a panic before the first await is caught too.
        let guarded = AssertUnwindSafe(async { (self.0)(run).await }).catch_unwind();
        guarded.await.unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
    }
}

struct On<H> {
    runtime: Handle,
    handler: Arc<H>,
}

#[async_trait]
impl<H: ExternalHandler> ExternalHandler for On<H> {
    async fn run(&self, run: Run) -> Result<Option<Bytes>, Failure> {
        let handler = Arc::clone(&self.handler);
        // A set of one: dropping it aborts the run.
        let mut runs = JoinSet::new();
        runs.spawn_on(async move { handler.run(run).await }, &self.runtime);
        match runs.join_next().await {
            Some(Ok(result)) => result,
            Some(Err(error)) if error.is_panic() => Err(panicked(error.into_panic().as_ref())),
            Some(Err(_)) | None => Err(Failure::retry("the runtime of the handlers has shut down")),
        }
    }
}

struct Closure<F>(F);

#[async_trait]
impl<F> TransactionHandler for Closure<F>
where
    F: for<'a> Fn(&'a mut PgConnection, &'a EffectItem) -> BoxFuture<'a, Result<(), EffectError>>
        + Send
        + Sync
        + 'static,
{
    async fn apply(
        &self,
        connection: &mut PgConnection,
        item: &EffectItem,
    ) -> Result<(), EffectError> {
        (self.0)(connection, item).await
    }
}

struct Transactional<H> {
    kind: String,
    handler: H,
}

#[async_trait]
impl<H: TransactionHandler> Effect for Transactional<H> {
    fn name(&self) -> &str {
        &self.kind
    }

    fn batch(&self) -> usize {
        1
    }

    /// Foreign code can bring the process down: its claim is committed first, and so is counted.
    fn single_commit(&self) -> bool {
        false
    }

    async fn apply(
        &self,
        connection: EffectConnection<'_>,
        items: &[EffectItem],
    ) -> Result<(), EffectError> {
        let connection = connection.postgres()?;
        for item in items {
            let guarded = AssertUnwindSafe(async { self.handler.apply(connection, item).await });
            match guarded.catch_unwind().await {
                Ok(Ok(())) => {}
                Ok(Err(EffectError::Database(error))) => return Err(blame(error)),
                Ok(Err(failed @ EffectError::Failed(_))) => return Err(failed),
                Err(panic) => return Err(panicked(panic.as_ref()).into()),
            }
        }
        Ok(())
    }
}

/// The failure that a panic stands for.
fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)");
    Failure::retry(format!("handler panicked: {message}")).with_status("panic")
}

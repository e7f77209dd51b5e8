//! The handler type `git-analysis`: commits in, rows out.
//!
//! A task names commits, which are analysed, or a range or all of a repository, which becomes tasks of
//! some commits each. A commit is done once: its row in the results says so and issues the fence that
//! every write of it carries; a lock for each commit keeps others from doing it at the same time.

mod batch;
mod cut;
mod fan_out;
mod locks;
mod made;
mod payload;
mod unwritten;
mod writer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::OnceCell;

pub use made::Made;
pub use payload::{MAX_COMMITS, Payload, PayloadError, Wish};

use self::unwritten::Room;
use super::engine::{Engine, GitEngine};
use super::mirror::{GitMirrors, InvalidSource, Mirrors, Source};
use super::options::GitOptions;
use super::results::{Results, ResultsError};
use crate::domain::Failure;
use crate::handler::{ExternalHandler, Run};
use crate::lease::{LeaseError, LeaseStore};
use crate::queue::{Queue, QueueError};

/// How long a task waits for a store that does not answer, before it is looked at again.
const STORE_PAUSE: Duration = Duration::from_secs(5);

/// What the operator decides about the analyses of one kind.
#[derive(Debug, Clone)]
pub struct GitHandlerOptions {
    /// Program, mirrors, sources and limits.
    pub git: GitOptions,
    /// Commits of a task that a range or a whole repository is cut into, 1 to [`MAX_COMMITS`].
    pub batch: usize,
    /// How long a lock of a commit lives.
    pub lease: Duration,
    /// How often locks are renewed.
    pub heartbeat: Duration,
}

/// Where tasks go, locks are, and results are kept.
#[derive(Clone)]
pub struct GitStores {
    /// For the tasks that a range is cut into.
    pub queue: Arc<dyn Queue>,
    /// For the locks of commits.
    pub leases: Arc<dyn LeaseStore>,
    /// For what was found out.
    pub results: Arc<Results>,
}

/// Makes the stores on the runtime that they stay on.
type Connect = Box<dyn Fn() -> Result<GitStores, String> + Send + Sync>;

/// All that a run needs.
#[derive(Clone)]
pub struct GitParts {
    /// Counts what commits changed.
    pub engine: Arc<dyn Engine>,
    /// Keeps repositories.
    pub mirrors: Arc<dyn Mirrors>,
    /// Remembers.
    pub stores: GitStores,
}

/// Runs tasks that are about commits.
pub struct GitHandler {
    options: GitHandlerOptions,
    connect: Connect,
    parts: OnceCell<GitParts>,
    room: Room,
}

impl fmt::Debug for GitHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GitHandler").field(&self.options).finish()
    }
}

impl GitHandler {
    /// A handler that looks for git and calls `connect` when its first task runs.
    pub fn new(
        options: GitHandlerOptions,
        connect: impl Fn() -> Result<GitStores, String> + Send + Sync + 'static,
    ) -> Self {
        Self { options, connect: Box::new(connect), parts: OnceCell::new(), room: Room::new() }
    }

    /// A handler over parts that are there already.
    pub fn with_parts(options: GitHandlerOptions, parts: GitParts) -> Self {
        let stores = parts.stores.clone();
        let connect: Connect = Box::new(move || Ok(stores.clone()));
        Self { options, connect, parts: OnceCell::new_with(Some(parts)), room: Room::new() }
    }

    async fn parts(&self) -> Result<&GitParts, Failure> {
        let make = async || {
            let git = &self.options.git;
            let engine = GitEngine::new(git).await.map_err(|error| error.to_string())?;
            let mirrors = GitMirrors::new(git).await.map_err(|error| error.to_string())?;
            let stores = (self.connect)()?;
            Ok(GitParts { engine: Arc::new(engine), mirrors: Arc::new(mirrors), stores })
        };
        // Another worker may have what this one lacks.
        self.parts.get_or_try_init(make).await.map_err(|message: String| {
            Failure::postponed(format!("git analysis cannot start here: {message}"), STORE_PAUSE)
        })
    }
}

#[async_trait]
impl ExternalHandler for GitHandler {
    async fn run(&self, run: Run) -> Result<Option<Bytes>, Failure> {
        let payload = Payload::parse(&run.task.payload)
            .map_err(|error| Failure::for_good(error.to_string()).with_status("payload"))?;
        let source = Source::new(&payload.repo, &payload.url, &self.options.git.sources)
            .map_err(|error| refused(&error))?;
        let parts = self.parts().await?;
        let place = parts.stores.results.place(&source, parts.engine.profile()).await;
        let place = place.map_err(|error| results_failed(&error))?;
        let summary = match payload.wish {
            Wish::Commits(commits) => {
                let batch = batch::Batch {
                    parts,
                    options: &self.options,
                    source: &source,
                    place,
                    room: &self.room,
                    run: &run,
                };
                batch.run(commits).await?
            }
            wish @ (Wish::Range { .. } | Wish::All) => {
                let fan_out = fan_out::FanOut {
                    parts,
                    batch: self.options.batch,
                    source: &source,
                    place,
                    run: &run,
                };
                tokio::select! {
                    biased;
                    () = run.cancel.cancelled() => return Err(interrupted()),
                    summary = fan_out.run(&wish) => summary?,
                }
            }
        };
        Ok(Some(summary.to_string().into()))
    }
}

fn refused(error: &InvalidSource) -> Failure {
    let field = match error {
        InvalidSource::Name => "repo",
        InvalidSource::Form
        | InvalidSource::Credentials
        | InvalidSource::Protocol(_)
        | InvalidSource::Host(_) => "url",
    };
    Failure::for_good(format!("payload: `{field}`: {error}")).with_status("payload")
}

fn interrupted() -> Failure {
    Failure::retry("interrupted")
}

fn results_failed(error: &ResultsError) -> Failure {
    let message = format!("the results cannot be written: {error}");
    match error {
        ResultsError::Unavailable { .. }
        | ResultsError::LoginRefused { .. }
        | ResultsError::Schema { .. }
        | ResultsError::Conflict { .. } => Failure::postponed(message, STORE_PAUSE),
        ResultsError::Refused { .. } => Failure::retry(message),
    }
}

fn leases_failed(error: &LeaseError) -> Failure {
    let message = format!("the locks of commits cannot be taken: {error}");
    if error.is_transient() {
        Failure::postponed(message, STORE_PAUSE)
    } else {
        Failure::retry(message)
    }
}

fn queue_failed(error: &QueueError) -> Failure {
    let message = format!("the tasks for the commits cannot be added: {error}");
    if error.is_transient() {
        Failure::postponed(message, STORE_PAUSE)
    } else {
        Failure::retry(message)
    }
}

//! The ledger in Postgres: group statements on a handful of sessions.
//!
//! [`PostgresLedger`] takes single calls and gathers those that wait now; a few committers serve
//! them in groups, are never cancelled, and give up at a deadline by closing their connection. It
//! needs no server to be made: each call connects when it must. Its first call starts the
//! committers, and so has to be made on the tokio runtime that the ledger stays on; another thread
//! with another runtime makes a ledger of its own (a pool of 1 does for a heartbeat).
//!
//! What it never does: hold a transaction open between two calls.

mod backend;
mod claim;
mod dead;
mod delay;
mod doubt;
mod error;
mod event;
mod inspect;
mod kept;
mod options;
mod perform;
mod pieces;
mod promote;
mod prune;
mod record;
mod renew;
mod resource;
mod schema;
pub mod session;
mod statements;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

pub use inspect::{
    Count, DeadLetter, HistoryLine, LetterFilter, MOST_COUNTED, RunningTask, TaskDetails,
    TaskFilter, TaskLine, Waiting,
};
pub use options::PostgresOptions;
pub use schema::{MigrationReport, expected_version, migrate, migrate_schema};

use super::{
    Beat, Claimed, DeadLetterId, DelayReason, Delayed, Due, Effect, Grant, Ledger, LedgerError,
    Performed, Pruned, Recorded, Retention, Verdict,
};
use crate::coalesce::Coalescer;
use crate::domain::{EntryId, Held, Malformed, QueueName, RawEntry, Task, WorkerId};
use crate::protocol::backoff::Growing;
use session::{Purpose, Sessions, within};

/// What all calls share.
struct Inner {
    worker: WorkerId,
    lease: Duration,
    max_crashes: u32,
    call_timeout: Duration,
    lock_timeout: Duration,
    released_recheck: Duration,
    ledger: Sessions,
    effects: Sessions,
    beats: Sessions,
    doubts: doubt::Doubts,
    pieces: pieces::Pieces,
}

impl Inner {
    fn lease_ms(&self) -> i64 {
        millis(self.lease)
    }

    fn max_crashes(&self) -> i32 {
        i32::try_from(self.max_crashes).unwrap_or(i32::MAX)
    }
}

/// Milliseconds as the statements take them.
fn millis(duration: Duration) -> i64 {
    // A century is as good as never, and does not overflow a timestamp.
    const CENTURY: i64 = 100 * 365 * 24 * 3600 * 1000;
    i64::try_from(duration.as_millis()).unwrap_or(CENTURY).min(CENTURY)
}

/// Small groups of outcomes are committed this far apart: handlers that end one by one would have a
/// commit each, which costs the database several times what an outcome does.
const RECORD_SPACING: Duration = Duration::from_millis(2);

fn max_attempts(task: &Task) -> Option<i32> {
    task.max_attempts.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX))
}

/// The authority over tasks, in Postgres.
pub struct PostgresLedger {
    inner: Arc<Inner>,
    committers: usize,
    group: usize,
    claims: OnceLock<Coalescer<claim::Wish, claim::Answer>>,
    records: OnceLock<Coalescer<record::Outcome, record::Answer>>,
    delays: OnceLock<Coalescer<delay::Wait, delay::Answer>>,
    promotions: OnceLock<Coalescer<promote::Promotion, promote::Promoted>>,
    performances: std::sync::Mutex<Vec<Performing>>,
}

/// Those who wait for the same effect.
type Performances = Coalescer<perform::Request, perform::Answer>;

/// An effect and its committers.
type Performing = (Arc<dyn Effect>, Arc<Performances>);

impl PostgresLedger {
    /// A ledger that connects when it is first asked something.
    pub fn new(options: PostgresOptions) -> Self {
        let PostgresOptions { connect, password, call_timeout, lock_timeout, .. } = options;
        let sessions = |purpose, size| {
            Sessions::new(&connect, password.clone(), purpose, size, call_timeout, lock_timeout)
        };
        let inner = Inner {
            ledger: sessions(Purpose::Ledger, options.pool_size),
            effects: sessions(Purpose::Effects, options.pool_size),
            beats: sessions(Purpose::Ledger, 1),
            worker: options.worker,
            lease: options.lease,
            max_crashes: options.max_crashes,
            call_timeout: options.call_timeout,
            lock_timeout: options.lock_timeout,
            released_recheck: options.released_recheck,
            doubts: doubt::Doubts::default(),
            pieces: pieces::Pieces::new(call_timeout),
        };
        Self {
            inner: Arc::new(inner),
            committers: options.committers,
            group: options.group.max(1),
            claims: OnceLock::new(),
            records: OnceLock::new(),
            delays: OnceLock::new(),
            promotions: OnceLock::new(),
            performances: std::sync::Mutex::default(),
        }
    }

    /// Puts letters back to work, all in one transaction; answers those that were. Passed over are
    /// letters requeued before, those whose task has moved on, and those with another payload than
    /// their task has by now.
    pub async fn requeue(
        &self,
        letters: &[DeadLetterId],
    ) -> Result<Vec<DeadLetterId>, LedgerError> {
        dead::requeue(&self.inner, letters, false).await
    }

    /// Those of the letters that [`Self::requeue`] would put back now: it is tried and rolled back.
    pub async fn would_requeue(
        &self,
        letters: &[DeadLetterId],
    ) -> Result<Vec<DeadLetterId>, LedgerError> {
        dead::requeue(&self.inner, letters, true).await
    }

    /// Throws letters away, all in one transaction; answers those that were. A letter that waits to
    /// be put back into the stream stays. The rows of their tasks stay too: a duplicate of a task
    /// that failed is still recognised.
    pub async fn purge(&self, letters: &[DeadLetterId]) -> Result<Vec<DeadLetterId>, LedgerError> {
        prune::purge(&self.inner, letters).await
    }

    /// The name and text of every statement, for a test that prepares them all.
    pub fn statements() -> &'static [(&'static str, &'static str)] {
        statements::ALL
    }

    fn coalescer<Q, A, F, Fut>(&self, spacing: Duration, serve: F) -> Coalescer<Q, A>
    where
        Q: Send + 'static,
        A: Send + 'static,
        F: Fn(Arc<Inner>, Vec<crate::coalesce::Pending<Q, A>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let serve = move |group| serve(Arc::clone(&inner), group);
        Coalescer::spaced(self.committers, self.group, spacing, serve)
    }

    /// The committers of an effect, started when it is first asked for; as many as there are kinds.
    /// An effect that only this list still knows was replaced by a reload, and goes.
    fn performances(&self, effect: &Arc<dyn Effect>) -> Arc<Performances> {
        let mut all = self.performances.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, known)) = all.iter().find(|(known, _)| Arc::ptr_eq(known, effect)) {
            return Arc::clone(known);
        }
        all.retain(|(known, waiting)| {
            Arc::strong_count(known) > 1 || Arc::strong_count(waiting) > 1
        });
        let inner = Arc::clone(&self.inner);
        let serve = move |group| perform::serve(Arc::clone(&inner), group);
        let limit = effect.batch().clamp(1, self.group);
        let started = Arc::new(Coalescer::start(self.committers, limit, serve));
        all.push((Arc::clone(effect), Arc::clone(&started)));
        started
    }

    async fn claim_as(&self, task: &Arc<Task>, in_company: bool) -> claim::Answer {
        let claims = self.claims.get_or_init(|| self.coalescer(Duration::ZERO, claim::serve));
        let wish = claim::Wish { task: Arc::clone(task), in_company };
        claims.call(wish).await.unwrap_or_else(|| Err(self.gone()))
    }

    fn gone(&self) -> LedgerError {
        LedgerError::Unavailable {
            address: self.inner.ledger.address().to_owned(),
            message: "the ledger is shutting down".to_owned(),
        }
    }
}

#[async_trait]
impl Ledger for PostgresLedger {
    async fn check(&self) -> Result<(), LedgerError> {
        let mut session = self.inner.ledger.open().await?;
        let connection = session.connection();
        let work = async {
            let read_only = schema::is_read_only(connection).await?;
            Ok::<_, sqlx::Error>((read_only, schema::verdict(connection).await?))
        };
        let answer = within(self.inner.call_timeout, work).await;
        let address = self.inner.ledger.address().to_owned();
        match session.finish("check schema", answer).await? {
            (true, _) => {
                let message = "is read-only, a standby perhaps".to_owned();
                Err(LedgerError::Unavailable { address, message })
            }
            (false, Some(message)) => Err(LedgerError::Schema { address, message }),
            (false, None) => Ok(()),
        }
    }

    async fn claim(&self, task: &Arc<Task>) -> Result<Claimed, LedgerError> {
        self.claim_as(task, false).await
    }

    async fn claim_in_company(&self, task: &Arc<Task>) -> Result<Claimed, LedgerError> {
        self.claim_as(task, true).await
    }

    async fn record(
        &self,
        task: &Arc<Task>,
        held: &Held,
        verdict: Verdict,
    ) -> Result<Recorded, LedgerError> {
        let records = self.records.get_or_init(|| self.coalescer(RECORD_SPACING, record::serve));
        let outcome = record::Outcome { task: Arc::clone(task), held: held.clone(), verdict };
        records.call(outcome).await.unwrap_or_else(|| Err(self.gone()))
    }

    async fn perform(
        &self,
        task: &Arc<Task>,
        held: Option<&Grant>,
        effect: &Arc<dyn Effect>,
        timeout: Duration,
    ) -> Result<Performed, LedgerError> {
        assert!(
            held.is_some() || task.lock_key.is_none(),
            "a task with a lock key is claimed first"
        );
        let request = perform::Request {
            task: Arc::clone(task),
            grant: held.cloned(),
            effect: Arc::clone(effect),
            timeout,
        };
        let performances = self.performances(effect);
        performances.call(request).await.unwrap_or_else(|| Err(self.gone()))
    }

    async fn delay(
        &self,
        task: &Arc<Task>,
        wait: Growing,
        reason: DelayReason,
    ) -> Result<Delayed, LedgerError> {
        let delays = self.delays.get_or_init(|| self.coalescer(Duration::ZERO, delay::serve));
        let wait = delay::Wait { task: Arc::clone(task), delay: wait, reason };
        delays.call(wait).await.unwrap_or_else(|| Err(self.gone()))
    }

    async fn condemn(&self, task: &Arc<Task>) -> Result<Recorded, LedgerError> {
        dead::condemn(&self.inner, task).await
    }

    async fn bury(
        &self,
        queue: &QueueName,
        entry: EntryId,
        raw: &RawEntry,
        malformed: &Malformed,
    ) -> Result<(), LedgerError> {
        dead::bury(&self.inner, queue, entry, raw, malformed).await
    }

    async fn renew(&self, held: &[Held]) -> Result<Vec<Beat>, LedgerError> {
        renew::renew(&self.inner, held).await
    }

    async fn due(&self, limit: usize) -> Result<Vec<Due>, LedgerError> {
        promote::due(&self.inner, limit).await
    }

    async fn promoted(&self, due: &Due, entry: EntryId) -> Result<(), LedgerError> {
        let promotions =
            self.promotions.get_or_init(|| self.coalescer(Duration::ZERO, promote::serve));
        let promotion =
            promote::Promotion { task_id: due.task_id.clone(), fence: due.fence, entry };
        promotions.call(promotion).await.unwrap_or_else(|| Err(self.gone()))
    }

    async fn find_strays(&self) -> Result<u64, LedgerError> {
        promote::find_strays(&self.inner).await
    }

    async fn prune(&self, retention: &Retention) -> Result<Pruned, LedgerError> {
        prune::prune(&self.inner, retention).await
    }
}

//! A worker over stores in memory, for unit tests in paused time: what is not the test's concern takes
//! for ever, or is never reached.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::counts::Counts;
use super::dice::Dice;
use super::health::Health;
use super::heartbeat::Beats;
use super::progress::Progress;
use super::shared::Shared;
use super::slots::Slots;
use super::stop::Stop;
use super::watched::Watched;
use super::{Context, Limits, Served, Stores};
use crate::clock::Clock;
use crate::domain::{Delivery, EntryId, Failure, Kind, Origin, QueueName, WorkerId};
use crate::handler::registry::{EntryOptions, Registry};
use crate::handler::{ExternalHandler, Handler, Run};
use crate::lease::memory::{MemoryLeases, MemoryLocks};
use crate::ledger::Retention;
use crate::ledger::memory::{MemoryLedger, MemoryOptions, MemoryTables};
use crate::protocol::drain::Phase;
use crate::queue::Queue;
use crate::queue::codec::NewTask;
use crate::queue::memory::{MemoryQueue, MemoryStreams};

/// Longer than any test waits.
pub(super) const FOREVER: Duration = Duration::from_secs(3600);

/// The kind of all tasks.
const KIND: &str = "k";

/// A handler that never ends, whatever it is asked.
#[derive(Debug)]
pub(super) struct Endless;

#[async_trait]
impl ExternalHandler for Endless {
    fn is_light(&self) -> bool {
        true
    }

    async fn run(&self, _: Run) -> Result<Option<Bytes>, Failure> {
        std::future::pending().await
    }
}

/// A stream that nobody else reads.
pub(super) fn quiet_queue(clock: Clock) -> Arc<dyn Queue> {
    Arc::new(MemoryQueue::new(MemoryStreams::new(clock), WorkerId::random(), FOREVER))
}

/// A worker whose tasks a handler runs by these rules.
pub(super) fn context(
    clock: Clock,
    queue: Arc<dyn Queue>,
    handler: impl ExternalHandler,
    options: EntryOptions,
) -> Context {
    let handler = Handler::External(Arc::new(handler));
    let registry = Registry::builder().handler(KIND, options, handler);
    let ledger = MemoryOptions { lease: FOREVER, ..MemoryOptions::new(WorkerId::random()) };
    Context {
        stores: Stores {
            queue,
            leases: Arc::new(MemoryLeases::new(MemoryLocks::new(clock), FOREVER)),
            ledger: Arc::new(MemoryLedger::new(MemoryTables::new(clock), ledger)),
        },
        registry: Arc::new(registry.build().expect("a registry")),
        handlers: tokio::runtime::Handle::current(),
        clock,
        phase: Arc::new(Watched::new(Phase::Running)),
        stop: Stop::default(),
        progress: Progress::new(clock),
        health: Health::new(clock, &Dice::Thread),
        beats: Beats::new(clock),
        counts: Counts::new(),
        limits: Limits {
            lease: FOREVER,
            drain_grace: Arc::new(Watched::new(Duration::ZERO)),
            sweep: Duration::from_secs(1),
            suspect_wait: FOREVER,
            retention: Retention {
                succeeded: FOREVER,
                failed: FOREVER,
                letters: FOREVER,
                batch: 1,
            },
            prune_every: FOREVER,
            unknown_kind_give_up: FOREVER,
        },
        dice: Dice::Thread,
    }
}

/// The queue of all tasks.
pub(super) fn served() -> Served {
    Served { name: QueueName::new("q").expect("a name"), concurrency: 1, max_payload: 1_000 }
}

/// Room for ten tasks.
pub(super) fn slots(clock: Clock) -> Arc<Slots> {
    Slots::new(&Shared::new(10, 10_000), 1, clock)
}

/// A new task, delivered.
pub(super) fn delivery(seq: u64) -> Delivery {
    let raw = NewTask::new(Kind::new(KIND).expect("a kind"), Bytes::new()).encode();
    let entry = EntryId { ms: 1, seq };
    Delivery { queue: served().name, entry, origin: Origin::Fresh, raw }
}

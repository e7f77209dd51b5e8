//! The stores as one worker process sees them: those in memory behind its [`Link`], each call looked
//! at by the checker when it is applied.

mod leases;
mod ledger;
mod queue;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use queue_worker::connection::RedisError;
use queue_worker::domain::{EntryId, RawEntry, TaskId};
use queue_worker::lease::memory::MemoryLeases;
use queue_worker::ledger::LedgerError;
use queue_worker::ledger::memory::{MemoryLedger, MemoryOptions};
use queue_worker::queue::memory::MemoryQueue;
use queue_worker::worker::Stores;

use self::leases::SimLeases;
use self::ledger::SimLedger;
use self::queue::SimQueue;
use super::link::{Fault, Link, REDIS_TIMEOUT};
use super::world::{LEASE, MAX_CRASHES, RELEASED_RECHECK};

/// The entries that brought a worker its tasks, for the mutations that settle them out of turn.
type Brought = Arc<Mutex<BTreeMap<TaskId, (EntryId, RawEntry)>>>;

/// Two sets of stores for a worker process: for its heartbeat, and for all the rest.
pub(crate) fn stores(link: &Arc<Link>) -> Stores {
    let world = &link.world;
    let brought = Brought::default();
    let queue = || MemoryQueue::new(world.streams.clone(), link.worker, LEASE);
    let options = MemoryOptions {
        lease: LEASE,
        max_crashes: MAX_CRASHES,
        released_recheck: RELEASED_RECHECK,
        ..MemoryOptions::new(link.worker)
    };
    Stores {
        queue: Arc::new(SimQueue {
            link: Arc::clone(link),
            inner: queue(),
            interrupted: AtomicBool::new(false),
            brought: Arc::clone(&brought),
        }),
        leases: Arc::new(SimLeases {
            link: Arc::clone(link),
            inner: MemoryLeases::new(world.locks.clone(), LEASE),
            last: Mutex::default(),
        }),
        ledger: Arc::new(SimLedger {
            link: Arc::clone(link),
            inner: Arc::new(MemoryLedger::new(world.tables.clone(), options)),
            queue: Arc::new(queue()),
            brought,
        }),
    }
}

fn redis_error(fault: Fault) -> RedisError {
    let address = "redis".to_owned();
    match fault {
        Fault::Before => RedisError::Unavailable { address, message: "connection refused".into() },
        Fault::Lost => RedisError::Timeout { address, command: "…", after: REDIS_TIMEOUT },
    }
}

/// The answer of what must not be done twice is lost.
fn unsure() -> RedisError {
    let (address, message) = ("redis".to_owned(), "no answer".to_owned());
    RedisError::Unsure { address, command: "…", message }
}

fn ledger_error(_: Fault) -> LedgerError {
    LedgerError::Unavailable { address: "postgres".to_owned(), message: "broken pipe".into() }
}

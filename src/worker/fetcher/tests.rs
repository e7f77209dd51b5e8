//! A leaving worker, and a stream whose pending list holds an entry that takes for ever to arrive.

use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;

use super::super::fixtures;
use super::super::progress::LONGEST_TURN;
use super::*;
use crate::clock::Clock;
use crate::domain::{Failure, Origin, QueueName, RawEntry};
use crate::handler::registry::EntryOptions;
use crate::handler::{ExternalHandler, Run};
use crate::protocol::drain::Phase;
use crate::queue::{CutShort, Queue};

/// A handler that nothing should reach.
#[derive(Debug)]
struct Idle;

#[async_trait]
impl ExternalHandler for Idle {
    async fn run(&self, _: Run) -> Result<Option<Bytes>, Failure> {
        panic!("a leaving worker starts nothing")
    }
}

/// A stream whose pending list holds an entry that takes for ever to arrive, behind others.
#[derive(Default)]
struct Endless {
    before: Mutex<Vec<Delivery>>,
    handed_over: Mutex<Vec<EntryId>>,
}

#[async_trait]
impl Queue for Endless {
    async fn check(&self) -> Result<(), QueueError> {
        Ok(())
    }

    async fn check_writes(&self) -> Result<(), QueueError> {
        Ok(())
    }

    async fn fetch(
        &self,
        _: &QueueName,
        _: Demand,
        _: Duration,
    ) -> Result<Vec<Delivery>, CutShort> {
        panic!("the pending list comes first")
    }

    async fn interrupt(&self, _: &QueueName) {}

    async fn reclaim(&self, _: &QueueName, _: Demand) -> Result<Vec<Delivery>, CutShort> {
        std::future::pending().await
    }

    async fn delivered(
        &self,
        _: &QueueName,
        _: EntryId,
        _: Demand,
    ) -> Result<Vec<Delivery>, CutShort> {
        let before = std::mem::take(&mut *self.before.lock().expect("no panic"));
        if before.is_empty() {
            std::future::pending::<()>().await;
        }
        Ok(before)
    }

    async fn settle(&self, _: &QueueName, _: EntryId) -> Result<(), QueueError> {
        Ok(())
    }

    async fn hand_over(
        &self,
        _: &QueueName,
        entry: EntryId,
        _: &RawEntry,
    ) -> Result<(), QueueError> {
        self.handed_over.lock().expect("no panic").push(entry);
        Ok(())
    }

    async fn postpone(&self, _: &QueueName, _: EntryId, _: Duration) -> Result<(), QueueError> {
        Ok(())
    }

    async fn touch(&self, _: &[(QueueName, EntryId)]) -> Result<Vec<bool>, QueueError> {
        Ok(Vec::new())
    }

    async fn append(&self, _: &QueueName, _: &RawEntry) -> Result<EntryId, QueueError> {
        Ok(EntryId { ms: 1, seq: 0 })
    }

    async fn contains(&self, _: &QueueName, _: EntryId) -> Result<bool, QueueError> {
        Ok(false)
    }

    async fn reap_consumers(&self, _: &QueueName, _: Duration) -> Result<u64, QueueError> {
        Ok(0)
    }
}

fn context(clock: Clock, queue: Arc<Endless>) -> Context {
    fixtures::context(clock, queue, Idle, EntryOptions::default())
}

fn fetcher(context: Context) -> Fetcher {
    let slots = fixtures::slots(context.clock);
    Fetcher::new(context, fixtures::served(), slots)
}

#[tokio::test(start_paused = true)]
async fn a_leaving_worker_hands_over_what_it_was_delivered_unseen() {
    let unseen = Delivery { origin: Origin::Reclaimed, ..fixtures::delivery(0) };
    let entry = unseen.entry;
    let queue = Arc::new(Endless { before: Mutex::new(vec![unseen]), ..Endless::default() });
    let started = tokio::time::Instant::now();
    let mut fetcher = fetcher(context(Clock::Tokio(started), Arc::clone(&queue)));
    fetcher.unseen = true;
    fetcher.context.phase.replace(Phase::Background);
    fetcher.context.stop.publish(Phase::Background);
    fetcher.run().await;
    assert_eq!(*queue.handed_over.lock().expect("no panic"), [entry]);
    assert!(started.elapsed() <= LAST_LOOK, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_leaving_worker_hands_over_what_a_look_had_claimed_that_it_gave_up() {
    let claimed = Delivery { origin: Origin::Reclaimed, ..fixtures::delivery(0) };
    let entry = claimed.entry;
    let queue = Arc::new(Endless { before: Mutex::new(vec![claimed]), ..Endless::default() });
    let started = tokio::time::Instant::now();
    let fetcher = fetcher(context(Clock::Tokio(started), Arc::clone(&queue)));
    let Context { phase, stop, health, stores, .. } = fetcher.context.clone();
    let leaves = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        phase.replace(Phase::Background);
        stop.publish(Phase::Background);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = fetcher.run() => {}
        () = health.watch(&stores) => {}
        () = leaves => {}
    }
    assert_eq!(*queue.handed_over.lock().expect("no panic"), [entry]);
    assert!(started.elapsed() <= Duration::from_secs(1) + 2 * LAST_LOOK);
}

/// Both looks into the pending list: for what idles, and for what was delivered unseen.
#[tokio::test(start_paused = true)]
async fn an_entry_that_takes_for_ever_neither_looks_stuck_nor_holds_up_a_leaving_worker() {
    for unseen in [false, true] {
        let clock = Clock::Tokio(tokio::time::Instant::now());
        let context = context(clock, Arc::default());
        let Context { progress, phase, stop, health, stores, .. } = context.clone();
        let mut fetcher = fetcher(context);
        fetcher.unseen = unseen;
        let leaves = async {
            for _ in 0..60 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                assert!(progress.silence() < LONGEST_TURN, "{:?}", progress.silence());
            }
            phase.replace(Phase::Background);
            stop.publish(Phase::Background);
            tokio::time::sleep(LAST_LOOK * 2 + Duration::from_millis(1)).await;
        };
        let ended = async {
            tokio::select! {
                biased;
                () = fetcher.run() => assert!(stop.leaving.is_cancelled()),
                () = health.watch(&stores) => {}
            }
        };
        tokio::select! {
            biased;
            () = ended => {}
            () = leaves => panic!("the loop has not ended, unseen: {unseen}"),
        }
    }
}

//! One delivery, from the stream to its end: read `Executor::attempt` top to bottom.
//!
//! ```text
//! decode → lease.acquire → ledger.claim → run → settle → ledger.record → queue.settle, lease.release
//! ```
//!
//! Lock and claim are in `claiming.rs`. The step in the middle is `Executor::run` in `running.rs` for
//! what works outside of the ledger, and `Executor::perform` in `performing.rs` for what commits with
//! it, where `Executor::in_one_commit` takes a shorter way too; `parting.rs` has the way out.
//! Each step either goes on or names an `Exit`: what becomes of the stream's entry. Nothing is
//! acknowledged before the ledger has committed. A store call that was submitted is always awaited;
//! cancellation acts between the steps.

use std::sync::Arc;
use std::time::Duration;

use super::counts::{KindCounts, QueueCounts};
use super::heartbeat::Alive;
use super::left_behind::LeftBehind;
use super::parting::Exit;
use super::running::time_limit;
use super::slots::Place;
use super::{Context, Served, outcome_log};
use crate::domain::{Delivery, Failure, Malformed, Task, Verdict};
use crate::handler::Handler;
use crate::handler::registry::Entry;
use crate::lease::Lock;
use crate::ledger::{Claimed, DelayReason, Grant, LedgerError, Recorded};
use crate::protocol::backoff::Backoff;
use crate::protocol::lease_clock::LeaseClock;
use crate::protocol::settle::{self, RunEnd};
use crate::queue::codec;

/// A payload of this many bytes takes a millisecond or more to digest: too long for the thread that
/// coordinates.
const LARGE: usize = 1024 * 1024;

/// How often the entry of a task that waits here unclaimed is kept from idling.
const TOUCH_EVERY: Duration = Duration::from_secs(1);

/// The fence has moved on, maybe by a commit of our own whose answer nobody waited for: if the entry
/// is still ours, whoever looks at it next finds out.
pub(super) const STALE: Exit = Exit::Postpone(Duration::ZERO);

/// Who else is in flight while a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    /// Any others.
    Others,
    /// Nobody: the way of a suspect.
    Nobody,
}

/// A delivery that could be read, of a kind that is known here.
#[derive(Clone, Copy)]
struct Known<'a> {
    delivery: &'a Delivery,
    task: &'a Arc<Task>,
    entry: &'a Entry,
}

/// Runs the deliveries of one queue. Thousands are in flight: what few of them come to is boxed, so
/// that the others need no room for it.
pub struct Executor {
    pub(super) context: Context,
    pub(super) served: Served,
    pub(super) counts: QueueCounts,
    pub(super) left_behind: LeftBehind,
}

impl Executor {
    /// An executor for a queue.
    pub fn new(context: Context, served: Served) -> Self {
        let counts = context.counts.queue(&served.name);
        Self { context, served, counts, left_behind: LeftBehind::default() }
    }

    /// What is counted of the task's kind.
    pub(super) fn counts_of(&self, task: &Task) -> Arc<KindCounts> {
        self.counts.kind(&task.kind, || self.context.registry.get(task.kind.as_str()).is_some())
    }

    /// Runs one delivery to its end.
    pub async fn execute(&self, delivery: Delivery, mut place: Place) {
        let (exit, lock) = self.attempt(&delivery, &mut place).await;
        self.end(&delivery, exit, lock, &place).await;
    }

    /// Hands one over without a look at it: there is no room for it here.
    pub async fn hand_over(&self, delivery: Delivery, place: Place) {
        self.end(&delivery, Exit::HandOver, None, &place).await;
    }

    async fn end(&self, delivery: &Delivery, exit: Exit, lock: Option<Lock>, place: &Place) {
        self.part(delivery, exit, lock).await;
        // Given back, and brought again by our own look before the answer to that was here: it would
        // idle with us, who do not work on it. What has become another's meanwhile stays so.
        while exit != Exit::Acknowledge && place.came_again() {
            self.postpone(delivery, Duration::ZERO).await;
        }
    }

    /// The way of a task through the house. Answers with the lock that is still to be released.
    async fn attempt(&self, delivery: &Delivery, place: &mut Place) -> (Exit, Option<Lock>) {
        let task = match self.decode(delivery).await {
            Ok(task) => Arc::new(task),
            Err(malformed) => return (self.bury(delivery, &malformed).await, None),
        };
        let Some(entry) = self.context.registry.get(task.kind.as_str()) else {
            return (self.delay_unknown(delivery, &task).await, None);
        };
        if let Some(wait) = self.not_before(&task) {
            return (self.delay(delivery, &task, wait.into(), DelayReason::NotBefore).await, None);
        }
        let Some(_here) = place.shared().enter(&task.id) else {
            return (Exit::Postpone(self.context.limits.lease), None);
        };
        if place.shared().suspects.is_taken() {
            // Brought by a read that was under way when a suspect got the worker to itself.
            return (Exit::HandOver, None);
        }
        let known = Known { delivery, task: &task, entry: &entry };
        let (exit, lock) = match self.in_one_commit(delivery, &task, &entry, place).await {
            Ok(failed) => self.locked(known, Company::Others, failed, place).await,
            Err(exit) => (exit, None),
        };
        let Exit::Suspect(waited) = exit else { return (exit, lock) };
        let alone = Box::pin(self.alone(known, waited, place));
        Box::pin(self.after_release(lock, alone)).await
    }

    /// The task that the entry describes. A large one is digested on another thread.
    async fn decode(&self, delivery: &Delivery) -> Result<Task, Malformed> {
        let max_payload = self.served.max_payload;
        if delivery.raw.bytes() < LARGE {
            return codec::decode(delivery, max_payload);
        }
        let large = delivery.clone();
        let work = move || codec::decode(&large, max_payload);
        match self.context.handlers.spawn_blocking(work).await {
            Ok(decoded) => decoded,
            // Only while the process ends, and then nobody minds how long it takes.
            Err(_) => codec::decode(delivery, max_payload),
        }
    }

    /// A suspect waits, unlocked and unclaimed, until nothing else is in flight here. What it has
    /// `waited` before counts. Where what runs takes longer than the worker should be quiet for it,
    /// it goes back, to whoever is idle, and waits for longer when it comes again.
    async fn alone(
        &self,
        known: Known<'_>,
        waited: Duration,
        place: &mut Place,
    ) -> (Exit, Option<Lock>) {
        let shared = Arc::clone(place.shared());
        let suspect_wait = self.context.limits.suspect_wait;
        let patience = suspect_wait.saturating_sub(waited);
        let quiet = suspect_wait.max(waited / 2);
        let turn = tokio::select! {
            biased;
            () = self.context.stop.leaving.cancelled() => return (Exit::HandOver, None),
            () = self.until_taken_away(known.delivery) => return (Exit::Leave, None),
            turn = shared.suspects.wait(self.context.clock, patience, || shared.in_flight()) => turn,
            () = tokio::time::sleep(patience + quiet) => None,
        };
        match turn {
            Some(_alone) => self.locked(known, Company::Nobody, None, place).await,
            None => (self.delay_suspect(known.delivery, known.task).await, None),
        }
    }

    /// Keeps the entry ours while its task waits; comes back when another worker has it.
    async fn until_taken_away(&self, delivery: &Delivery) {
        let entry = [(delivery.queue.clone(), delivery.entry)];
        loop {
            tokio::time::sleep(TOUCH_EVERY).await;
            // An error proves nothing: the entry idles meanwhile, and may be taken.
            if self.context.stores.queue.touch(&entry).await.is_ok_and(|ours| ours == [false]) {
                return;
            }
        }
    }

    /// Takes the lock, and with it in hand does all the rest. `failed` is what a single commit has
    /// come to, and is only recorded.
    async fn locked(
        &self,
        known: Known<'_>,
        company: Company,
        failed: Option<Failure>,
        place: &mut Place,
    ) -> (Exit, Option<Lock>) {
        let lock = match self.acquire(known.delivery, known.task).await {
            Ok(lock) => lock,
            Err(exit) => return (exit, None),
        };
        (self.hold(known, company, failed, &lock, place).await, Some(lock))
    }

    /// With the lock in hand: claim, run, record.
    async fn hold(
        &self,
        known: Known<'_>,
        company: Company,
        failed: Option<Failure>,
        lock: &Lock,
        place: &mut Place,
    ) -> Exit {
        let Known { delivery, task, entry } = known;
        if self.context.stop.leaving.is_cancelled() {
            return Exit::HandOver;
        }
        let (sent, grant) = match self.claim(task, company, lock).await {
            Ok((sent, Claimed::Granted(grant))) => (sent, grant),
            Ok((_, refused)) => {
                return Box::pin(self.not_claimed(delivery, task, refused)).await;
            }
            Err(exit) => return exit,
        };
        self.counts.waited(delivery.entry, self.context.clock.wall_ms());
        if grant.crashes > 0 {
            self.counts_of(task).takeovers.inc();
        }
        let guard = self.context.beats.register(Alive {
            held: grant.held.clone(),
            lock: lock.clone(),
            entry: (delivery.queue.clone(), delivery.entry),
            lease: LeaseClock::new(self.context.limits.lease, sent),
        });
        let end = match (failed, &entry.handler) {
            (Some(failure), _) => Ok(RunEnd { answer: Some(Err(failure)), interrupted: None }),
            (None, Handler::External(handler)) => {
                Ok(self.run(task, entry, handler, &grant, &guard, place).await)
            }
            (None, Handler::InTransaction(effect)) => {
                self.perform(task, entry, effect, &grant, &guard, place).await
            }
        };
        let exit = match end {
            Ok(end) => self.record(task, entry, &grant, end).await,
            Err(exit) => exit,
        };
        guard.end().await;
        exit
    }

    /// Records the outcome, however long the ledger needs: until it answers or the process goes.
    async fn record(&self, task: &Arc<Task>, entry: &Entry, grant: &Grant, end: RunEnd) -> Exit {
        let policy = entry.policy.with_attempts(task.max_attempts);
        let limit = time_limit(task, entry);
        let mut verdict =
            settle::verdict(end, grant.attempt, &policy, limit, self.context.dice.fraction());
        let mut tries = 0;
        let mut refusals = 0;
        loop {
            let answer =
                self.context.stores.ledger.record(task, &grant.held, verdict.clone()).await;
            let error = match answer {
                Ok(Recorded::Committed) => {
                    self.counts.verdict(&self.counts_of(task), &verdict);
                    outcome_log::verdict(task, grant, &verdict);
                    return if verdict == Verdict::Released {
                        Exit::HandOver
                    } else {
                        Exit::Acknowledge
                    };
                }
                Ok(Recorded::Stale) => {
                    self.counts_of(task).stale.inc();
                    outcome_log::stale(task, &grant.held);
                    return STALE;
                }
                Err(error) => error,
            };
            self.context.health.postgres.doubt(&error);
            if let LedgerError::Refused { .. } = error {
                refusals += 1;
                if refusals > 1 {
                    tracing::error!(TASK_ID = %task.id, "outcome not recorded: {error}");
                    return Exit::Leave;
                }
                let failure = Failure::retry(format!("the outcome could not be recorded: {error}"));
                let delay = policy.delay(grant.attempt, self.context.dice.fraction());
                verdict = Verdict::Retry { failure, delay };
            }
            tries += 1;
            tokio::select! {
                biased;
                () = self.context.stop.abandon.cancelled() => return Exit::Leave,
                () = tokio::time::sleep(Backoff::STORE.wait(tries, self.context.dice.fraction())) => {}
            }
        }
    }

    /// Nothing of the task has begun: whoever can reach its stores may have it.
    pub(super) fn ledger_failed(&self, error: &LedgerError) -> Exit {
        self.context.health.postgres.doubt(error);
        match error {
            // Others would meet the same.
            LedgerError::Refused { .. } => Exit::Postpone(self.context.limits.lease),
            LedgerError::Unavailable { .. }
            | LedgerError::LoginRefused { .. }
            | LedgerError::Schema { .. }
            | LedgerError::Conflict { .. } => Exit::HandOver,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;
    use crate::clock::Clock;
    use crate::handler::registry::EntryOptions;

    /// Two thousand of these are in flight by default.
    #[tokio::test]
    async fn a_task_in_flight_needs_little_room() {
        let clock = Clock::System;
        let queue = fixtures::quiet_queue(clock);
        let options = EntryOptions::default();
        let context = fixtures::context(clock, queue, fixtures::Endless, options);
        let delivery = fixtures::delivery(1);
        let place = fixtures::slots(clock).take(&delivery).expect("a place");
        let executor = Executor::new(context, fixtures::served());
        let bytes = size_of_val(&executor.execute(delivery, place));
        assert!(bytes < 3 * 1024, "{bytes}: box what few tasks come to");
    }
}

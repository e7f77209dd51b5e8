//! One delivery, from the stream to its end: read [`Executor::attempt`] top to bottom.
//!
//! ```text
//! decode → lease.acquire → ledger.claim → run → settle → ledger.record → queue.settle, lease.release
//! ```
//!
//! Each step either goes on or names an [`Exit`]: what becomes of the stream's entry. Nothing is
//! acknowledged before the ledger has committed. A store call that was submitted is always awaited;
//! cancellation acts between the steps.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::heartbeat::{Alive, Guard};
use super::parting::Exit;
use super::slots::Place;
use super::{Context, Served, outcome_log};
use crate::domain::{Delivery, Failure, Interruption, Origin, Task, Verdict};
use crate::handler::registry::Entry;
use crate::handler::{ExternalHandler, Handler, Run};
use crate::lease::{Acquired, Lock};
use crate::ledger::{Claimed, DelayReason, Effect, Grant, LedgerError, Performed, Recorded};
use crate::protocol::backoff::Backoff;
use crate::protocol::lease_clock::LeaseClock;
use crate::protocol::settle::{self, RunEnd};
use crate::queue::codec;

/// A handler that was asked to stop gets this beyond its own grace before it is dropped.
const DROP_MARGIN: Duration = Duration::from_secs(1);

/// Runs the deliveries of one queue.
pub struct Executor {
    pub(super) context: Context,
    pub(super) served: Served,
}

impl Executor {
    /// An executor for a queue.
    pub const fn new(context: Context, served: Served) -> Self {
        Self { context, served }
    }

    /// Runs one delivery to its end.
    pub async fn execute(&self, delivery: Delivery, mut place: Place) {
        let (exit, lock) = self.attempt(&delivery, &mut place).await;
        self.part(&delivery, exit, lock).await;
    }

    /// The way of a task through the house. Answers with the lock that is still to be released.
    async fn attempt(&self, delivery: &Delivery, place: &mut Place) -> (Exit, Option<Lock>) {
        let task = match codec::decode(delivery, self.served.max_payload) {
            Ok(task) => Arc::new(task),
            Err(malformed) => return (self.bury(delivery, &malformed).await, None),
        };
        let Some(entry) = self.context.registry.get(task.kind.as_str()) else {
            return (self.delay_unknown(&task).await, None);
        };
        if let Some(wait) = self.not_before(&task) {
            return (self.delay(&task, wait, DelayReason::NotBefore).await, None);
        }
        let Some(_here) = place.shared().enter(&task.id) else {
            return (Exit::Postpone(self.context.limits.lease), None);
        };
        let lock = match self.acquire(&task).await {
            Ok(lock) => lock,
            Err(exit) => return (exit, None),
        };
        let exit = self.hold(delivery, &task, &entry, &lock, place).await;
        (exit, Some(lock))
    }

    /// With the lock in hand: claim, run, record.
    async fn hold(
        &self,
        delivery: &Delivery,
        task: &Arc<Task>,
        entry: &Entry,
        lock: &Lock,
        place: &mut Place,
    ) -> Exit {
        if self.context.stop.leaving.is_cancelled() {
            return Exit::HandOver;
        }
        let mut failed = None;
        if let Handler::InTransaction(effect) = &entry.handler
            && effect.single_commit()
            && delivery.origin == Origin::Fresh
        {
            match self.in_one_commit(delivery, task, entry, effect, place).await {
                Ok(failure) => failed = Some(failure),
                Err(exit) => return exit,
            }
        }
        let sent = self.context.clock.now();
        let grant = match self.context.stores.ledger.claim(task).await {
            Ok(Claimed::Granted(grant)) => grant,
            Ok(refused) => return self.not_claimed(delivery, task, refused).await,
            Err(error) => return self.ledger_failed(&error),
        };
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

    async fn acquire(&self, task: &Arc<Task>) -> Result<Lock, Exit> {
        match self.context.stores.leases.acquire(&task.lock_name()).await {
            Ok(Acquired::Granted(lock)) => Ok(lock),
            Ok(Acquired::Taken { .. }) if task.lock_key.is_some() => {
                Err(self.contended(task).await)
            }
            Ok(Acquired::Taken { remaining }) => Err(Exit::Postpone(remaining)),
            Err(error) => {
                self.context.health.redis.doubt(&error);
                Err(Exit::Leave)
            }
        }
    }

    /// Claim, effect and success in a single commit. `Ok` with the failure of the effect, which
    /// left nothing behind and has yet to be recorded under a claim.
    async fn in_one_commit(
        &self,
        delivery: &Delivery,
        task: &Arc<Task>,
        entry: &Entry,
        effect: &Arc<dyn Effect>,
        place: &mut Place,
    ) -> Result<Failure, Exit> {
        place.started();
        let limit = time_limit(task, entry);
        let answer = self.context.stores.ledger.perform(task, None, effect, limit).await;
        place.ended(None);
        match answer {
            Ok(Performed::Committed) => {
                outcome_log::succeeded(task, None);
                Err(Exit::Acknowledge)
            }
            Ok(Performed::NotClaimed(refused)) => {
                Err(self.not_claimed(delivery, task, refused).await)
            }
            Ok(Performed::Stale) => Err(Exit::Postpone(self.context.limits.lease)),
            Ok(Performed::Failed(failure)) => Ok(failure),
            Err(error) => Err(self.ledger_failed(&error)),
        }
    }

    /// The effect and the success of a claimed task in one commit.
    async fn perform(
        &self,
        task: &Arc<Task>,
        entry: &Entry,
        effect: &Arc<dyn Effect>,
        grant: &Grant,
        guard: &Guard,
        place: &mut Place,
    ) -> Result<RunEnd, Exit> {
        place.started();
        let end = self.perform_until_answered(task, entry, effect, grant, guard).await;
        place.ended(None);
        end
    }

    async fn perform_until_answered(
        &self,
        task: &Arc<Task>,
        entry: &Entry,
        effect: &Arc<dyn Effect>,
        grant: &Grant,
        guard: &Guard,
    ) -> Result<RunEnd, Exit> {
        let interrupted = |why| Ok(RunEnd { answer: None, interrupted: Some(why) });
        let limit = time_limit(task, entry);
        let mut tries = 0;
        loop {
            if self.context.stop.leaving.is_cancelled() {
                return interrupted(Interruption::Drain);
            }
            if !guard.may_start() {
                return interrupted(Interruption::LeaseLost);
            }
            let ledger = &self.context.stores.ledger;
            let error = match ledger.perform(task, Some(grant), effect, limit).await {
                Ok(Performed::Committed) => {
                    outcome_log::succeeded(task, Some(grant));
                    return Err(Exit::Acknowledge);
                }
                Ok(Performed::Failed(failure)) => {
                    return Ok(RunEnd { answer: Some(Err(failure)), interrupted: None });
                }
                Ok(Performed::Stale | Performed::NotClaimed(_)) => {
                    outcome_log::stale(task, &grant.held);
                    return Err(Exit::Leave);
                }
                Err(error) => error,
            };
            self.context.health.postgres.doubt(&error);
            tries += 1;
            tokio::select! {
                biased;
                () = self.context.stop.leaving.cancelled() => {}
                () = guard.lost().cancelled() => {}
                () = tokio::time::sleep(Backoff::STORE.wait(tries, self.context.dice.fraction())) => {}
            }
        }
    }

    /// Runs an external handler until it ends or is interrupted.
    async fn run(
        &self,
        task: &Arc<Task>,
        entry: &Entry,
        handler: &Arc<dyn ExternalHandler>,
        grant: &Grant,
        guard: &Guard,
        place: &mut Place,
    ) -> RunEnd {
        let interrupted = |why| RunEnd { answer: None, interrupted: Some(why) };
        let running = Arc::clone(&place.slots().running);
        let permit = tokio::select! {
            biased;
            () = guard.lost().cancelled() => return interrupted(Interruption::LeaseLost),
            () = self.context.stop.leaving.cancelled() => return interrupted(Interruption::Drain),
            permit = running.acquire_owned() => permit.ok(),
        };
        if !guard.may_start() {
            return interrupted(Interruption::LeaseLost);
        }
        place.started();
        let end = self.run_handler(task, entry, handler, grant, guard).await;
        place.ended(permit);
        end
    }

    async fn run_handler(
        &self,
        task: &Arc<Task>,
        entry: &Entry,
        handler: &Arc<dyn ExternalHandler>,
        grant: &Grant,
        guard: &Guard,
    ) -> RunEnd {
        let limit = time_limit(task, entry);
        let cancel = CancellationToken::new();
        let run = Run {
            task: Arc::clone(task),
            fence: grant.held.effect_fence(),
            attempt: grant.attempt,
            deadline: self.context.clock.now() + limit,
            deadline_ms: self.context.clock.wall_ms()
                + i64::try_from(limit.as_millis()).unwrap_or(i64::MAX / 2),
            cancel: cancel.clone(),
        };
        let handler = Arc::clone(handler);
        let handle = self.context.handlers.spawn(async move { handler.run(run).await });
        let mut handle = tokio_util::task::AbortOnDropHandle::new(handle);
        let why = tokio::select! {
            biased;
            answer = &mut handle => {
                return RunEnd { answer: Some(answer_of(answer)), interrupted: None };
            }
            () = guard.lost().cancelled() => Interruption::LeaseLost,
            () = self.context.stop.interrupt.cancelled() => Interruption::Drain,
            () = tokio::time::sleep(limit) => Interruption::Timeout,
        };
        cancel.cancel();
        let grace = entry.kill_after + DROP_MARGIN;
        let answer = tokio::time::timeout(grace, &mut handle).await.ok().map(answer_of);
        RunEnd { answer, interrupted: Some(why) }
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
                    outcome_log::verdict(task, grant, &verdict);
                    return if verdict == Verdict::Released {
                        Exit::HandOver
                    } else {
                        Exit::Acknowledge
                    };
                }
                Ok(Recorded::Stale) => {
                    outcome_log::stale(task, &grant.held);
                    return Exit::Leave;
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
        Exit::HandOver
    }
}

/// The task's own time limit, or its handler's.
fn time_limit(task: &Task, entry: &Entry) -> Duration {
    task.timeout.unwrap_or(entry.timeout)
}

/// A handler that panicked has failed; one that was aborted has not answered, which only happens
/// when its runtime shuts down.
fn answer_of(
    joined: Result<Result<Option<Bytes>, Failure>, tokio::task::JoinError>,
) -> Result<Option<Bytes>, Failure> {
    joined.unwrap_or_else(|error| {
        let message = match error.try_into_panic() {
            Ok(panic) => match panic.downcast::<String>() {
                Ok(text) => *text,
                Err(panic) => panic
                    .downcast::<&'static str>()
                    .map_or_else(|_| "no message".to_owned(), |text| (*text).to_owned()),
            },
            Err(_) => return Err(Failure::retry("the handler was aborted")),
        };
        Err(Failure::retry(format!("the handler panicked: {message}")).with_status("panic"))
    })
}

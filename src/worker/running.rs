//! A handler that works outside of the ledger, from its permit to its end.
//!
//! It starts only while the lease certainly holds, and runs until it answers, its time is up, the lease
//! is lost or a drain interrupts it; then it is asked to stop, and after a grace dropped. What it
//! answers is not judged here: [`settle`](crate::protocol::settle) does that.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::executor::Executor;
use super::heartbeat::Guard;
use super::slots::Place;
use crate::domain::{Failure, Interruption, Task};
use crate::handler::registry::Entry;
use crate::handler::{ExternalHandler, Run};
use crate::ledger::Grant;
use crate::protocol::settle::RunEnd;

/// A handler that was asked to stop gets this beyond its own grace before it is dropped.
const DROP_MARGIN: Duration = Duration::from_millis(500);

/// What a handler answers.
type Answer = Result<Option<Bytes>, Failure>;

impl Executor {
    /// Runs an external handler until it ends or is interrupted. A task for which none becomes free
    /// within a lease is given back.
    pub(super) async fn run(
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
            // Fetched ahead behind short tasks, and then long ones took all the handlers.
            () = tokio::time::sleep(self.context.limits.lease) => {
                return interrupted(Interruption::NoRoom);
            }
        };
        if !guard.may_start() {
            return interrupted(Interruption::LeaseLost);
        }
        let begun = self.context.clock.now();
        place.started();
        let end = self.run_handler(task, entry, handler, grant, guard).await;
        place.ended(permit);
        self.counts_of(task).ran(self.context.clock.now().saturating_since(begun));
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
        let mut running = self.start(handler, run);
        let why = tokio::select! {
            biased;
            answer = &mut running => {
                return RunEnd { answer: Some(answer), interrupted: None };
            }
            () = guard.lost().cancelled() => Interruption::LeaseLost,
            () = self.context.stop.interrupt.cancelled() => Interruption::Drain,
            () = tokio::time::sleep(limit) => Interruption::Timeout,
        };
        cancel.cancel();
        let answer = tokio::select! {
            biased;
            answer = running => Some(answer),
            () = self.grace_is_over(entry) => None,
        };
        RunEnd { answer, interrupted: Some(why) }
    }

    /// Waits for as long as a handler has that was asked to stop: until its own grace is over, or
    /// that which a drain has left, whyever it was stopped and whenever the drain interrupts.
    async fn grace_is_over(&self, entry: &Entry) {
        let drained = async {
            self.context.stop.interrupt.cancelled().await;
            tokio::time::sleep(self.context.limits.drain_grace.get() + DROP_MARGIN).await;
        };
        tokio::select! {
            biased;
            () = tokio::time::sleep(entry.kill_after + DROP_MARGIN) => {}
            () = drained => {}
        }
    }

    /// Starts a handler where it belongs. What is dropped before it has ended is aborted; a panic is
    /// the task's failure.
    fn start(&self, handler: &Arc<dyn ExternalHandler>, run: Run) -> BoxFuture<'static, Answer> {
        let handler = Arc::clone(handler);
        if handler.is_light() {
            let running = AssertUnwindSafe(async move { handler.run(run).await }).catch_unwind();
            return running.map(|end| end.unwrap_or_else(|panic| Err(panicked(panic)))).boxed();
        }
        let running = self.context.handlers.spawn(async move { handler.run(run).await });
        AbortOnDropHandle::new(running).map(answer_of).boxed()
    }
}

/// The task's own time limit, or its handler's.
pub(super) fn time_limit(task: &Task, entry: &Entry) -> Duration {
    task.timeout.unwrap_or(entry.timeout)
}

/// A handler that panicked has failed; one that was aborted has not answered, which only happens
/// when its runtime shuts down.
fn answer_of(joined: Result<Answer, tokio::task::JoinError>) -> Answer {
    joined.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => Err(panicked(panic)),
        Err(_) => Err(Failure::retry("the handler was aborted")),
    })
}

fn panicked(panic: Box<dyn Any + Send>) -> Failure {
    let message = match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic
            .downcast::<&'static str>()
            .map_or_else(|_| "no message".to_owned(), |text| (*text).to_owned()),
    };
    Failure::retry(format!("the handler panicked: {message}")).with_status("panic")
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;
    use crate::clock::Clock;
    use crate::handler::registry::EntryOptions;
    use crate::protocol::drain::Phase;

    const SECOND: Duration = Duration::from_secs(1);

    /// A handler that never ends is stopped for being late, and is then given `KILL_AFTER`.
    #[tokio::test(start_paused = true)]
    async fn a_drain_cuts_the_grace_of_what_was_stopped_before() {
        const TIMEOUT: Duration = Duration::from_secs(10);
        const KILL_AFTER: Duration = Duration::from_secs(60);
        let grace = 3 * SECOND;
        let just = |ends: Duration| ends + DROP_MARGIN;
        for (interrupts, ends) in [
            (2 * TIMEOUT, just(2 * TIMEOUT + grace)),
            (TIMEOUT / 2, just(TIMEOUT / 2 + grace)),
            // The handler's own grace is over before.
            (TIMEOUT + 59 * SECOND, just(TIMEOUT + KILL_AFTER)),
            (fixtures::FOREVER, just(TIMEOUT + KILL_AFTER)),
        ] {
            let start = tokio::time::Instant::now();
            let clock = Clock::Tokio(start);
            let queue = fixtures::quiet_queue(clock);
            let options = EntryOptions {
                timeout: TIMEOUT,
                kill_after: KILL_AFTER,
                ..EntryOptions::default()
            };
            let context = fixtures::context(clock, queue, fixtures::Endless, options);
            context.limits.drain_grace.replace(grace);
            let stop = context.stop.clone();
            let delivery = fixtures::delivery(1);
            let place = fixtures::slots(clock).take(&delivery).expect("a place");
            let executor = Executor::new(context, fixtures::served());
            let drain = async {
                tokio::time::sleep(interrupts).await;
                stop.publish(Phase::Interrupting { hard: clock.now() });
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                () = executor.execute(delivery, place) => {}
                () = drain => {}
            }
            assert_eq!(start.elapsed(), ends, "interrupted after {interrupts:?}");
        }
    }
}

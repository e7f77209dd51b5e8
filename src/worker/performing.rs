//! An effect, in one commit with its task's success: with the claim too, or after a claim.
//!
//! An effect runs within the ledger's transaction. After a claim it is tried again until the ledger has
//! answered or the lease is lost: one whose answer was lost has either committed, and is found done, or
//! left nothing behind. What interrupts it rolls it back.

use std::sync::Arc;

use super::executor::{Executor, STALE};
use super::heartbeat::Guard;
use super::outcome_log;
use super::parting::Exit;
use super::running::time_limit;
use super::slots::Place;
use crate::domain::{Delivery, Failure, Interruption, Origin, Task};
use crate::handler::Handler;
use crate::handler::registry::Entry;
use crate::ledger::{Effect, Grant, Performed};
use crate::protocol::backoff::Backoff;
use crate::protocol::settle::RunEnd;

impl Executor {
    /// Claim, effect and success in a single commit, for effects that allow it on their first
    /// delivery. `Ok` if the task goes the long way: with the failure of the effect, which left
    /// nothing behind and has yet to be recorded under a claim; or with none.
    ///
    /// No lock is taken: while the transaction is open, its row keeps every other claim out, and
    /// nobody gets the entry within that time. A resource's lock may be a foreign program's, though.
    pub(super) async fn in_one_commit(
        &self,
        delivery: &Delivery,
        task: &Arc<Task>,
        entry: &Entry,
        place: &mut Place,
    ) -> Result<Option<Failure>, Exit> {
        let effect = match &entry.handler {
            Handler::InTransaction(effect)
                if effect.single_commit()
                    && delivery.origin == Origin::Fresh
                    && task.lock_key.is_none() =>
            {
                effect
            }
            Handler::InTransaction(_) | Handler::External(_) => return Ok(None),
        };
        if self.context.stop.leaving.is_cancelled() {
            return Err(Exit::HandOver);
        }
        let counts = self.counts_of(task);
        let (begun, begun_ms) = (self.context.clock.now(), self.context.clock.wall_ms());
        place.started();
        // Nothing keeps the task alive for others to see until the commit, so it must be quick.
        let limit = time_limit(task, entry);
        let quick = limit.min(self.context.limits.lease / 2);
        let answer = tokio::select! {
            biased;
            answer = self.context.stores.ledger.perform(task, None, effect, quick) => answer,
            () = self.context.stop.interrupt.cancelled() => {
                place.ended(None);
                return Err(Exit::HandOver);
            }
        };
        place.ended(None);
        if let Ok(Performed::Committed | Performed::Failed(_) | Performed::Hindered(_)) = answer {
            counts.ran(self.context.clock.now().saturating_since(begun));
        }
        match answer {
            Ok(Performed::Committed) => {
                self.counts.waited(delivery.entry, begun_ms);
                counts.succeeded();
                outcome_log::succeeded(task, None);
                Err(Exit::Acknowledge)
            }
            Ok(Performed::NotClaimed(refused)) => {
                Err(self.not_claimed(delivery, task, refused).await)
            }
            Ok(Performed::Stale) => Err(Exit::Postpone(self.context.limits.lease)),
            Ok(Performed::Failed(failure))
                if quick < limit && failure.status.as_deref() == Some("timeout") =>
            {
                Ok(None)
            }
            Ok(Performed::Failed(failure)) => Ok(Some(failure)),
            Ok(Performed::Hindered(_)) => Ok(None),
            Err(error) => Err(self.ledger_failed(&error)),
        }
    }

    /// The effect and the success of a claimed task in one commit.
    pub(super) async fn perform(
        &self,
        task: &Arc<Task>,
        entry: &Entry,
        effect: &Arc<dyn Effect>,
        grant: &Grant,
        guard: &Guard,
        place: &mut Place,
    ) -> Result<RunEnd, Exit> {
        let begun = self.context.clock.now();
        place.started();
        let end = self.perform_until_answered(task, entry, effect, grant, guard).await;
        place.ended(None);
        self.counts_of(task).ran(self.context.clock.now().saturating_since(begun));
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
        let begun = self.context.clock.now();
        let mut tries = 0;
        loop {
            if self.context.stop.leaving.is_cancelled() {
                return interrupted(Interruption::Drain);
            }
            if !guard.may_start() {
                return interrupted(Interruption::LeaseLost);
            }
            let ledger = &self.context.stores.ledger;
            // An interrupted transaction finds its row released under a higher fence, and rolls back.
            let answer = tokio::select! {
                biased;
                answer = ledger.perform(task, Some(grant), effect, limit) => answer,
                // A ledger that is silent would be waited for until the time limit; it gives up what
                // nobody waits for, and what has become of it the row tells.
                () = guard.lost().cancelled() => return interrupted(Interruption::LeaseLost),
                () = self.context.stop.interrupt.cancelled() => {
                    return interrupted(Interruption::Drain);
                }
            };
            match answer {
                Ok(Performed::Committed) => {
                    self.counts_of(task).succeeded();
                    outcome_log::succeeded(task, Some(grant));
                    return Err(Exit::Acknowledge);
                }
                Ok(Performed::Failed(failure)) => {
                    return Ok(RunEnd { answer: Some(Err(failure)), interrupted: None });
                }
                Ok(Performed::Stale | Performed::NotClaimed(_)) => {
                    self.counts_of(task).stale.inc();
                    outcome_log::stale(task, &grant.held);
                    return Err(STALE);
                }
                // What stands in its way for as long as it may run is its failure.
                Ok(Performed::Hindered(failure)) => {
                    if self.context.clock.now().saturating_since(begun) >= limit {
                        return Ok(RunEnd { answer: Some(Err(failure)), interrupted: None });
                    }
                    tracing::debug!(task_id = %task.id, message = failure.message, "effect hindered");
                }
                Err(error) => self.context.health.postgres.doubt(&error),
            }
            tries += 1;
            tokio::select! {
                biased;
                () = self.context.stop.leaving.cancelled() => {}
                () = guard.lost().cancelled() => {}
                () = tokio::time::sleep(Backoff::STORE.wait(tries, self.context.dice.fraction())) => {}
            }
        }
    }
}

//! The effect of a claimed task, in one commit with its success.
//!
//! An effect runs within the ledger's transaction, so it is tried again until the ledger has answered:
//! one whose answer was lost has either committed, and is found done, or left nothing behind. What
//! interrupts it rolls it back. Which effects need no claim of their own is `executor.rs`'s affair.

use std::sync::Arc;

use super::executor::{Executor, STALE};
use super::heartbeat::Guard;
use super::outcome_log;
use super::parting::Exit;
use super::running::time_limit;
use super::slots::Place;
use crate::domain::{Interruption, Task};
use crate::handler::registry::Entry;
use crate::ledger::{Effect, Grant, Performed};
use crate::protocol::backoff::Backoff;
use crate::protocol::settle::RunEnd;

impl Executor {
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
                () = self.context.stop.interrupt.cancelled() => {
                    return interrupted(Interruption::Drain);
                }
            };
            let error = match answer {
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
}

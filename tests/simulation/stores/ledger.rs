//! The ledger behind a link.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_worker::domain::{
    EntryId, Failure, Fence, Held, Malformed, QueueName, RawEntry, Task, TaskId, Verdict,
};
use queue_worker::ledger::memory::MemoryLedger;
use queue_worker::ledger::{
    Beat, Claimed, DelayReason, Delayed, Due, Effect, Grant, Ledger, LedgerError, Performed,
    Pruned, Recorded, Retention, Status,
};
use queue_worker::protocol::backoff::Growing;
use queue_worker::queue::Queue;
use queue_worker::queue::memory::MemoryQueue;
use tokio::sync::oneshot;

use super::super::link::{Link, Side};
use super::super::mutation::Mutation;
use super::super::world::MAX_CRASHES;
use super::{Brought, ledger_error};

#[derive(Clone)]
pub(super) struct SimLedger {
    pub(super) link: Arc<Link>,
    pub(super) inner: Arc<MemoryLedger>,
    pub(super) queue: Arc<MemoryQueue>,
    pub(super) brought: Brought,
}

impl SimLedger {
    fn row_is(&self, id: &TaskId, wanted: impl Fn(Status) -> bool) -> bool {
        self.link.world.tables.row(id).is_some_and(|row| wanted(row.status))
    }

    /// The fence as the mutation of that name would not compare it: the row's own.
    fn unfenced(&self, held: &Held) -> Held {
        let mut held = held.clone();
        let tables = &self.link.world.tables;
        if let Some(row) = tables.row(&held.task_id) {
            held.fence = row.fence;
        }
        if let Some((key, fence)) = &mut held.resource
            && let Some(resource) = tables.resource(key)
        {
            *fence = resource.fence;
        }
        held
    }

    async fn settle_early(&self, id: &TaskId, verdict: &Verdict) {
        let world = &self.link.world;
        let Some((entry, raw)) = self.brought.lock().unwrap().get(id).cloned() else { return };
        if world.is(Mutation::AckBeforeCommit) && *verdict != Verdict::Released {
            world.check(|checker| checker.acks(self.link.worker, entry));
            self.queue.settle(&world.queue, entry).await.unwrap();
        }
        if world.is(Mutation::HandOverBeforeRelease) && *verdict == Verdict::Released {
            let before = world.check(|checker| checker.hands_over(self.link.worker, entry, &raw));
            self.queue.hand_over(&world.queue, entry, &raw).await.unwrap();
            world.check(|checker| checker.gave_back(self.link.worker, entry, before));
        }
    }

    async fn apply_claim(
        &self,
        task: &Arc<Task>,
        in_company: bool,
    ) -> Result<Claimed, LedgerError> {
        let world = &self.link.world;
        let (tables, id) = (&world.tables, &task.id);
        let now_ms = tables.now_ms();
        if world.is(Mutation::ClaimIgnoresLease) && self.row_is(id, |s| s == Status::Running) {
            tables.edit(id, |row| row.lease_until = Some(now_ms));
        }
        let done = |status| matches!(status, Status::Succeeded | Status::Failed | Status::Dead);
        if world.is(Mutation::DoneIsClaimable) && self.row_is(id, done) {
            tables.edit(id, |row| row.status = Status::Released);
        }
        let crashes = tables.row(id).map_or(0, |row| row.crashes);
        let mut answer = if in_company {
            self.inner.claim_in_company(task).await?
        } else {
            self.inner.claim(task).await?
        };
        if let Claimed::Granted(grant) = &mut answer {
            if world.is(Mutation::NoCrashOnTakeover) {
                tables.edit(id, |row| row.crashes = crashes);
            }
            if world.is(Mutation::ClaimForgetsPayload) {
                tables.edit(id, |row| {
                    row.payload = None;
                    row.run_at = None;
                });
            }
            if world.is(Mutation::FenceStays) {
                tables.edit(id, |row| row.fence.0 -= 1);
                grant.held.fence.0 -= 1;
            }
        }
        world.note(self.link.worker, format_args!("claims {id}: {answer:?}"));
        world.judge();
        Ok(answer)
    }

    async fn claim_as(&self, task: &Arc<Task>, in_company: bool) -> Result<Claimed, LedgerError> {
        let world = &self.link.world;
        let sent = world.now();
        match self.link.call(Side::Postgres, self.apply_claim(task, in_company)).await {
            Ok(answer) => {
                if let Ok(Claimed::Granted(grant)) = &answer {
                    world.check(|checker| checker.granted(self.link.worker, grant, sent));
                }
                answer
            }
            Err(fault) => {
                self.inner.doubt(task);
                Err(ledger_error(fault))
            }
        }
    }

    async fn apply_record(
        &self,
        task: &Arc<Task>,
        held: &Held,
        verdict: Verdict,
    ) -> Result<Recorded, LedgerError> {
        let world = &self.link.world;
        let named = held.fence;
        let held =
            if world.is(Mutation::NoFenceInRecord) { self.unfenced(held) } else { held.clone() };
        let released = verdict == Verdict::Released;
        let line = format!("records {} under {:?}: {verdict:?}", task.id, held.fence);
        let answer = self.inner.record(task, &held, verdict).await;
        if released
            && world.is(Mutation::CrashOnGiveBack)
            && matches!(answer, Ok(Recorded::Committed))
        {
            world.tables.edit(&task.id, |row| row.crashes += 1);
        }
        world.note(self.link.worker, format_args!("{line}: {answer:?}"));
        world.judge();
        if matches!(answer, Ok(Recorded::Committed)) {
            world.check(|checker| checker.committed(&task.id, named));
        }
        answer
    }

    async fn apply_perform(&self, performing: Performing) -> Result<Performed, LedgerError> {
        let Performing { task, held, effect, timeout } = performing;
        let world = &self.link.world;
        let under = held.as_ref().map(|grant| grant.held.fence);
        let unfenced = held.map(|grant| Grant {
            held: if world.is(Mutation::NoFenceInPerform) {
                self.unfenced(&grant.held)
            } else {
                grant.held.clone()
            },
            ..grant
        });
        let mut answer = self.inner.perform(&task, unfenced.as_ref(), &effect, timeout).await;
        world.check(|checker| checker.ends(self.link.worker, &task.id));
        if world.is(Mutation::NoFenceInPerform) && matches!(answer, Ok(Performed::Stale)) {
            world.tables.edit(&task.id, |row| row.status = Status::Succeeded);
            answer = Ok(Performed::Committed);
        }
        world.note(
            self.link.worker,
            format_args!("performs {} under {under:?}: {answer:?}", task.id),
        );
        world.judge();
        if let (Some(under), Ok(Performed::Committed)) = (under, &answer) {
            world.check(|checker| checker.committed(&task.id, under));
        }
        answer
    }
}

/// What an effect is to be applied to. It goes on to its end when its caller has gone, as the
/// committers of the real ledger do.
struct Performing {
    task: Arc<Task>,
    held: Option<Grant>,
    effect: Arc<dyn Effect>,
    timeout: Duration,
}

/// Somebody waits for the end of an effect.
struct Active<'a> {
    link: &'a Arc<Link>,
    id: &'a TaskId,
}

impl<'a> Active<'a> {
    fn start(link: &'a Arc<Link>, task: &'a Task) -> Self {
        link.world.check(|checker| checker.starts(link, task));
        Self { link, id: &task.id }
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.link.world.check(|checker| checker.ends(self.link.worker, self.id));
    }
}

#[async_trait]
impl Ledger for SimLedger {
    async fn check(&self) -> Result<(), LedgerError> {
        self.link.call(Side::Postgres, async {}).await.map_err(ledger_error)
    }

    async fn claim_in_company(&self, task: &Arc<Task>) -> Result<Claimed, LedgerError> {
        self.claim_as(task, true).await
    }

    async fn claim(&self, task: &Arc<Task>) -> Result<Claimed, LedgerError> {
        self.claim_as(task, false).await
    }

    async fn record(
        &self,
        task: &Arc<Task>,
        held: &Held,
        verdict: Verdict,
    ) -> Result<Recorded, LedgerError> {
        self.settle_early(&task.id, &verdict).await;
        let verdict = match verdict {
            Verdict::Released if self.link.world.is(Mutation::RetryOnDrain) => Verdict::Retry {
                failure: Failure::retry("interrupted"),
                delay: Duration::from_millis(100),
            },
            verdict => verdict,
        };
        let record = self.apply_record(task, held, verdict);
        let answer = self.link.call(Side::Postgres, record).await.map_err(ledger_error)?;
        if matches!(answer, Ok(Recorded::Stale)) {
            self.link.world.check(|checker| checker.refused(self.link.worker, &task.id));
        }
        answer
    }

    async fn perform(
        &self,
        task: &Arc<Task>,
        held: Option<&Grant>,
        effect: &Arc<dyn Effect>,
        timeout: Duration,
    ) -> Result<Performed, LedgerError> {
        let under = held.map(|grant| grant.held.fence);
        let _active = under.map(|_| Active::start(&self.link, task));
        let performing = Performing {
            task: Arc::clone(task),
            held: held.cloned(),
            effect: Arc::clone(effect),
            timeout,
        };
        let (reply, answer) = oneshot::channel();
        let this = self.clone();
        self.link.spawn(async move {
            let perform = this.apply_perform(performing);
            let _ = reply.send(this.link.call(Side::Postgres, perform).await);
        });
        match answer.await {
            Ok(answer) => answer.map_err(ledger_error)?,
            Err(_) => std::future::pending().await,
        }
    }

    async fn delay(
        &self,
        task: &Arc<Task>,
        wait: Growing,
        reason: DelayReason,
    ) -> Result<Delayed, LedgerError> {
        let world = &self.link.world;
        let delay = async {
            let answer = self.inner.delay(task, wait, reason).await;
            let committed = matches!(answer, Ok(Delayed::Committed | Delayed::Still));
            if world.is(Mutation::DelayWithoutPayload) && committed {
                world.tables.edit(&task.id, |row| row.payload = None);
            }
            world.note(
                self.link.worker,
                format_args!("delays {} for {reason:?}: {answer:?}", task.id),
            );
            world.judge();
            answer
        };
        self.link.call(Side::Postgres, delay).await.map_err(ledger_error)?
    }

    async fn condemn(&self, task: &Arc<Task>) -> Result<Recorded, LedgerError> {
        let world = &self.link.world;
        let condemn = async {
            if world.is(Mutation::CondemnWithoutRecheck) {
                let now_ms = world.tables.now_ms();
                world.tables.edit(&task.id, |row| {
                    row.status = Status::Running;
                    row.lease_until = Some(now_ms);
                    row.crashes = MAX_CRASHES + 1;
                });
            }
            let answer = self.inner.condemn(task).await;
            world.note(self.link.worker, format_args!("condemns {}: {answer:?}", task.id));
            world.judge();
            answer
        };
        self.link.call(Side::Postgres, condemn).await.map_err(ledger_error)?
    }

    async fn bury(
        &self,
        queue: &QueueName,
        entry: EntryId,
        raw: &RawEntry,
        malformed: &Malformed,
    ) -> Result<(), LedgerError> {
        self.link.world.note(self.link.worker, format_args!("buries {entry}"));
        let bury = self.inner.bury(queue, entry, raw, malformed);
        self.link.call(Side::Postgres, bury).await.map_err(ledger_error)?
    }

    async fn renew(&self, held: &[Held]) -> Result<Vec<Beat>, LedgerError> {
        let world = &self.link.world;
        let sent = world.now();
        let renew = async {
            let answers = if world.is(Mutation::RenewIgnoresFence) {
                let held: Vec<Held> = held.iter().map(|held| self.unfenced(held)).collect();
                self.inner.renew(&held).await
            } else {
                self.inner.renew(held).await
            }?;
            world.check(|checker| checker.renews(held, &answers));
            world.judge();
            Ok(answers)
        };
        match self.link.call(Side::Postgres, renew).await {
            Ok(Ok(answers)) => {
                world.check(|checker| checker.renewed(self.link.worker, held, &answers, sent));
                Ok(answers)
            }
            Ok(Err(error)) => Err(error),
            Err(_) if world.is(Mutation::RenewalNeverFails) => Ok(vec![Beat::Renewed; held.len()]),
            Err(fault) => Err(ledger_error(fault)),
        }
    }

    async fn due(&self, limit: usize) -> Result<Vec<Due>, LedgerError> {
        let world = &self.link.world;
        let look = async {
            let due = self.inner.due(limit).await?;
            if world.is(Mutation::PromoteMarksFirst) {
                for due in &due {
                    let id = TaskId::new(&due.task_id).unwrap();
                    world.tables.edit(&id, |row| {
                        row.status = Status::Released;
                        row.run_at = None;
                    });
                }
            }
            world.judge();
            Ok(due)
        };
        self.link.call(Side::Postgres, look).await.map_err(ledger_error)?
    }

    async fn find_strays(&self) -> Result<u64, LedgerError> {
        let world = &self.link.world;
        let look = async {
            let strays = self.inner.find_strays().await?;
            if strays > 0 {
                world.note(self.link.worker, format_args!("finds {strays} strays"));
            }
            world.judge();
            Ok(strays)
        };
        self.link.call(Side::Postgres, look).await.map_err(ledger_error)?
    }

    async fn prune(&self, retention: &Retention) -> Result<Pruned, LedgerError> {
        let prune = self.inner.prune(retention);
        self.link.call(Side::Postgres, prune).await.map_err(ledger_error)?
    }

    async fn promoted(&self, due: &Due, entry: EntryId) -> Result<(), LedgerError> {
        let world = &self.link.world;
        let note = async {
            let answer = self.inner.promoted(due, entry).await;
            let Fence(fence) = due.fence;
            world.note(
                self.link.worker,
                format_args!("promotes {} under {fence} as {entry}", due.task_id),
            );
            world.judge();
            answer
        };
        self.link.call(Side::Postgres, note).await.map_err(ledger_error)?
    }
}

//! What the tasks of a simulation do when they run.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_worker::domain::{Failure, RetryPolicy, Task};
use queue_worker::handler::registry::{EntryOptions, Registry};
use queue_worker::handler::{ExternalHandler, Handler, Run};
use queue_worker::ledger::{Effect, EffectConnection, EffectError, EffectItem};
use tokio::time::sleep;

use super::link::Link;
use super::mutation::Mutation;
use super::workload::{End, Spec, Way};

pub(crate) const MAX_ATTEMPTS: u32 = 4;
const TIMEOUT: Duration = Duration::from_secs(12);
/// Longer than any time limit.
const FOR_EVER: Duration = Duration::from_secs(100_000);

/// The handlers that a worker knows.
pub(crate) fn registry(link: &Arc<Link>, knows_late: bool) -> Registry {
    let options = EntryOptions {
        timeout: TIMEOUT,
        policy: RetryPolicy {
            max_attempts: MAX_ATTEMPTS,
            base: Duration::from_millis(200),
            max: Duration::from_secs(2),
        },
        kill_after: Duration::from_millis(500),
    };
    let external = || Handler::External(Arc::new(SimHandler { link: Arc::clone(link) }));
    let effect = |way| Handler::InTransaction(Arc::new(SimEffect { link: Arc::clone(link), way }));
    let mut builder = Registry::builder()
        .handler(Way::External.kind(), options, external())
        .handler(Way::Native.kind(), options, effect(Way::Native))
        .handler(Way::Sql.kind(), options, effect(Way::Sql));
    if knows_late {
        builder = builder.handler(Way::Late.kind(), options, external());
    }
    builder.build().unwrap()
}

fn spec(link: &Link, task: &Task) -> Spec {
    link.world.workload.specs[&task.id].clone()
}

/// Tells the checker about a run: when it is over, and if it ran out of its time.
struct Running<'a> {
    link: &'a Arc<Link>,
    task: &'a Task,
    /// When its time is up.
    until: Duration,
    is_active: bool,
    is_over: bool,
}

impl Running<'_> {
    fn fails(&mut self, for_good: bool) {
        self.is_over = true;
        self.link.world.check(|checker| checker.fails(&self.task.id, for_good));
    }

    /// It ends because it was told to: its own fault if its time was up.
    fn stops(&mut self) {
        if !self.is_over && self.link.world.now() >= self.until {
            self.fails(false);
        }
        self.is_over = true;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.link.is_dead() {
            return;
        }
        self.stops();
        if self.is_active {
            self.link.world.check(|checker| checker.ends(self.link.worker, &self.task.id));
        }
    }
}

/// Brings the worker down if the task is one that does.
async fn crash_if_due(link: &Arc<Link>, spec: &Spec) {
    let world = &link.world;
    if world.check(|checker| checker.crashes_now(&spec.task.id, spec.crashes)) {
        sleep(spec.takes / 2).await;
        link.gate().await;
        world.note(link.worker, format_args!("{} brings it down", spec.task.id));
        link.kill();
        std::future::pending::<()>().await;
    }
}

struct SimHandler {
    link: Arc<Link>,
}

#[async_trait]
impl ExternalHandler for SimHandler {
    fn is_light(&self) -> bool {
        self.link.worker.0.as_u128().is_multiple_of(2)
    }

    async fn run(&self, run: Run) -> Result<Option<Bytes>, Failure> {
        let (link, task) = (&self.link, &*run.task);
        let world = &link.world;
        world.check(|checker| checker.starts(link, task));
        let limit = run.deadline.saturating_since(world.clock.now());
        let until = world.now() + limit;
        let mut running = Running { link, task, until, is_active: true, is_over: false };
        let spec = spec(link, task);
        world.note(link.worker, format_args!("runs {} under {}", task.id, run.fence));
        link.gate().await;
        crash_if_due(link, &spec).await;
        let end = spec.end(run.attempt);
        let takes = if end == End::Hang { FOR_EVER } else { spec.takes };
        tokio::select! {
            biased;
            () = run.cancel.cancelled(), if spec.listens => {
                running.stops();
                return Err(Failure::retry("told to stop"));
            }
            () = sleep(takes) => {}
        }
        link.gate().await;
        match end {
            End::Succeed | End::Hang => {
                running.is_over = true;
                Ok(None)
            }
            End::Fail => {
                running.fails(false);
                Err(Failure::retry("as asked"))
            }
            End::FailForGood => {
                running.fails(true);
                Err(Failure::for_good("as asked"))
            }
            End::Panic => {
                running.fails(false);
                std::panic::resume_unwind(Box::new("as asked"))
            }
        }
    }
}

struct SimEffect {
    link: Arc<Link>,
    way: Way,
}

#[async_trait]
impl Effect for SimEffect {
    fn name(&self) -> &'static str {
        self.way.kind()
    }

    fn batch(&self) -> usize {
        1
    }

    fn single_commit(&self) -> bool {
        self.way == Way::Sql
    }

    async fn apply(
        &self,
        connection: EffectConnection<'_>,
        items: &[EffectItem],
    ) -> Result<(), EffectError> {
        let EffectConnection::Memory(transaction) = connection else { panic!("not in memory") };
        let [item] = items else { panic!("more than one item") };
        let (link, task) = (&self.link, &*item.task);
        let until = link.world.now() + TIMEOUT;
        let mut running = Running { link, task, until, is_active: false, is_over: false };
        let spec = spec(link, task);
        if self.way == Way::Native {
            link.gate().await;
            crash_if_due(link, &spec).await;
        }
        let end = spec.end(item.attempt);
        sleep(if end == End::Hang { FOR_EVER } else { spec.takes }).await;
        // What the database runs goes on while the worker is frozen.
        if self.way == Way::Native {
            link.gate().await;
        }
        let fence = item.fence.to_string();
        if link.world.is(Mutation::EffectOutsideTransaction) {
            link.world.tables.write_effect(task.id.as_str().to_owned(), fence.into());
        } else {
            transaction.insert(task.id.as_str(), fence);
        }
        match end {
            End::Succeed | End::Hang => {
                running.is_over = true;
                Ok(())
            }
            End::Fail => {
                running.fails(false);
                Err(EffectError::Failed(Failure::retry("as asked")))
            }
            End::FailForGood => {
                running.fails(true);
                Err(EffectError::Failed(Failure::for_good("as asked")))
            }
            End::Panic => {
                running.fails(false);
                std::panic::resume_unwind(Box::new("as asked"))
            }
        }
    }
}

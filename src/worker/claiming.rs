//! What a task has before it runs: its lock, and its claim.
//!
//! Neither is had at any price. What is in the way decides how long the entry is put off, and what got
//! no answer whether it is asked again; the lock only saves work, and the claim alone decides.

use std::sync::Arc;
use std::time::Duration;

use super::executor::{Company, Executor};
use super::parting::Exit;
use crate::clock::BootInstant;
use crate::connection::RedisError;
use crate::domain::{Delivery, LockToken, Task};
use crate::lease::{Acquired, LeaseError, Lock, Renewal};
use crate::ledger::{Claimed, LedgerError};
use crate::protocol::backoff::Backoff;

/// A claim that gets no answer is made this often: the answer may be lost once, and the next
/// connection be one that broke with the first.
const CLAIM_TRIES: u32 = 3;

impl Executor {
    /// Claims the task; answers also when the claim was sent. One that got no answer may be committed
    /// all the same, and only this worker knows that nobody runs the task under it: so it asks again
    /// while it has the lock, before the entry goes to others, who would wait for a whole lease.
    pub(super) async fn claim(
        &self,
        task: &Arc<Task>,
        company: Company,
        lock: &Lock,
    ) -> Result<(BootInstant, Claimed), Exit> {
        let ledger = &self.context.stores.ledger;
        let mut tries = 0;
        loop {
            let sent = self.context.clock.now();
            let claimed = match company {
                Company::Others => ledger.claim_in_company(task).await,
                Company::Nobody => ledger.claim(task).await,
            };
            let error = match claimed {
                Ok(claimed) => return Ok((sent, claimed)),
                Err(error) => error,
            };
            let exit = self.ledger_failed(&error);
            tries += 1;
            let pause = Backoff::STORE.wait(tries, self.context.dice.fraction());
            let LedgerError::Unavailable { .. } = error else { return Err(exit) };
            if tries >= CLAIM_TRIES || self.context.clock.now() + pause >= lock.valid_until {
                return Err(exit);
            }
            tokio::select! {
                biased;
                () = self.context.stop.leaving.cancelled() => return Err(exit),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    pub(super) async fn acquire(
        &self,
        delivery: &Delivery,
        task: &Arc<Task>,
    ) -> Result<Lock, Exit> {
        match self.context.stores.leases.acquire(&task.lock_name()).await {
            Ok(Acquired::Granted(lock)) => Ok(lock),
            Ok(Acquired::Taken { remaining })
                if task.lock_key.is_some() && !self.is_left_behind(delivery, task, remaining) =>
            {
                Err(self.contended(delivery, task).await)
            }
            Ok(Acquired::Taken { remaining }) => Err(Exit::Postpone(remaining)),
            Err(LeaseError::Redis(RedisError::Refused { .. })) => {
                self.context.health.redis.write_refused();
                self.unlocked(delivery, task).await
            }
            Err(error) => Err(self.lease_failed(&error)),
        }
    }

    /// Whether the lock that is in the way is most likely that of a worker that is gone: it is about
    /// to end, though whoever of us is alive renews it long before. In Postgres, where a task waits for
    /// a busy resource, it would wait for longer than that. A foreign program's lock may look so all
    /// the time, so an entry comes round for this but once.
    fn is_left_behind(&self, delivery: &Delivery, task: &Task, remaining: Duration) -> bool {
        let (lease, now) = (self.context.limits.lease, self.context.clock.now());
        // What has waited comes with the next sweep, which may be a while off.
        let coming_back = (lease / 2).max(2 * self.context.limits.sweep);
        remaining < lease / 3
            && self.left_behind.may_wait(&task.id, delivery.entry, now, remaining + coming_back)
    }

    /// A Redis that is full takes no lock but still gives work out. The ledger decides without it
    /// too, and only ended tasks make room; the heartbeat goes on asking for the lock. The lock of a
    /// resource may be a foreign program's, though, and whose it is can still be read.
    async fn unlocked(&self, delivery: &Delivery, task: &Arc<Task>) -> Result<Lock, Exit> {
        let lock = Lock {
            name: task.lock_name(),
            token: LockToken::random(),
            valid_until: self.context.clock.now(),
        };
        if task.lock_key.is_none() {
            return Ok(lock);
        }
        match self.context.stores.leases.renew(std::slice::from_ref(&lock)).await {
            Ok(found) if found == [Renewal::Foreign] => Err(self.contended(delivery, task).await),
            Ok(_) => Ok(lock),
            Err(error) => Err(self.lease_failed(&error)),
        }
    }

    /// Nothing of the task has begun. Left where it is, it would idle for a whole lease.
    fn lease_failed(&self, error: &LeaseError) -> Exit {
        self.context.health.redis.doubt(error);
        // Others would meet what lasts, too.
        if error.is_transient() {
            Exit::HandOver
        } else {
            Exit::Postpone(self.context.limits.lease)
        }
    }
}

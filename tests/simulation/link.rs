//! The way between one worker process and its stores, where everything goes wrong.
//!
//! Each call may be slow, refused, applied with its answer lost, or the last one of its worker. A
//! frozen worker gets no answers and sends nothing until it thaws; a dead one never again.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use queue_worker::domain::WorkerId;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::world::World;

/// A Redis call is given up after this.
pub(crate) const REDIS_TIMEOUT: Duration = Duration::from_millis(500);
/// A Postgres call is given up after this.
pub(crate) const POSTGRES_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Redis,
    Postgres,
}

/// Why a call has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It was not applied.
    Before,
    /// It was applied.
    Lost,
}

/// What befalls a worker in the middle of one of its calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mishap {
    /// In this call from now.
    pub(crate) calls_left: u64,
    /// Before the call is applied, or after.
    pub(crate) before: bool,
    /// It freezes for so long; or it dies.
    pub(crate) freezes: Option<Duration>,
}

/// What becomes of one call.
struct Fate {
    /// Time until it is applied.
    there: Duration,
    /// Time until its answer comes.
    back: Duration,
    refused: Option<Duration>,
    lost: bool,
    mishap: Option<Mishap>,
}

#[derive(Default)]
struct State {
    dead: bool,
    frozen: bool,
    /// What stands still, to be woken by the thaw.
    still: Vec<Waker>,
    mishap: Option<Mishap>,
    redis_trouble: Option<Duration>,
    postgres_trouble: Option<Duration>,
}

/// One worker process's way to the stores.
pub(crate) struct Link {
    pub(crate) world: Arc<World>,
    pub(crate) worker: WorkerId,
    state: Mutex<State>,
    died: Notify,
    thawed: Notify,
    /// Calls that go on without their callers.
    tasks: TaskTracker,
}

impl Link {
    pub(crate) fn new(world: &Arc<World>, worker: WorkerId, mishap: Option<Mishap>) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(world),
            worker,
            state: Mutex::new(State { mishap, ..State::default() }),
            died: Notify::new(),
            thawed: Notify::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Runs a call that nobody can cancel.
    pub(crate) fn spawn(&self, call: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(call);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// The process is gone.
    pub(crate) fn kill(&self) {
        self.state().dead = true;
        self.died.notify_waiters();
        self.thawed.notify_waiters();
    }

    pub(crate) fn freeze(&self) {
        self.state().frozen = true;
    }

    pub(crate) fn thaw(&self) {
        let now = self.world.now();
        let still = {
            let mut state = self.state();
            state.frozen = false;
            state.redis_trouble = Some(now);
            state.postgres_trouble = Some(now);
            std::mem::take(&mut state.still)
        };
        still.into_iter().for_each(Waker::wake);
        self.thawed.notify_waiters();
    }

    /// Whether the worker is frozen: then the waker is woken by the thaw.
    pub(crate) fn wakes_later(&self, waker: &Waker) -> bool {
        let mut state = self.state();
        if state.frozen {
            state.still.push(waker.clone());
        }
        state.frozen
    }

    /// Nothing befalls it in a call any more.
    pub(crate) fn spare(&self) {
        self.state().mishap = None;
    }

    /// Resolves when the process is gone.
    pub(crate) async fn died(&self) {
        let died = self.died.notified();
        if !self.is_dead() {
            died.await;
        }
    }

    /// Passes when the worker runs; never for a dead one.
    pub(crate) async fn gate(&self) {
        loop {
            let thawed = self.thawed.notified();
            let (dead, frozen) = {
                let state = self.state();
                (state.dead, state.frozen)
            };
            if dead {
                std::future::pending::<()>().await;
            }
            if !frozen {
                return;
            }
            thawed.await;
        }
    }

    /// The last moment at which this worker had no fault of the world's to bear.
    pub(crate) fn last_trouble(&self, side: Side) -> Option<Duration> {
        let state = self.state();
        if state.frozen {
            return Some(self.world.now());
        }
        match side {
            Side::Redis => state.redis_trouble,
            Side::Postgres => state.postgres_trouble,
        }
    }

    fn trouble(&self, side: Side) {
        let now = Some(self.world.now());
        let mut state = self.state();
        match side {
            Side::Redis => state.redis_trouble = now,
            Side::Postgres => state.postgres_trouble = now,
        }
    }

    fn draw(&self, side: Side) -> Fate {
        let mut fate = self.world.with_faults(|faults| {
            let outage = faults.outage(side);
            let chance = &mut faults.chance;
            let slow = chance.hit(faults.slow);
            let most = if slow { 400 } else { 5 };
            let lost = chance.hit(faults.lost);
            let refused = chance.hit(faults.refused).then(|| chance.ms(1, 50));
            Fate {
                there: chance.ms(1, most),
                back: chance.ms(1, most),
                refused: outage.or(refused),
                lost,
                mishap: None,
            }
        });
        let mut state = self.state();
        if let Some(mishap) = &mut state.mishap {
            mishap.calls_left -= 1;
            if mishap.calls_left == 0 {
                fate.mishap = state.mishap.take();
            }
        }
        fate
    }

    /// The mishap of a call that is to come at this point of it, if there is one.
    async fn befall(&self, mishap: Option<Mishap>, before: bool) {
        let Some(mishap) = mishap.filter(|mishap| mishap.before == before) else { return };
        self.world.note(self.worker, format_args!("in a call: {mishap:?}"));
        match mishap.freezes {
            Some(time) => {
                self.freeze();
                self.world.thaw_in(time, self.worker);
            }
            None => self.kill(),
        }
        self.gate().await;
    }

    /// Applies a call, or not, and answers, or not.
    pub(crate) async fn call<T>(
        &self,
        side: Side,
        apply: impl Future<Output = T>,
    ) -> Result<T, Fault> {
        self.gate().await;
        let fate = self.draw(side);
        self.befall(fate.mishap, true).await;
        if let Some(wait) = fate.refused {
            self.trouble(side);
            sleep(wait).await;
            self.trouble(side);
            self.gate().await;
            return Err(Fault::Before);
        }
        sleep(fate.there).await;
        self.gate().await;
        let answer = tokio::select! {
            biased;
            () = self.died() => None,
            answer = apply => Some(answer),
        };
        let Some(answer) = answer else { return std::future::pending().await };
        self.befall(fate.mishap, false).await;
        if fate.lost {
            self.trouble(side);
            sleep(match side {
                Side::Redis => REDIS_TIMEOUT,
                Side::Postgres => POSTGRES_TIMEOUT / 5,
            })
            .await;
            self.trouble(side);
            self.gate().await;
            return Err(Fault::Lost);
        }
        sleep(fate.back).await;
        self.gate().await;
        Ok(answer)
    }
}

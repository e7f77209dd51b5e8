//! The workers: real processes, started again at once whenever one ends, as `Restart=always` does.
//!
//! A process is signalled only while it is ours and unreaped, under one lock, so no signal ever
//! reaches another process. An end that nobody asked for is remembered, and so is how long each
//! drain took.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use rustix::process::Signal;
use tokio::time::Instant;
use uuid::Uuid;

use super::ground::{DRAIN_BUDGET, Ground};
use crate::cli::{own_program, trial};
use crate::private_servers::{Companion, CompanionOutput};

/// How often the processes are looked after.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A drain that takes this much longer than its budget is ended by force.
const DRAIN_SLACK: Duration = Duration::from_secs(5);

/// The workers of a drill. Dropping it kills them.
pub(super) struct Fleet {
    slots: Vec<Slot>,
    stopping: AtomicBool,
    record: Mutex<Record>,
}

/// A place for one worker after another.
struct Slot {
    config: PathBuf,
    state_dir: PathBuf,
    log: PathBuf,
    life: Mutex<Life>,
}

/// The process in a slot.
struct Life {
    process: Companion,
    state: State,
}

/// What was done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It runs.
    Free,
    /// Somebody is about to do something to it.
    Chosen,
    /// It was told to end.
    Draining(Instant),
    /// SIGKILL was sent.
    Killed,
}

/// How workers ended.
#[derive(Debug, Default, Clone)]
pub(super) struct Record {
    pub(super) drains: Vec<Duration>,
    /// Ends that nobody asked for, and drains that did not exit with 0.
    pub(super) bad_ends: Vec<String>,
}

/// A running worker that is ours to hit; it is free again when this is dropped.
pub(super) struct Target {
    fleet: Arc<Fleet>,
    slot: usize,
    pub(super) worker: Uuid,
}

impl Fleet {
    pub(super) fn start(ground: &Ground, workers: u32) -> anyhow::Result<Arc<Self>> {
        let slots = (0..workers).map(|n| {
            let (config, state_dir, log) = (ground.config(n), ground.state_dir(n), ground.log(n));
            let process = spawn(&config, &log)?;
            let life = Mutex::new(Life { process, state: State::Free });
            anyhow::Ok(Slot { config, state_dir, log, life })
        });
        Ok(Arc::new(Self {
            slots: slots.collect::<anyhow::Result<_>>()?,
            stopping: AtomicBool::new(false),
            record: Mutex::default(),
        }))
    }

    /// Reaps and restarts, until all have ended after [`Self::stop`].
    pub(super) async fn tend(&self) -> anyhow::Result<()> {
        loop {
            let mut living = 0;
            for (n, slot) in self.slots.iter().enumerate() {
                living += u32::from(self.tend_slot(n, slot)?);
            }
            if living == 0 && self.stopping.load(Ordering::SeqCst) {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Whether a process is in the slot afterwards.
    fn tend_slot(&self, n: usize, slot: &Slot) -> anyhow::Result<bool> {
        let mut life = slot.life();
        if life.process.is_running() {
            if let State::Draining(since) = life.state
                && since.elapsed() > DRAIN_BUDGET + DRAIN_SLACK
            {
                let what = format!("worker {n} did not end {:?} after SIGTERM", since.elapsed());
                self.record().bad_ends.push(what);
                life.state = State::Killed;
                life.process.kill();
            }
            return Ok(true);
        }
        // It has ended, so this answers at once.
        let status = life.process.wait().now_or_never();
        let code = status.and_then(|status| status.code());
        match life.state {
            State::Draining(since) if code == Some(0) => self.record().drains.push(since.elapsed()),
            State::Killed => {}
            State::Draining(_) | State::Free | State::Chosen => {
                let what =
                    format!("worker {n} ended with {status:?} while it was {:?}", life.state);
                self.record().bad_ends.push(what);
            }
        }
        // Counted once: the next look at an empty slot finds it killed.
        life.state = State::Killed;
        if self.stopping.load(Ordering::SeqCst) {
            return Ok(false);
        }
        *life = Life { process: spawn(&slot.config, &slot.log)?, state: State::Free };
        Ok(true)
    }

    /// The workers that have started and are nobody's yet, by slot.
    pub(super) fn free(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|&n| self.slots[n].free_worker().is_some()).collect()
    }

    /// Reserves a worker, if it is still free.
    pub(super) fn take(self: &Arc<Self>, slot: usize) -> Option<Target> {
        let worker = self.slots[slot].free_worker()?;
        let mut life = self.slots[slot].life();
        if life.state != State::Free {
            return None;
        }
        life.state = State::Chosen;
        Some(Target { fleet: Arc::clone(self), slot, worker })
    }

    /// Asks all to end, and starts none any more; [`Self::tend`] waits for them.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for slot in &self.slots {
            let mut life = slot.life();
            if life.state != State::Killed {
                life.state = State::Draining(Instant::now());
                life.process.terminate();
            }
        }
    }

    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker here, once it has said that it runs and while nobody has chosen it.
    fn free_worker(&self) -> Option<Uuid> {
        let life = self.life();
        let (pid, worker) = trial::noted_worker(&self.state_dir)?;
        (life.state == State::Free && life.process.pid() == Some(pid)).then_some(worker)
    }
}

impl Target {
    fn signal(&self, signal: Signal) {
        self.fleet.slots[self.slot].life().process.signal(signal);
    }

    pub(super) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(super) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGKILL to the process alone: its programs live on, as they do where no service manager
    /// clears them away.
    pub(super) fn kill(self) {
        self.end(State::Killed, Signal::KILL);
    }

    /// SIGTERM.
    pub(super) fn terminate(self) {
        self.end(State::Draining(Instant::now()), Signal::TERM);
    }

    fn end(self, state: State, signal: Signal) {
        let mut life = self.fleet.slots[self.slot].life();
        if life.state == State::Chosen {
            life.state = state;
            life.process.signal(signal);
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let mut life = self.fleet.slots[self.slot].life();
        if life.state == State::Chosen {
            life.state = State::Free;
        }
    }
}

fn spawn(config: &std::path::Path, log: &std::path::Path) -> anyhow::Result<Companion> {
    let config = config.display().to_string();
    let output = CompanionOutput::Log(log.to_owned());
    Ok(Companion::start(&own_program()?, &["run", "--config", &config], &output)?)
}

//! Where suspects wait until they can run alone.
//!
//! A task that has crashed two workers in a row may well crash a third. It runs only while nothing
//! else is in flight here, one suspect at a time, so that its neighbours are not condemned with it.
//! It waits unleased and unclaimed: a crash meanwhile is not its crash, and another worker that is
//! idle may take it over. After a while of waiting the worker starts nothing else until it has run.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{BootInstant, Clock};

/// No more suspects wait here; those above it wait in the ledger.
const MOST_WAITING: usize = 16;

/// The lane of one worker.
#[derive(Debug, Default)]
pub struct Lane {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of their coming, with the time from which the worker is quiet for them.
    waiting: VecDeque<(u64, BootInstant)>,
    next: u64,
    /// One of them runs.
    running: bool,
}

/// How the waiting ended.
#[derive(Debug)]
pub enum Turn<'a> {
    /// Nothing else is in flight: run it now, and keep the guard while it runs.
    Alone(Alone<'a>),
    /// The lane is full, or the wait was in vain.
    Later,
}

/// The worker belongs to one suspect while this lives.
#[derive(Debug)]
pub struct Alone<'a>(&'a Lane);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.state().running = false;
        self.0.changed.notify_waiters();
    }
}

/// A place in the lane, left when the wait is dropped.
struct Ticket<'a> {
    lane: &'a Lane,
    number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.lane.state().waiting.retain(|(number, _)| *number != self.number);
        self.lane.changed.notify_waiters();
    }
}

impl Lane {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing may be started now: a suspect runs, or one has waited for long enough.
    pub fn wants_quiet(&self, now: BootInstant) -> bool {
        let state = self.state();
        state.running || state.waiting.front().is_some_and(|(_, quiet)| now >= *quiet)
    }

    /// Something has left; `in_flight` is how much is left. Wakes a suspect that may be alone now.
    pub fn stir(&self, in_flight: usize) {
        let waiting = self.state().waiting.len();
        if waiting > 0 && in_flight <= waiting {
            self.changed.notify_waiters();
        }
    }

    /// Waits until the caller's task is alone. `in_flight` counts all tasks in flight, those that
    /// wait here included. After `patience` the worker starts nothing else; after twice that the
    /// wait is in vain.
    pub async fn wait(
        &self,
        clock: Clock,
        patience: Duration,
        in_flight: impl Fn() -> usize,
    ) -> Turn<'_> {
        let Some(ticket) = self.enter(clock.now() + patience) else { return Turn::Later };
        let alone = async {
            loop {
                let changed = self.changed.notified();
                {
                    let mut state = self.state();
                    let first = state.waiting.front().is_some_and(|(n, _)| *n == ticket.number);
                    if first && !state.running && in_flight() <= state.waiting.len() {
                        state.running = true;
                        return Alone(self);
                    }
                }
                changed.await;
            }
        };
        match tokio::time::timeout(patience * 2, alone).await {
            Ok(alone) => Turn::Alone(alone),
            Err(_) => Turn::Later,
        }
    }

    fn enter(&self, quiet: BootInstant) -> Option<Ticket<'_>> {
        let mut state = self.state();
        if state.waiting.len() >= MOST_WAITING {
            return None;
        }
        let number = state.next;
        state.next += 1;
        state.waiting.push_back((number, quiet));
        Some(Ticket { lane: self, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const PATIENCE: Duration = Duration::from_secs(30);

    fn clock() -> Clock {
        Clock::Tokio(tokio::time::Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspect_waits_until_it_is_alone() {
        let lane = Lane::default();
        let in_flight = AtomicUsize::new(3);
        let wait = lane.wait(clock(), PATIENCE, || in_flight.load(Ordering::Relaxed));
        let others = async {
            for left in [2, 1] {
                tokio::time::sleep(Duration::from_secs(1)).await;
                in_flight.store(left, Ordering::Relaxed);
                lane.stir(left);
            }
        };
        let start = tokio::time::Instant::now();
        let (turn, ()) = tokio::join!(wait, others);
        assert!(matches!(turn, Turn::Alone(_)));
        assert_eq!(start.elapsed(), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn suspects_run_one_at_a_time_and_keep_the_worker_quiet() {
        let lane = Lane::default();
        let clock = clock();
        let Turn::Alone(first) = lane.wait(clock, PATIENCE, || 1).await else { panic!("busy") };
        assert!(lane.wants_quiet(clock.now()));
        let second = lane.wait(clock, PATIENCE, || 1);
        let release = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            drop(first);
        };
        let start = tokio::time::Instant::now();
        let (turn, ()) = tokio::join!(second, release);
        assert!(matches!(turn, Turn::Alone(_)));
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        drop(turn);
        assert!(!lane.wants_quiet(clock.now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_quiets_the_worker_and_then_gives_up() {
        let lane = Lane::default();
        let clock = clock();
        let look = async {
            tokio::time::sleep(Duration::from_secs(29)).await;
            let before = lane.wants_quiet(clock.now());
            tokio::time::sleep(Duration::from_secs(2)).await;
            (before, lane.wants_quiet(clock.now()))
        };
        let (turn, looks) = tokio::join!(lane.wait(clock, PATIENCE, || 9), look);
        assert!(matches!(turn, Turn::Later));
        assert_eq!(looks, (false, true));
        assert!(!lane.wants_quiet(clock.now()), "the lane is empty again");
    }

    #[tokio::test(start_paused = true)]
    async fn the_lane_is_bounded() {
        let lane = Lane::default();
        let clock = clock();
        let tickets: Vec<_> = (0..MOST_WAITING).map(|_| lane.enter(clock.now())).collect();
        assert!(tickets.iter().all(Option::is_some));
        assert!(matches!(lane.wait(clock, PATIENCE, || 1).await, Turn::Later));
    }
}

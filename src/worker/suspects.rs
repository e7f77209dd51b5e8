//! Where suspects wait until they can run alone.
//!
//! A task that has crashed two workers in a row may well crash a third. It runs only while nothing
//! else is in flight here, one suspect at a time, so that its neighbours are not condemned with it.
//! It waits unleased and unclaimed: a crash meanwhile is not its crash, and another worker that is
//! idle may take it over. After a while of waiting the worker starts nothing else, until it has run or
//! is put back; who has waited for the longest goes first.

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
    /// By the time from which the worker is quiet for them, then in the order of their coming.
    waiting: VecDeque<(u64, BootInstant)>,
    next: u64,
    /// One of them runs.
    running: bool,
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

    /// Waits until the caller's task is alone; `None` where the lane is full. `in_flight` counts all
    /// tasks in flight, those that wait here included. After `patience` the worker starts nothing
    /// else, so that the wait ends with the longest task that runs. To be dropped when the caller's
    /// entry is another worker's, or to let the worker go on.
    pub async fn wait(
        &self,
        clock: Clock,
        patience: Duration,
        in_flight: impl Fn() -> usize,
    ) -> Option<Alone<'_>> {
        let ticket = self.enter(clock.now() + patience)?;
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state();
                let first = state.waiting.front().is_some_and(|(n, _)| *n == ticket.number);
                if first && !state.running && in_flight() <= state.waiting.len() {
                    state.running = true;
                    return Some(Alone(self));
                }
            }
            changed.await;
        }
    }

    /// Whether a suspect has the worker to itself now.
    pub fn is_taken(&self) -> bool {
        self.state().running
    }

    fn enter(&self, quiet: BootInstant) -> Option<Ticket<'_>> {
        let mut state = self.state();
        if state.waiting.len() >= MOST_WAITING {
            return None;
        }
        let number = state.next;
        state.next += 1;
        let at = state.waiting.partition_point(|(_, other)| *other <= quiet);
        state.waiting.insert(at, (number, quiet));
        drop(state);
        // Whoever waits counts itself among those that need not leave first: so the first may go.
        self.changed.notify_waiters();
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
        assert!(turn.is_some());
        assert_eq!(start.elapsed(), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn suspects_run_one_at_a_time_and_keep_the_worker_quiet() {
        let lane = Lane::default();
        let clock = clock();
        let first = lane.wait(clock, PATIENCE, || 1).await.expect("nothing else is there");
        assert!(lane.is_taken() && lane.wants_quiet(clock.now()));
        let second = lane.wait(clock, PATIENCE, || 1);
        let release = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            drop(first);
        };
        let start = tokio::time::Instant::now();
        let (turn, ()) = tokio::join!(second, release);
        assert!(turn.is_some());
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        drop(turn);
        assert!(!lane.wants_quiet(clock.now()));
    }

    #[tokio::test(start_paused = true)]
    async fn two_suspects_that_come_together_do_not_wait_for_each_other() {
        let lane = Lane::default();
        let in_flight = AtomicUsize::new(2);
        let run = async || {
            let turn = lane.wait(clock(), PATIENCE, || in_flight.load(Ordering::Relaxed)).await;
            drop(turn.expect("a turn"));
            let left = in_flight.fetch_sub(1, Ordering::Relaxed) - 1;
            lane.stir(left);
        };
        let start = tokio::time::Instant::now();
        tokio::join!(run(), run());
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_quiets_the_worker_until_the_suspect_has_run() {
        let lane = Lane::default();
        let clock = clock();
        let in_flight = AtomicUsize::new(9);
        let wait = lane.wait(clock, PATIENCE, || in_flight.load(Ordering::Relaxed));
        let look = async {
            tokio::time::sleep(Duration::from_secs(29)).await;
            let before = lane.wants_quiet(clock.now());
            tokio::time::sleep(Duration::from_secs(600)).await;
            let after = lane.wants_quiet(clock.now());
            in_flight.store(1, Ordering::Relaxed);
            lane.stir(1);
            (before, after)
        };
        let (turn, looks) = tokio::join!(wait, look);
        assert!(turn.is_some());
        assert_eq!(looks, (false, true));
        drop(turn);
        assert!(!lane.wants_quiet(clock.now()), "the lane is empty again");
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_waited_elsewhere_goes_first() {
        let lane = Lane::default();
        let clock = clock();
        let in_flight = AtomicUsize::new(9);
        let turn = async |patience| {
            let turn = lane.wait(clock, patience, || in_flight.load(Ordering::Relaxed)).await;
            let at = clock.now();
            drop(turn.expect("a turn"));
            in_flight.fetch_sub(1, Ordering::Relaxed);
            lane.stir(in_flight.load(Ordering::Relaxed));
            at
        };
        let leave = async {
            assert!(lane.wants_quiet(clock.now()), "one of them has no patience left");
            tokio::time::sleep(Duration::from_secs(1)).await;
            in_flight.store(2, Ordering::Relaxed);
            lane.stir(2);
        };
        let (fresh, old, ()) = tokio::join!(turn(PATIENCE), turn(Duration::ZERO), leave);
        assert!(old <= fresh);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_wait_gives_its_place_up() {
        let lane = Lane::default();
        let clock = clock();
        let gone = tokio::time::timeout(PATIENCE * 2, lane.wait(clock, PATIENCE, || 9)).await;
        assert!(gone.is_err());
        assert!(!lane.wants_quiet(clock.now()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_lane_is_bounded() {
        let lane = Lane::default();
        let clock = clock();
        let tickets: Vec<_> = (0..MOST_WAITING).map(|_| lane.enter(clock.now())).collect();
        assert!(tickets.iter().all(Option::is_some));
        assert!(lane.wait(clock, PATIENCE, || 1).await.is_none());
    }
}

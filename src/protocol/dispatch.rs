//! How many entries a queue fetches next.
//!
//! Two limits: how many handlers *run* at a time (the queue's concurrency, kept by the executor),
//! and how many tasks are *in flight*, those included that wait for their claim to commit or their
//! outcome to be acknowledged. Short tasks need many in flight to hide the commits behind each
//! other; a task that takes a minute must not be claimed before a slot is free, since another
//! worker could run it. So the allowance for fetching ahead is what was finished in the last
//! moment: by Little's law as many as can start within that moment, and none where nothing ends.

use std::time::Duration;

use crate::clock::BootInstant;

/// The moment over which finished runs are counted, and for which work is fetched ahead.
const WINDOW: Duration = Duration::from_millis(100);

/// A fetch smaller than this share of what is in flight waits for more room.
const WORTHWHILE_SHARE: usize = 8;

/// The bookkeeping of one queue.
#[derive(Debug)]
pub struct Dispatch {
    concurrency: usize,
    waiting: usize,
    running: usize,
    finishing: usize,
    window_start: BootInstant,
    finished: usize,
    finished_before: usize,
}

impl Dispatch {
    /// A queue that runs up to `concurrency` handlers at a time.
    pub const fn new(concurrency: usize, now: BootInstant) -> Self {
        Self {
            concurrency,
            waiting: 0,
            running: 0,
            finishing: 0,
            window_start: now,
            finished: 0,
            finished_before: 0,
        }
    }

    /// Changes the number of handlers; what runs goes on.
    pub const fn set_concurrency(&mut self, concurrency: usize) {
        self.concurrency = concurrency;
    }

    /// An entry was fetched.
    pub const fn fetched(&mut self) {
        self.waiting += 1;
    }

    /// A fetched task has started its handler.
    pub const fn started(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        self.running += 1;
    }

    /// A task whose handler has ended starts it once more, on another way.
    pub const fn restarted(&mut self) {
        self.finishing = self.finishing.saturating_sub(1);
        self.running += 1;
    }

    /// The handler has ended; the outcome is not yet recorded.
    pub fn ended(&mut self, now: BootInstant) {
        self.running = self.running.saturating_sub(1);
        self.finishing += 1;
        self.roll(now);
        self.finished += 1;
    }

    /// A task has left: after its end, or without ever having started.
    pub const fn left(&mut self, had_started: bool) {
        if had_started {
            self.finishing = self.finishing.saturating_sub(1);
        } else {
            self.waiting = self.waiting.saturating_sub(1);
        }
    }

    /// How many tasks are in flight.
    pub const fn in_flight(&self) -> usize {
        self.waiting + self.running + self.finishing
    }

    /// How many handlers run.
    pub const fn running(&self) -> usize {
        self.running
    }

    /// How many entries to fetch now, when `room` more may be in flight over all queues. Zero also
    /// where the little that could be fetched is not worth a round trip yet.
    pub fn demand(&mut self, room: usize, now: BootInstant) -> usize {
        self.roll(now);
        let free = self.concurrency.saturating_sub(self.running);
        let ahead = self.finished.max(self.finished_before);
        let demand = (free + ahead).saturating_sub(self.waiting).min(room);
        // With handlers free, any task is worth fetching; ahead of them, only a good handful.
        let starving = self.waiting < free.min(self.concurrency);
        if starving && self.finishing < self.concurrency.max(ahead) {
            return demand;
        }
        if demand * WORTHWHILE_SHARE < self.in_flight() { 0 } else { demand }
    }

    fn roll(&mut self, now: BootInstant) {
        let passed = now.saturating_since(self.window_start);
        if passed < WINDOW {
            return;
        }
        self.finished_before = if passed < WINDOW * 2 { self.finished } else { 0 };
        self.finished = 0;
        self.window_start = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_millis(ms))
    }

    #[test]
    fn an_idle_queue_asks_for_its_concurrency() {
        let mut d = Dispatch::new(16, at(0));
        assert_eq!(d.demand(2_000, at(0)), 16);
        assert_eq!(d.demand(3, at(0)), 3);
    }

    #[test]
    fn long_tasks_are_never_fetched_ahead() {
        let mut d = Dispatch::new(4, at(0));
        for _ in 0..4 {
            d.fetched();
        }
        assert_eq!(d.demand(2_000, at(10)), 0, "fetched, not yet started");
        for _ in 0..4 {
            d.started();
        }
        assert_eq!(d.demand(2_000, at(20)), 0, "all handlers busy, nothing ended");
        d.ended(at(60_000));
        d.left(true);
        assert_eq!(d.demand(2_000, at(60_000)), 2, "one free handler and one finished just now");
        assert_eq!(d.demand(2_000, at(60_300)), 1, "the allowance ends with its moment");
    }

    #[test]
    fn short_tasks_are_fetched_ahead_as_fast_as_they_finish() {
        let mut d = Dispatch::new(4, at(0));
        for _ in 0..500 {
            d.fetched();
            d.started();
            d.ended(at(50));
            d.left(true);
        }
        assert_eq!(d.demand(2_000, at(60)), 504);
        assert_eq!(d.demand(100, at(60)), 100);
    }

    #[test]
    fn a_task_that_starts_twice_is_counted_once() {
        let mut d = Dispatch::new(4, at(0));
        d.fetched();
        d.started();
        d.ended(at(1));
        d.restarted();
        assert_eq!((d.running(), d.in_flight()), (1, 1));
        d.ended(at(2));
        d.left(true);
        assert_eq!((d.running(), d.in_flight()), (0, 0));
    }

    #[test]
    fn a_trickle_is_not_worth_a_round_trip_while_much_is_in_flight() {
        let mut d = Dispatch::new(4, at(0));
        for _ in 0..400 {
            d.fetched();
            d.started();
            d.ended(at(50));
        }
        for _ in 0..400 {
            d.fetched();
        }
        assert_eq!(d.demand(2_000, at(60)), 0, "four places beside eight hundred in flight");
        for _ in 0..200 {
            d.left(true);
            d.started();
        }
        assert!(d.in_flight() > 0);
    }
}

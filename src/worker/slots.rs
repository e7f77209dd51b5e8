//! Who of one queue is in flight, and how much more may be.
//!
//! A [`Place`] is taken for each delivery and given back when it is dropped, whatever way the
//! executor takes; so the counts cannot leak. What all queues share is in [`shared`](super::shared).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::shared::{Ask, Shared};
use crate::clock::Clock;
use crate::domain::{Delivery, EntryId, Origin};
use crate::protocol::dispatch::Dispatch;

/// The places of one queue.
#[derive(Debug)]
pub struct Slots {
    shared: Arc<Shared>,
    clock: Clock,
    state: Mutex<State>,
    /// One permit per handler that may run.
    pub running: Arc<Semaphore>,
    freed: Notify,
}

#[derive(Debug)]
struct State {
    dispatch: Dispatch,
    /// What is in flight, and whether it was brought once more meanwhile.
    entries: HashMap<EntryId, bool>,
    /// How many permits there are, in use or not.
    permits: usize,
    /// How many there should be.
    wanted: usize,
}

impl Slots {
    /// The places of a queue that runs up to `concurrency` handlers.
    pub fn new(shared: &Arc<Shared>, concurrency: usize, clock: Clock) -> Arc<Self> {
        shared.add_queue();
        Arc::new(Self {
            shared: Arc::clone(shared),
            clock,
            state: Mutex::new(State {
                dispatch: Dispatch::new(concurrency, clock.now()),
                entries: HashMap::new(),
                permits: concurrency,
                wanted: concurrency,
            }),
            running: Arc::new(Semaphore::new(concurrency)),
            freed: Notify::new(),
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes how many handlers may run; those above a lowered number run to their end.
    pub fn set_concurrency(&self, concurrency: usize) {
        let mut state = self.state();
        state.dispatch.set_concurrency(concurrency);
        state.wanted = concurrency;
        if concurrency >= state.permits {
            self.running.add_permits(concurrency - state.permits);
            state.permits = concurrency;
        } else {
            // Permits in use are withdrawn when they come back: see `Place::ended`.
            state.permits -= self.running.forget_permits(state.permits - concurrency);
        }
        drop(state);
        self.freed.notify_one();
    }

    /// How much to fetch now, up to `most` entries of up to `largest` bytes; kept for the read until
    /// what is answered is dropped. `None` if there is no room, too little to be worth a round trip,
    /// or a suspect that wants the worker to itself.
    pub fn ask(&self, most: usize, largest: usize) -> Option<Ask> {
        let now = self.clock.now();
        if self.shared.suspects.wants_quiet(now) {
            return None;
        }
        self.shared.ask(|room| self.state().dispatch.demand(room, now).min(most), largest)
    }

    /// Whether one more task may be started now that is in hand already, whatever its size.
    pub fn has_room(&self) -> bool {
        let now = self.clock.now();
        let left = self.shared.places_left();
        !self.shared.suspects.wants_quiet(now) && self.state().dispatch.demand(left, now) > 0
    }

    /// Waits until a place may have become free since the last look: one of this queue, or room
    /// that all queues share.
    pub async fn freed(&self) {
        tokio::select! {
            biased;
            () = self.freed.notified() => {}
            () = self.shared.freed() => {}
        }
    }

    /// How many handlers of this queue run.
    pub fn running(&self) -> usize {
        self.state().dispatch.running()
    }

    /// How many tasks of this queue are in flight.
    pub fn in_flight(&self) -> usize {
        self.state().entries.len()
    }

    /// Takes a place for the delivery; `None` if the same entry is in flight here already. Its place
    /// then tells that it came again.
    pub fn take(self: &Arc<Self>, delivery: &Delivery) -> Option<Place> {
        let bytes = delivery.raw.bytes();
        let mut state = self.state();
        match state.entries.entry(delivery.entry) {
            Entry::Occupied(mut here) => {
                *here.get_mut() |= delivery.origin == Origin::Reclaimed;
                return None;
            }
            Entry::Vacant(free) => free.insert(false),
        };
        state.dispatch.fetched();
        drop(state);
        self.shared.take(bytes);
        Some(Place { slots: Arc::clone(self), entry: delivery.entry, bytes, started: false })
    }
}

/// One delivery's place in flight, given back on drop.
#[derive(Debug)]
pub struct Place {
    slots: Arc<Slots>,
    entry: EntryId,
    bytes: usize,
    started: bool,
}

impl Place {
    /// The handler starts, maybe once more.
    pub fn started(&mut self) {
        let mut state = self.slots.state();
        if self.started {
            state.dispatch.restarted();
        } else {
            state.dispatch.started();
        }
        self.started = true;
    }

    /// The handler has ended; its permit, if it needed one, goes back unless there are too many.
    pub fn ended(&self, permit: Option<OwnedSemaphorePermit>) {
        let mut state = self.slots.state();
        state.dispatch.ended(self.slots.clock.now());
        if let Some(permit) = permit
            && state.permits > state.wanted
        {
            state.permits -= 1;
            permit.forget();
        }
        drop(state);
        self.slots.freed.notify_one();
    }

    /// Whether a look into the pending list has brought this very entry since the last time that
    /// this was asked: it may be pending for us again, although it was given back.
    pub fn came_again(&self) -> bool {
        self.slots.state().entries.get_mut(&self.entry).is_some_and(std::mem::take)
    }

    /// The queue's places.
    pub fn slots(&self) -> &Arc<Slots> {
        &self.slots
    }

    /// What all queues share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.slots.shared
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.slots.state();
        state.entries.remove(&self.entry);
        state.dispatch.left(self.started);
        drop(state);
        self.slots.shared.give_back(self.bytes);
        self.slots.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{QueueName, RawEntry};
    use crate::queue::Demand;

    /// What may be fetched, of entries of up to 50 bytes.
    fn demand(slots: &Slots) -> Option<Demand> {
        slots.ask(1_000, 50).map(|ask| ask.demand())
    }

    fn delivery(seq: u64, bytes: usize) -> Delivery {
        Delivery {
            queue: QueueName::new("q").expect("a valid name"),
            entry: EntryId { ms: 1, seq },
            origin: Origin::Fresh,
            raw: RawEntry { fields: vec![(vec![0; bytes].into(), bytes::Bytes::new())] },
        }
    }

    #[test]
    fn places_and_bytes_come_back_when_dropped() {
        let shared = Shared::new(10, 100);
        let slots = Slots::new(&shared, 4, Clock::System);
        assert_eq!(demand(&slots), Some(Demand { entries: 4, bytes: 100 }));
        let place = slots.take(&delivery(1, 100)).expect("free");
        assert_eq!(demand(&slots), None, "no bytes left");
        drop(place);
        assert_eq!(shared.in_flight(), 0);
        assert_eq!(demand(&slots), Some(Demand { entries: 4, bytes: 100 }));
        assert_eq!(
            slots.ask(1, 50).map(|ask| ask.demand()),
            Some(Demand { entries: 1, bytes: 50 })
        );
    }

    #[test]
    fn an_entry_in_flight_is_not_taken_twice() {
        let shared = Shared::new(10, 100);
        let slots = Slots::new(&shared, 4, Clock::System);
        let first = slots.take(&delivery(1, 1));
        assert!(slots.take(&delivery(1, 1)).is_none());
        let place = first.expect("free");
        assert!(!place.came_again(), "a read brings nothing twice");
        let reclaimed = Delivery { origin: Origin::Reclaimed, ..delivery(1, 1) };
        assert!(slots.take(&reclaimed).is_none());
        assert!(place.came_again() && !place.came_again());
        drop(place);
        assert!(slots.take(&delivery(1, 1)).is_some());
    }

    #[test]
    fn concurrency_can_be_raised_and_lowered() {
        let shared = Shared::new(100, 100);
        let slots = Slots::new(&shared, 4, Clock::System);
        slots.set_concurrency(7);
        assert_eq!(slots.running.available_permits(), 7);
        slots.set_concurrency(2);
        assert_eq!(slots.running.available_permits(), 2);
    }

    #[test]
    fn permits_in_use_are_withdrawn_when_they_come_back() {
        let shared = Shared::new(100, 100);
        let slots = Slots::new(&shared, 1, Clock::System);
        slots.set_concurrency(2);
        let mut place = slots.take(&delivery(1, 1)).expect("free");
        let permit = Arc::clone(&slots.running).try_acquire_owned().expect("free");
        let other = Arc::clone(&slots.running).try_acquire_owned().expect("free");
        place.started();
        slots.set_concurrency(1);
        place.ended(Some(permit));
        assert_eq!(slots.running.available_permits(), 0);
        drop(other);
        assert_eq!(slots.running.available_permits(), 1);
    }
}

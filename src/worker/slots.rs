//! Who is in flight, and how much more may be.
//!
//! A [`Place`] is taken for each delivery and given back when it is dropped, whatever way the
//! executor takes; so the counts cannot leak. Two bounds hold over all queues: the number of tasks
//! in flight and the bytes of their payloads.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::suspects::Lane;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::clock::Clock;
use crate::domain::{Delivery, EntryId, Origin, TaskId};
use crate::protocol::dispatch::Dispatch;
use crate::queue::Demand;

/// The bounds that all queues of a worker share.
#[derive(Debug)]
pub struct Shared {
    max_in_flight: usize,
    payload_budget: usize,
    in_flight: AtomicUsize,
    bytes: AtomicUsize,
    idle: Notify,
    tasks: Mutex<HashSet<TaskId>>,
    /// Where suspects wait until they can run alone.
    pub suspects: Lane,
    /// Something has left, of whatever queue: there may be room for others.
    left: Notify,
}

impl Shared {
    /// Nothing in flight.
    pub fn new(max_in_flight: usize, payload_budget: usize) -> Arc<Self> {
        Arc::new(Self {
            max_in_flight,
            payload_budget,
            in_flight: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            idle: Notify::new(),
            tasks: Mutex::default(),
            suspects: Lane::default(),
            left: Notify::new(),
        })
    }

    /// How many tasks are in flight over all queues.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Waits until nothing is in flight.
    pub async fn until_idle(&self) {
        loop {
            let notified = self.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            notified.await;
        }
    }

    /// Marks a task as being worked on in this process; `None` if it is already.
    pub fn enter(self: &Arc<Self>, id: &TaskId) -> Option<Here> {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.insert(id.clone()).then(|| Here { shared: Arc::clone(self), id: id.clone() })
    }
}

/// A task that is being worked on in this process.
#[derive(Debug)]
pub struct Here {
    shared: Arc<Shared>,
    id: TaskId,
}

impl Drop for Here {
    fn drop(&mut self) {
        self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

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

    /// How much to fetch now; `None` if there is no room, too little to be worth a round trip, or a
    /// suspect that wants the worker to itself.
    pub fn demand(&self) -> Option<Demand> {
        if self.shared.suspects.wants_quiet(self.clock.now()) {
            return None;
        }
        let room = self.shared.max_in_flight.saturating_sub(self.shared.in_flight());
        let bytes =
            self.shared.payload_budget.saturating_sub(self.shared.bytes.load(Ordering::Relaxed));
        let entries = self.state().dispatch.demand(room, self.clock.now());
        (entries > 0 && bytes > 0).then_some(Demand { entries, bytes })
    }

    /// Waits until a place may have become free since the last look: one of this queue, or room
    /// that all queues share.
    pub async fn freed(&self) {
        tokio::select! {
            biased;
            () = self.freed.notified() => {}
            () = self.shared.left.notified() => {}
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
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
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
        let shared = &self.slots.shared;
        shared.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        let left = shared.in_flight.fetch_sub(1, Ordering::Relaxed) - 1;
        if left == 0 {
            shared.idle.notify_waiters();
        }
        shared.suspects.stir(left);
        shared.left.notify_waiters();
        self.slots.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Origin, QueueName, RawEntry};

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
        assert_eq!(slots.demand(), Some(Demand { entries: 4, bytes: 100 }));
        let place = slots.take(&delivery(1, 100)).expect("free");
        assert_eq!(slots.demand(), None, "no bytes left");
        drop(place);
        assert_eq!(shared.in_flight(), 0);
        assert_eq!(slots.demand(), Some(Demand { entries: 4, bytes: 100 }));
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
    fn a_task_is_here_once() {
        let shared = Shared::new(10, 100);
        let id = TaskId::new("t").expect("a valid id");
        let here = shared.enter(&id);
        assert!(here.is_some() && shared.enter(&id).is_none());
        drop(here);
        assert!(shared.enter(&id).is_some());
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

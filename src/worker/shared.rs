//! What all queues of a worker share: how much may be in flight, and which tasks are.
//!
//! Two bounds: the number of tasks in flight, and the bytes of their payloads. What a read that is
//! under way may bring counts as well, or each of several idle queues would be brought the whole of
//! what is free when a burst comes. So a read asks first, and gets at most an equal part of what is
//! free, for each queue that does not read yet: together they never ask for more than there is, as long
//! as there is enough for each. No idle queue leaves another without room: while anything is free that
//! does not count as in flight yet, a read may bring one task, so the bounds may be passed by one for
//! each queue. A read may pass its bytes by its last payload.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::suspects::Lane;
use crate::domain::TaskId;
use crate::queue::Demand;

/// The bounds that all queues of a worker share.
#[derive(Debug)]
pub struct Shared {
    most: Demand,
    room: Mutex<Room>,
    tasks: Mutex<HashSet<TaskId>>,
    /// Where suspects wait until they can run alone.
    pub suspects: Lane,
    /// There may be room for others: something has left, of whatever queue, or a read has ended.
    freed: Notify,
}

/// What the bounds are spent on.
#[derive(Debug)]
struct Room {
    in_flight: Demand,
    /// What the reads that are under way may bring.
    asked: Demand,
    reads: usize,
    queues: usize,
}

impl Room {
    /// What one more read may bring.
    fn share(&self, most: Demand) -> Demand {
        let readers = self.queues.saturating_sub(self.reads).max(1);
        let share = |most: usize, of: fn(&Demand) -> usize| {
            let free = most.saturating_sub(of(&self.in_flight));
            // Idle queues that read already may have asked for all of it, again and again.
            free.saturating_sub(of(&self.asked)).div_ceil(readers).max(free.min(1))
        };
        Demand {
            entries: share(most.entries, |amount| amount.entries),
            bytes: share(most.bytes, |amount| amount.bytes),
        }
    }
}

impl Shared {
    /// Nothing in flight, and no queue yet.
    pub fn new(max_in_flight: usize, payload_budget: usize) -> Arc<Self> {
        let nothing = Demand { entries: 0, bytes: 0 };
        Arc::new(Self {
            most: Demand { entries: max_in_flight, bytes: payload_budget },
            room: Mutex::new(Room { in_flight: nothing, asked: nothing, reads: 0, queues: 0 }),
            tasks: Mutex::default(),
            suspects: Lane::default(),
            freed: Notify::new(),
        })
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more queue has a part of what is free.
    pub(super) fn add_queue(&self) {
        self.room().queues += 1;
    }

    /// How many tasks are in flight over all queues.
    pub fn in_flight(&self) -> usize {
        self.room().in_flight.entries
    }

    /// How many more tasks may be in flight, those counted that reads may bring.
    pub(super) fn places_left(&self) -> usize {
        let room = self.room();
        self.most.entries.saturating_sub(room.in_flight.entries + room.asked.entries)
    }

    /// What a read may bring, whose queue wants so many `entries` of its share, of up to `largest`
    /// bytes each; `None` if that is nothing.
    pub(super) fn ask(
        self: &Arc<Self>,
        entries: impl FnOnce(usize) -> usize,
        largest: usize,
    ) -> Option<Ask> {
        let mut room = self.room();
        let share = room.share(self.most);
        let entries = entries(share.entries);
        let bytes = share.bytes.min(entries.saturating_mul(largest));
        if entries == 0 || bytes == 0 {
            return None;
        }
        room.reads += 1;
        room.asked.entries += entries;
        room.asked.bytes += bytes;
        Some(Ask { shared: Arc::clone(self), demand: Demand { entries, bytes } })
    }

    /// Waits until there may be room again.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// A task with so large a payload is in flight.
    pub(super) fn take(&self, bytes: usize) {
        let mut room = self.room();
        room.in_flight.entries += 1;
        room.in_flight.bytes += bytes;
    }

    /// It has left.
    pub(super) fn give_back(&self, bytes: usize) {
        let left = {
            let mut room = self.room();
            room.in_flight.bytes -= bytes;
            room.in_flight.entries -= 1;
            room.in_flight.entries
        };
        self.suspects.stir(left);
        self.freed.notify_waiters();
    }

    /// Marks a task as being worked on in this process; `None` if it is already.
    pub fn enter(self: &Arc<Self>, id: &TaskId) -> Option<Here> {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.insert(id.clone()).then(|| Here { shared: Arc::clone(self), id: id.clone() })
    }
}

/// What a read may bring; others have it when this is dropped.
#[derive(Debug)]
pub struct Ask {
    shared: Arc<Shared>,
    demand: Demand,
}

impl Ask {
    /// How much that is.
    pub fn demand(&self) -> Demand {
        self.demand
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        let mut room = self.shared.room();
        room.reads -= 1;
        room.asked.entries -= self.demand.entries;
        room.asked.bytes -= self.demand.bytes;
        drop(room);
        self.shared.freed.notify_waiters();
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

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: usize = 100;

    fn shared(queues: usize) -> Arc<Shared> {
        let shared = Shared::new(100, 1_000);
        (0..queues).for_each(|_| shared.add_queue());
        shared
    }

    /// Asks for as much as there is, up to so many entries.
    fn ask(shared: &Arc<Shared>, wanted: usize) -> Option<Ask> {
        shared.ask(|room| room.min(wanted), LARGEST)
    }

    #[test]
    fn idle_queues_ask_for_no_more_than_there_is() {
        for queues in 1..50 {
            let shared = shared(queues);
            let asks: Vec<Ask> = (0..queues).map_while(|_| ask(&shared, 100)).collect();
            let asks: Vec<Demand> = asks.iter().map(Ask::demand).collect();
            let sum = |of: fn(&Demand) -> usize| asks.iter().map(of).sum::<usize>();
            assert_eq!((sum(|a| a.entries), sum(|a| a.bytes)), (100, 1_000), "{queues} queues");
            let least = Demand { entries: 100 / queues, bytes: 1_000 / queues };
            assert!(asks.iter().all(|a| a.entries >= least.entries && a.bytes >= least.bytes));
        }
    }

    /// An idle queue reads over and over, and would have the last place each time.
    #[test]
    fn idle_queues_leave_no_other_without_a_place() {
        let shared = shared(3);
        (0..99).for_each(|_| shared.take(10));
        let asks: Vec<Ask> = (0..3).map_while(|_| ask(&shared, 100)).collect();
        let entries: Vec<usize> = asks.iter().map(|ask| ask.demand().entries).collect();
        assert_eq!(entries, [1, 1, 1]);
        assert!(asks.iter().all(|ask| ask.demand().bytes > 0));
        drop(asks);
        shared.take(10);
        assert!(ask(&shared, 100).is_none(), "nothing is free");
    }

    #[test]
    fn those_that_want_little_leave_the_rest() {
        let shared = shared(3);
        let idle: Vec<_> = (0..2).map_while(|_| ask(&shared, 2)).collect();
        assert_eq!(idle[0].demand(), Demand { entries: 2, bytes: 2 * LARGEST });
        let busy = ask(&shared, 100).expect("room");
        assert_eq!(busy.demand(), Demand { entries: 96, bytes: 1_000 - 4 * LARGEST });
        drop(idle);
        drop(busy);
        assert_eq!(ask(&shared, 100).expect("room").demand().entries, 34, "a third");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_read_did_not_bring_is_free_again() {
        let shared = shared(1);
        let read = ask(&shared, 100);
        assert_eq!(read.as_ref().map(|read| read.demand().entries), Some(100));
        let freed = shared.freed();
        tokio::pin!(freed);
        assert!(futures_util::poll!(&mut freed).is_pending());
        shared.take(10);
        drop(read);
        freed.await;
        let rest = ask(&shared, 100).expect("room").demand();
        assert_eq!(rest, Demand { entries: 99, bytes: 990 });
        shared.give_back(10);
        assert_eq!(
            (shared.in_flight(), ask(&shared, 100).expect("room").demand().entries),
            (0, 100)
        );
    }

    #[test]
    fn a_task_is_here_once() {
        let shared = shared(1);
        let id = TaskId::new("t").expect("a valid id");
        let here = shared.enter(&id);
        assert!(here.is_some() && shared.enter(&id).is_none());
        drop(here);
        assert!(shared.enter(&id).is_some());
    }
}

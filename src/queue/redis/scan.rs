//! A scan of the pending list: how far it has come, and what it has in hand. No I/O.

use super::super::{CutShort, Demand, QueueError};
use super::parse::Found;
use crate::domain::{Delivery, EntryId, Origin, QueueName};

/// The beginning of the pending list; as the cursor of an answer, its end.
pub(super) const START: EntryId = EntryId { ms: 0, seq: 0 };

/// The way once round the list, from anywhere.
pub(super) struct Round {
    start: EntryId,
    /// Where to go on.
    cursor: EntryId,
    /// Whether it has begun from the front, and ends where it started.
    wrapped: bool,
    over: bool,
}

impl Round {
    pub(super) fn from(start: EntryId) -> Self {
        Self { start, cursor: start, wrapped: start == START, over: false }
    }

    pub(super) fn cursor(&self) -> EntryId {
        self.cursor
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Where to stop; `None` for the end of the list.
    pub(super) fn end(&self) -> Option<EntryId> {
        (self.wrapped && self.start != START).then_some(self.start)
    }

    /// Goes on at `next`; from the front where nothing is left, unless that is where it came from.
    pub(super) fn goes_on_at(&mut self, next: EntryId) {
        self.over = if next == START {
            std::mem::replace(&mut self.wrapped, true)
        } else {
            self.end().is_some_and(|end| next >= end)
        };
        self.cursor = next;
    }
}

/// What a call has in hand, and what it may still take.
pub(super) struct Taken<'a> {
    queue: &'a QueueName,
    left: Demand,
    deliveries: Vec<Delivery>,
}

impl<'a> Taken<'a> {
    pub(super) fn new(queue: &'a QueueName, demand: Demand) -> Self {
        Self { queue, left: demand, deliveries: Vec::new() }
    }

    /// What it may still take, if anything.
    pub(super) fn wants(&self) -> Option<Demand> {
        (self.left.entries > 0 && self.left.bytes > 0).then_some(self.left)
    }

    /// Takes the entries; answers the ids of those that the stream has lost.
    pub(super) fn add(&mut self, found: Vec<Found>) -> Vec<EntryId> {
        let mut lost = Vec::new();
        for Found { id, raw } in found {
            let Some(raw) = raw else {
                lost.push(id);
                continue;
            };
            self.left.entries = self.left.entries.saturating_sub(1);
            self.left.bytes = self.left.bytes.saturating_sub(raw.bytes());
            let queue = self.queue.clone();
            self.deliveries.push(Delivery { queue, entry: id, origin: Origin::Reclaimed, raw });
        }
        lost
    }

    /// The call has `ended`: what is in hand comes along.
    pub(super) fn answer(self, ended: Result<(), QueueError>) -> Result<Vec<Delivery>, CutShort> {
        CutShort::join(self.deliveries, ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    #[test]
    fn a_round_from_the_front_ends_with_the_list() {
        let mut round = Round::from(START);
        round.goes_on_at(at(7));
        assert_eq!((round.cursor(), round.end(), round.is_over()), (at(7), None, false));
        round.goes_on_at(START);
        assert!(round.is_over());
    }

    #[test]
    fn a_round_from_elsewhere_ends_where_it_began() {
        let mut round = Round::from(at(5));
        round.goes_on_at(at(9));
        assert!(!round.is_over() && round.end().is_none());
        round.goes_on_at(START);
        assert_eq!((round.cursor(), round.end(), round.is_over()), (START, Some(at(5)), false));
        round.goes_on_at(at(4));
        assert!(!round.is_over());
        round.goes_on_at(at(6));
        assert!(round.is_over());
        let mut round = Round::from(at(5));
        round.goes_on_at(START);
        round.goes_on_at(START);
        assert!(round.is_over(), "nothing is pending");
    }
}

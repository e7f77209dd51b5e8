//! What a call has in hand, and how much more it wants.

use super::super::Demand;
use crate::domain::{Delivery, EntryId, Origin, QueueName, RawEntry};

/// What a call has in hand, and what it may still take.
pub(super) struct Taken<'a> {
    queue: &'a QueueName,
    origin: Origin,
    left: Demand,
    pub(super) deliveries: Vec<Delivery>,
}

impl<'a> Taken<'a> {
    pub(super) const fn new(queue: &'a QueueName, origin: Origin, left: Demand) -> Self {
        Self { queue, origin, left, deliveries: Vec::new() }
    }

    pub(super) const fn wants_more(&self) -> bool {
        self.left.entries > 0 && self.left.bytes > 0
    }

    pub(super) fn add(&mut self, entry: EntryId, raw: RawEntry) {
        self.left.entries -= 1;
        self.left.bytes = self.left.bytes.saturating_sub(raw.bytes());
        let (queue, origin) = (self.queue.clone(), self.origin);
        self.deliveries.push(Delivery { queue, entry, origin, raw });
    }
}

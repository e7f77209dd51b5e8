//! The stream: acknowledgements, and who gives back what.

use std::time::Duration;

use queue_worker::domain::{Delivery, EntryId, Origin, PayloadHash, RawEntry, TaskId, WorkerId};
use queue_worker::ledger::Status;
use queue_worker::ledger::memory::Letter;
use queue_worker::queue::codec;

use super::super::world::MAX_PAYLOAD;
use super::{Checker, is_safe};

impl Checker {
    pub(crate) fn delivered(&mut self, worker: WorkerId, entry: EntryId, raw: &RawEntry) {
        if let Some((id, _)) = self.decode(entry, raw.clone()) {
            self.brought.entry((worker, id)).or_default().insert(entry);
        }
        // The first time counts, until the entry is given back: it may still be in hand.
        self.deliveries.entry((worker, entry)).or_insert(self.sequence);
        self.postponed.remove(&(worker, entry));
    }

    fn decode(&self, entry: EntryId, raw: RawEntry) -> Option<(TaskId, PayloadHash)> {
        let (queue, origin) = (self.queue.clone(), Origin::Fresh);
        let delivery = Delivery { queue, entry, origin, raw };
        codec::decode(&delivery, MAX_PAYLOAD).ok().map(|task| (task.id, task.hash))
    }

    /// An entry is about to be acknowledged and deleted.
    pub(crate) fn acks(&mut self, worker: WorkerId, entry: EntryId) {
        let Some(raw) = self.streams.entry(&self.queue, entry) else { return };
        let buried = self.tables.letters().iter().any(
            |letter| matches!(letter, Letter::Entry(queue, e, _) if *queue == self.queue && *e == entry),
        );
        let task = self.decode(entry, raw);
        let row = task.as_ref().and_then(|(id, _)| self.tables.row(id));
        let safe = match (&task, &row) {
            (Some((id, hash)), Some(row)) if row.hash == *hash => {
                let since = self.deliveries.get(&(worker, entry)).copied().unwrap_or(u64::MAX);
                is_safe(row) || self.safe.get(id).is_some_and(|at| *at >= since)
            }
            _ => buried,
        };
        if !safe {
            self.violate(&format!(
                "3: {entry} of {task:?} is acknowledged while its row is {row:?}"
            ));
        }
    }

    /// A worker leaves an entry for a while, since another one is at its task.
    pub(crate) fn postpones(&mut self, worker: WorkerId, entry: EntryId) {
        self.postponed.insert((worker, entry));
        self.deliveries.remove(&(worker, entry));
    }

    pub(crate) fn pending(&self, entry: EntryId) -> Option<(WorkerId, Duration)> {
        let pending = self.streams.pending(&self.queue);
        pending.iter().find(|(id, ..)| *id == entry).map(|(_, owner, idle)| (*owner, *idle))
    }

    /// An entry is about to be handed over; answers who has it.
    pub(crate) fn hands_over(
        &mut self,
        worker: WorkerId,
        entry: EntryId,
        raw: &RawEntry,
    ) -> Option<(WorkerId, Duration)> {
        if let Some((id, hash)) = self.decode(entry, raw.clone())
            && let Some(row) = self.tables.row(&id)
        {
            let known = self.leases.get(&(worker, id.clone())).map(|(fence, _)| *fence);
            let ours = row.status == Status::Running && row.worker == Some(worker);
            // Of several that are in hand it may be another that is run.
            let brought = self.brought.get(&(worker, id.clone())).is_some_and(|entries| {
                let in_hand = |other: &EntryId| self.deliveries.contains_key(&(worker, *other));
                entries.contains(&entry) && entries.iter().filter(|e| in_hand(e)).eq([&entry])
            });
            if ours && brought && row.hash == hash && known == Some(row.fence) {
                self.violate(&format!("3: {id} is handed over while it runs under our claim"));
            }
        }
        self.pending(entry)
    }

    /// An entry was given back by a worker that may have lost it before.
    pub(crate) fn gave_back(
        &mut self,
        worker: WorkerId,
        entry: EntryId,
        before: Option<(WorkerId, Duration)>,
    ) {
        if let Some((owner, _)) = before
            && owner != worker
            && self.pending(entry) != before
        {
            self.violate(&format!("2: {entry} of {owner} was given back by {worker}"));
        }
        self.deliveries.remove(&(worker, entry));
    }
}

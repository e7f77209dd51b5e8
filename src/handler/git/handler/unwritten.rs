//! What is analysed and not yet written, bounded by what it weighs.
//!
//! A commit may hold a hundred thousand changes, and Postgres may be slower than git. So each analysis
//! takes room before it goes on to the writer, and gives it back when it is written; the room is one
//! for all tasks of a handler. Before that there is one analysis in each step of the way.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::handler::git::engine::Analysed;
use crate::handler::git::outcome::Outcome;

/// Bytes of what waits to be written, of all tasks of a handler.
const MOST: usize = 64 * 1024 * 1024;
/// Bytes that one permit stands for.
const UNIT: usize = 1024;
/// Commits of one transaction.
const GROUP: usize = 64;
/// Bytes of one transaction, unless a single commit has more.
const HEAVY: usize = 4 * 1024 * 1024;
/// What is there waits so long for more.
const GATHER: Duration = Duration::from_millis(50);

/// The room for what waits to be written.
#[derive(Debug, Clone)]
pub(super) struct Room {
    free: Arc<Semaphore>,
    bytes: usize,
}

/// An analysis with the room that it takes.
#[derive(Debug)]
pub(super) struct Weighed {
    pub(super) analysed: Analysed,
    weight: usize,
    _room: OwnedSemaphorePermit,
}

impl Room {
    /// All of it is free.
    pub(super) fn new() -> Self {
        Self::of(MOST)
    }

    fn of(bytes: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes / UNIT)), bytes }
    }

    /// Passes on what comes, as soon as there is room for it. Ends when no more comes, or when nobody
    /// takes it.
    pub(super) async fn pass_on(
        &self,
        mut from: mpsc::Receiver<Analysed>,
        to: mpsc::Sender<Weighed>,
    ) {
        while let Some(analysed) = from.recv().await {
            let weight = weight(&analysed);
            // Who needs more than there is gets all of it.
            let units = (weight.min(self.bytes) / UNIT).try_into().unwrap_or(u32::MAX);
            let room = tokio::select! {
                biased;
                () = to.closed() => return,
                room = Arc::clone(&self.free).acquire_many_owned(units) => room,
            };
            // It is never closed.
            let Ok(room) = room else { return };
            if to.send(Weighed { analysed, weight, _room: room }).await.is_err() {
                return;
            }
        }
    }
}

fn weight(analysed: &Analysed) -> usize {
    let held = match &analysed.outcome {
        Outcome::Analysed(analysis) => analysis.weight(),
        Outcome::Refused { detail, .. } | Outcome::Failed { detail } => detail.len(),
    };
    size_of_val(analysed) + held
}

/// What comes, in groups for a transaction each.
pub(super) struct Groups {
    from: mpsc::Receiver<Weighed>,
    next: Option<Weighed>,
}

impl Groups {
    /// A way for analyses, and the groups at its end.
    pub(super) fn channel() -> (mpsc::Sender<Weighed>, Self) {
        let (sender, from) = mpsc::channel(GROUP);
        (sender, Self { from, next: None })
    }

    /// The next group, never an empty one; `None` when no more comes.
    pub(super) async fn next(&mut self) -> Option<Vec<Weighed>> {
        let first = match self.next.take() {
            Some(first) => first,
            None => self.from.recv().await?,
        };
        let until = Instant::now() + GATHER;
        let mut weight = first.weight;
        let mut group = vec![first];
        while group.len() < GROUP && weight < HEAVY {
            match timeout_at(until, self.from.recv()).await {
                Ok(Some(one)) if weight + one.weight > HEAVY => {
                    self.next = Some(one);
                    break;
                }
                Ok(Some(one)) => {
                    weight += one.weight;
                    group.push(one);
                }
                Ok(None) | Err(_) => break,
            }
        }
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn analysed(weight: usize) -> Analysed {
        let id = "4b825dc642cb6eb9a060e54bf8d69288fbee4904".parse().unwrap();
        let outcome = Outcome::Failed { detail: "x".repeat(weight) };
        Analysed { id, outcome, took: Duration::ZERO }
    }

    /// A way through a room, and what waits at its end.
    fn way(room: &Room) -> (mpsc::Sender<Analysed>, Groups, impl Future<Output = ()>) {
        let (sender, from) = mpsc::channel(1);
        let (to, groups) = Groups::channel();
        let room = room.clone();
        (sender, groups, async move { room.pass_on(from, to).await })
    }

    async fn weights(groups: &mut Groups) -> Option<Vec<usize>> {
        let group = groups.next().await?;
        Some(group.iter().map(|one| one.weight / (MIB / 2)).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn a_heavy_commit_has_a_transaction_of_its_own() {
        let room = Room::new();
        let (sender, mut groups, passing) = way(&room);
        let sending = async {
            for weight in [MIB, MIB, 3 * MIB, 10 * MIB, MIB / 2, 80 * MIB, 10] {
                sender.send(analysed(weight)).await.unwrap();
            }
            drop(sender);
        };
        let reading = async {
            let mut found = Vec::new();
            while let Some(group) = weights(&mut groups).await {
                found.push(group);
            }
            found
        };
        let ((), (), found) = tokio::join!(sending, passing, reading);
        assert_eq!(found, [vec![2, 2], vec![6], vec![20], vec![1], vec![160], vec![0]]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_waits_than_there_is_room_for() {
        let room = Room::of(8 * MIB);
        let (sender, mut groups, passing) = way(&room);
        let sent = std::cell::Cell::new(0);
        let sending = async {
            for _ in 0..20 {
                sender.send(analysed(2 * MIB)).await.unwrap();
                sent.set(sent.get() + 1);
            }
            drop(sender);
        };
        let reading = async {
            // Nobody writes anything: all that can happen has happened by then.
            tokio::time::sleep(Duration::from_secs(1)).await;
            // Four in the room; one before it, and one before that.
            assert_eq!(sent.get(), 6);
            let mut count = 0;
            while let Some(group) = groups.next().await {
                count += group.len();
            }
            count
        };
        let ((), (), count) = tokio::join!(sending, passing, reading);
        assert_eq!((count, room.free.available_permits()), (20, 8 * MIB / UNIT));
    }

    /// A writer that gives up holds no room, and nobody waits for it.
    #[tokio::test(start_paused = true)]
    async fn who_gives_up_gives_back() {
        let room = Room::of(2 * MIB);
        let (sender, groups, passing) = way(&room);
        let sending = async { while sender.send(analysed(MIB / 2)).await.is_ok() {} };
        let giving_up = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(groups);
        };
        tokio::join!(sending, passing, giving_up);
        assert_eq!(room.free.available_permits(), 2 * MIB / UNIT);
    }
}

//! Counts what commits changed, with a child of its own.
//!
//! What a child did not answer goes to the next one: the group that it was working on one by one, so
//! that it is known which commit was the cause, and only that one goes down the ladder.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::time::Instant;

use super::differ::{Depth, Differ, Request};
use super::ladder::{Counted, Trouble, answer, descend};
use super::spawner::Spawner;
use crate::handler::git::mirror::Mirror;
use crate::handler::git::parse::changes::RawChange;
use crate::handler::git::parse::commit::CommitObject;

/// Commits that are asked about as a group.
pub(super) const GROUP: usize = 16;
/// Groups under way in one child: together they fit into a pipe.
const GROUPS: usize = 2;
/// Bytes that the changes of counted commits have together; one that is larger waits for all others.
pub(super) const ROOM: u32 = 32 * 1024 * 1024;

/// A commit whose header is known.
pub(super) struct Pending {
    pub(super) request: Request,
    pub(super) object: CommitObject,
}

/// A commit whose changes are known.
pub(super) struct Ready<'a> {
    pub(super) pending: Pending,
    pub(super) counted: Counted,
    pub(super) took: Duration,
    /// Its part of [`ROOM`].
    pub(super) _room: SemaphorePermit<'a>,
}

/// Asks for the changes of all, in their order, and passes on what is known.
pub(super) async fn count<'a>(
    child: &mut Option<Differ>,
    mut pending: mpsc::Receiver<Pending>,
    spawner: &Spawner,
    mirror: &Mirror,
    room: &'a Semaphore,
    ready: mpsc::Sender<Ready<'a>>,
) {
    // Those that the next child is asked about, in front of all others.
    let mut next: VecDeque<Vec<Pending>> = VecDeque::new();
    let mut asked: VecDeque<Vec<Pending>> = VecDeque::with_capacity(GROUPS);
    let mut started = Instant::now();
    loop {
        if asked.is_empty() && next.is_empty() {
            let mut group = Vec::with_capacity(GROUP);
            if pending.recv_many(&mut group, GROUP).await == 0 {
                return;
            }
            next.push_back(group);
            started = Instant::now();
        }
        let result = match take_differ(child, spawner, mirror) {
            Ok(mut differ) => {
                while asked.len() < GROUPS
                    && let Some(group) = next.pop_front().or_else(|| waiting(&mut pending))
                {
                    // A child that took no request has ended, and says so now.
                    let _ = differ.ask(requests(&group)).await;
                    asked.push_back(group);
                }
                let Some(oldest) = asked.front() else { return };
                answer(differ, requests(oldest), spawner).await
            }
            Err(trouble) => {
                asked.extend(next.pop_front());
                Err(trouble)
            }
        };
        let Some(mut oldest) = asked.pop_front() else { return };
        let counted = match result {
            Ok((differ, changes)) => {
                *child = Some(differ);
                changes.into_iter().map(|changes| Ok((changes, Depth::Full))).collect()
            }
            Err(trouble) => {
                // These are as good as before, and the child is gone that had them.
                asked.drain(..).rev().for_each(|group| next.push_front(group));
                if oldest.len() > 1 {
                    // Any of them may be the cause.
                    oldest.into_iter().rev().for_each(|one| next.push_front(vec![one]));
                    continue;
                }
                vec![descend(trouble, &oldest[0].request, spawner, mirror).await]
            }
        };
        let took = started.elapsed() / u32::try_from(oldest.len()).unwrap_or(u32::MAX);
        started = Instant::now();
        for (pending, counted) in oldest.drain(..).zip(counted) {
            let Ok(room) = room.acquire_many(size(&counted)).await else { return };
            if ready.send(Ready { pending, counted, took, _room: room }).await.is_err() {
                return;
            }
        }
    }
}

/// Bytes of what is known, as far as they matter.
fn size(counted: &Counted) -> u32 {
    let Ok((changes, _)) = counted else { return 0 };
    let names = |it: &RawChange| it.path.len() + it.old_path.as_ref().map_or(0, Vec::len);
    let bytes = changes.iter().map(|it| size_of::<RawChange>() + names(it)).sum::<usize>();
    u32::try_from(bytes).unwrap_or(u32::MAX).min(ROOM)
}

fn requests(group: &[Pending]) -> impl ExactSizeIterator<Item = &Request> {
    group.iter().map(|pending| &pending.request)
}

/// A group of those that wait, if there are any.
fn waiting(pending: &mut mpsc::Receiver<Pending>) -> Option<Vec<Pending>> {
    let group: Vec<Pending> = std::iter::from_fn(|| pending.try_recv().ok()).take(GROUP).collect();
    (!group.is_empty()).then_some(group)
}

fn take_differ(
    child: &mut Option<Differ>,
    spawner: &Spawner,
    mirror: &Mirror,
) -> Result<Differ, Trouble> {
    match child.take() {
        Some(differ) => Ok(differ),
        None => spawner
            .differ(mirror, Depth::Full)
            .map_err(|error| Trouble::Other(format!("git could not be started: {error}"))),
    }
}

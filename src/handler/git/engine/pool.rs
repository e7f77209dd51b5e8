//! Children that wait for more of the same mirror.
//!
//! A pair belongs to one state of one mirror: after a fetch, a repack or a new clone it is not used
//! again. It holds no lock while it waits, and is not looked at before somebody wants it.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::differ::Differ;
use super::objects::Objects;
use crate::handler::exec::procfs::peak_memory;
use crate::handler::git::mirror::Mirror;

/// Answers after which a child is replaced, since it keeps something of every object that it saw.
const ENOUGH_COMMITS: usize = 4096;
const ENOUGH_OBJECTS: usize = 500_000;

/// Which state of which mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    git_dir: PathBuf,
    generation: String,
    packs_changed: Option<SystemTime>,
}

impl Key {
    /// The state of a mirror that is locked now.
    pub(super) fn of(mirror: &Mirror) -> Self {
        let packs = mirror.git_dir().join("objects/pack");
        let packs_changed = packs.metadata().and_then(|packs| packs.modified()).ok();
        let git_dir = mirror.git_dir().to_owned();
        Self { git_dir, generation: mirror.generation().to_owned(), packs_changed }
    }
}

/// The children for one mirror, as far as they were needed.
#[derive(Default)]
pub(super) struct Pair {
    pub(super) objects: Option<Objects>,
    pub(super) differ: Option<Differ>,
    pub(super) merges: Option<Differ>,
}

impl Pair {
    pub(super) async fn close(self) {
        if let Some(objects) = self.objects {
            objects.child.close().await;
        }
        for differ in [self.differ, self.merges].into_iter().flatten() {
            differ.child.close().await;
        }
    }
}

/// The waiting pairs, those used last in front.
#[derive(Default)]
pub(super) struct Pool {
    pairs: Mutex<VecDeque<(Key, Pair)>>,
    peak: std::sync::atomic::AtomicU64,
}

impl Pool {
    fn pairs(&self) -> MutexGuard<'_, VecDeque<(Key, Pair)>> {
        // Every change is complete in itself.
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most memory that a child had resident when its batch was done, in bytes.
    pub(super) fn peak(&self) -> u64 {
        self.peak.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// A pair for this state, taken out; pairs for older states of the mirror are closed.
    pub(super) async fn take(&self, key: &Key) -> Pair {
        let mut found = None;
        let mut stale = Vec::new();
        {
            let mut pairs = self.pairs();
            for (other, pair) in std::mem::take(&mut *pairs) {
                if other == *key && found.is_none() {
                    found = Some(pair);
                } else if other.git_dir == key.git_dir && other != *key {
                    stale.push(pair);
                } else {
                    pairs.push_back((other, pair));
                }
            }
        }
        for pair in stale {
            pair.close().await;
        }
        found.unwrap_or_default()
    }

    /// Keeps a pair, unless it has done enough, and closes those used longest ago beyond `most`.
    pub(super) async fn put(&self, key: Key, mut pair: Pair, most: usize) {
        let differs = [&pair.differ, &pair.merges].into_iter().flatten().map(|it| &it.child);
        let children = differs.chain(pair.objects.as_ref().map(|it| &it.child));
        let peak = children.filter_map(|child| peak_memory(child.pid())).max().unwrap_or(0);
        self.peak.fetch_max(peak, std::sync::atomic::Ordering::Relaxed);
        let mut done = Vec::new();
        let used_up = Pair {
            objects: pair.objects.take_if(|objects| objects.child.served() > ENOUGH_OBJECTS),
            differ: pair.differ.take_if(|differ| differ.child.served() > ENOUGH_COMMITS),
            merges: pair.merges.take_if(|differ| differ.child.served() > ENOUGH_COMMITS),
        };
        done.push(used_up);
        {
            let mut pairs = self.pairs();
            pairs.push_front((key, pair));
            while pairs.len() > most {
                done.extend(pairs.pop_back().map(|(_, pair)| pair));
            }
        }
        for pair in done {
            pair.close().await;
        }
    }

    /// Closes all of them.
    pub(super) async fn clear(&self) {
        let pairs = std::mem::take(&mut *self.pairs());
        for (_, pair) in pairs {
            pair.close().await;
        }
    }
}

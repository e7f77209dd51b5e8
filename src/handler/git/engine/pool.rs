//! Children that wait for more of the same mirror.
//!
//! A pair belongs to one state of one mirror: after a fetch, a repack or a new clone it is not used
//! again. It holds no lock while it waits, but the packs of its mirror are open in it, and the disk gets
//! nothing back of a mirror that was evicted before they are closed: so no pair waits for long. Whoever
//! closes them sleeps until the oldest is due, and ends with the pool.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::differ::Differ;
use super::objects::Objects;
use crate::handler::exec::procfs::peak_memory;
use crate::handler::git::mirror::Mirror;

/// Answers after which a child is replaced, since it keeps something of every object that it saw.
const ENOUGH_COMMITS: usize = 4096;
const ENOUGH_OBJECTS: usize = 500_000;
/// A pair that nobody wanted for so long is closed. Batches of a mirror that is worked on follow each
/// other faster than that.
const IDLE_TIME: Duration = Duration::from_secs(5);

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

/// A pair and since when it waits.
struct Idle {
    key: Key,
    pair: Pair,
    since: Instant,
}

/// The waiting pairs, those used last in front.
#[derive(Default)]
struct Waiting {
    pairs: Mutex<VecDeque<Idle>>,
    /// There is one more.
    more: Notify,
}

impl Waiting {
    fn pairs(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        // Every change is complete in itself.
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes each pair when its time is over.
    async fn close_old(self: Arc<Self>) {
        loop {
            let due = self.pairs().back().map(|oldest| oldest.since + IDLE_TIME);
            let Some(due) = due else {
                self.more.notified().await;
                continue;
            };
            sleep_until(due).await;
            let old: Vec<Idle> = {
                let (mut pairs, now) = (self.pairs(), Instant::now());
                let first = pairs.iter().position(|idle| idle.since + IDLE_TIME <= now);
                let first = first.unwrap_or(pairs.len());
                pairs.drain(first..).collect()
            };
            for idle in old {
                idle.pair.close().await;
            }
        }
    }
}

/// The pool of an engine.
#[derive(Default)]
pub(super) struct Pool {
    waiting: Arc<Waiting>,
    /// Closes old pairs, if there ever was one.
    closer: Mutex<JoinSet<()>>,
    peak: std::sync::atomic::AtomicU64,
}

impl Pool {
    /// The most memory that a child had resident when its batch was done, in bytes.
    pub(super) fn peak(&self) -> u64 {
        self.peak.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// A pair for this state, taken out; pairs for older states of the mirror, and for mirrors that are
    /// gone, are closed.
    pub(super) async fn take(&self, key: &Key) -> Pair {
        let mut found = None;
        let mut stale = Vec::new();
        {
            let mut pairs = self.waiting.pairs();
            for idle in std::mem::take(&mut *pairs) {
                if idle.key == *key && found.is_none() {
                    found = Some(idle.pair);
                } else if idle.key != *key
                    && (idle.key.git_dir == key.git_dir || !idle.key.git_dir.exists())
                {
                    stale.push(idle.pair);
                } else {
                    pairs.push_back(idle);
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
            let mut pairs = self.waiting.pairs();
            pairs.push_front(Idle { key, pair, since: Instant::now() });
            while pairs.len() > most {
                done.extend(pairs.pop_back().map(|idle| idle.pair));
            }
        }
        self.watch();
        for pair in done {
            pair.close().await;
        }
    }

    /// Has old pairs closed.
    fn watch(&self) {
        let mut closer = self.closer.lock().unwrap_or_else(PoisonError::into_inner);
        // It ends only with the runtime that it was on.
        while closer.try_join_next().is_some() {}
        if closer.is_empty() {
            closer.spawn(Arc::clone(&self.waiting).close_old());
        }
        self.waiting.more.notify_one();
    }

    /// Closes all of them.
    pub(super) async fn clear(&self) {
        let pairs = std::mem::take(&mut *self.waiting.pairs());
        for idle in pairs {
            idle.pair.close().await;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Who closes old pairs has hold of them until its runtime lets go of it.
        self.waiting.pairs().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(git_dir: &std::path::Path) -> Key {
        Key { git_dir: git_dir.to_owned(), generation: String::new(), packs_changed: None }
    }

    #[tokio::test(start_paused = true)]
    async fn no_pair_waits_for_long() {
        let folder = tempfile::tempdir().unwrap();
        let pool = Pool::default();
        let waiting = || pool.waiting.pairs().len();
        pool.put(key(folder.path()), Pair::default(), 8).await;
        tokio::time::sleep(IDLE_TIME / 2).await;
        pool.put(key(&folder.path().join("x")), Pair::default(), 8).await;
        assert_eq!(waiting(), 2);
        tokio::time::sleep(IDLE_TIME * 3 / 4).await;
        assert_eq!(waiting(), 1, "the younger one");
        tokio::time::sleep(IDLE_TIME).await;
        assert_eq!(waiting(), 0);
        // And so on.
        pool.put(key(folder.path()), Pair::default(), 8).await;
        tokio::time::sleep(IDLE_TIME * 2).await;
        assert_eq!(waiting(), 0);
        pool.put(key(folder.path()), Pair::default(), 8).await;
        let waiting = Arc::clone(&pool.waiting);
        drop(pool);
        assert!(waiting.pairs().is_empty(), "a pair has outlived the pool");
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&waiting), 1, "who closes them has outlived the pool");
    }

    #[tokio::test]
    async fn pairs_of_mirrors_that_are_gone_are_closed() {
        let folder = tempfile::tempdir().unwrap();
        let pool = Pool::default();
        for name in ["a", "b"] {
            let git_dir = folder.path().join(name);
            std::fs::create_dir(&git_dir).unwrap();
            pool.put(key(&git_dir), Pair::default(), 8).await;
        }
        std::fs::remove_dir(folder.path().join("a")).unwrap();
        pool.take(&key(&folder.path().join("c"))).await;
        let left: Vec<PathBuf> =
            pool.waiting.pairs().iter().map(|idle| idle.key.git_dir.clone()).collect();
        assert_eq!(left, [folder.path().join("b")]);
    }
}

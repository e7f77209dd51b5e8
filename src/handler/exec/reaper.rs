//! Which processes belong to a run, and the end of those whose run is over.
//!
//! A daemon that called [`become_reaper`] inherits every orphan among its descendants, so that
//! nothing escapes by a double fork; the run's id in an orphan's environment tells whose it was.
//! There is one table per process, since the children of a process are. It waits only for orphans:
//! a child that somebody in this process spawned and will wait for is left alone.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, kill_process_group,
    set_child_subreaper, set_dumpable_behavior, waitid,
};
use tokio::process::Child;
use tokio::time::Instant;
use uuid::Uuid;

use super::descent::members;
use super::procfs::{self, Process};
use crate::clock::{BootInstant, Clock};

/// The unit of start times in `/proc`: USER_HZ is 100 on every architecture that Rust runs on.
const MS_PER_TICK: u128 = 10;
/// A zombie that could be somebody's child to wait for is left to them for so long.
const ZOMBIE_PATIENCE: Duration = Duration::from_secs(60);
/// The end of a run looks at orphans that it does not know at most this often.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

static TABLE: LazyLock<Reaper> = LazyLock::new(|| Reaper {
    tag: Uuid::new_v4().as_u64_pair().0,
    next: AtomicU64::new(1),
    state: Mutex::default(),
});

/// Makes this process inherit the orphans among its descendants, and hides its memory and
/// environment from other processes of the same user (prctl(2): PR_SET_CHILD_SUBREAPER,
/// PR_SET_DUMPABLE). Called once, early; afterwards [`sweep`] must be called every second or so.
pub fn become_reaper() -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// What a [`sweep`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Orphans of runs that are over, killed now.
    pub killed: usize,
    /// Ended orphans whose exit status was taken from the kernel.
    pub reaped: usize,
}

/// Kills the orphans of runs that are over and reaps those that have ended. Cheap when there are
/// none: it reads one file of `/proc`.
pub fn sweep() -> Swept {
    TABLE.sweep()
}

pub(super) fn table() -> &'static Reaper {
    &TABLE
}

/// What is to be done about an adopted process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Not ours to touch, or part of a live run.
    Leave,
    /// Its run is over.
    Kill,
    /// It has ended, and nobody else will wait for it.
    Reap,
    /// It has ended, but somebody in this process might wait for it.
    ReapLater,
}

/// A run that has not ended.
#[derive(Debug, Clone, Copy)]
struct LiveRun {
    leader: Option<Pid>,
    /// It may have started others, so that an orphan may be one of them.
    may_fork: bool,
    /// In clock ticks since boot, not later than the leader's own start.
    started: u64,
}

#[derive(Default)]
struct State {
    runs: HashMap<Uuid, LiveRun>,
    /// Children that tokio waits for.
    leaders: HashSet<Pid>,
    /// Killed leaders whose run was dropped: they still need somebody to wait for them.
    abandoned: Vec<Child>,
    /// When a zombie that is not surely an orphan was first seen.
    zombies: HashMap<(Pid, u64), Instant>,
    first_started: Option<u64>,
    last_look: Option<Instant>,
}

/// The table of live runs.
pub(super) struct Reaper {
    /// The upper half of every run id of this process.
    tag: u64,
    next: AtomicU64,
    state: Mutex<State>,
}

impl Reaper {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete in itself: a panic elsewhere leaves it usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a run before its leader exists; the id is a UUID of version 8.
    pub(super) fn begin(&self, may_fork: bool) -> Uuid {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let bytes = Uuid::from_u64_pair(self.tag, number).into_bytes();
        let id = uuid::Builder::from_custom_bytes(bytes).into_uuid();
        let now = Clock::System.now().saturating_since(BootInstant::from_boot(Duration::ZERO));
        let started = u64::try_from(now.as_millis() / MS_PER_TICK).unwrap_or(u64::MAX);
        let mut state = self.state();
        state.first_started.get_or_insert(started);
        state.runs.insert(id, LiveRun { leader: None, may_fork, started });
        id
    }

    /// The run's leader exists.
    pub(super) fn lead(&self, run: Uuid, leader: Pid) {
        let mut state = self.state();
        state.leaders.insert(leader);
        if let Some(live) = state.runs.get_mut(&run) {
            live.leader = Some(leader);
        }
    }

    /// The run's leader has been waited for; its id may be another process's soon.
    pub(super) fn reaped(&self, run: Uuid) {
        let mut state = self.state();
        if let Some(leader) = state.runs.get_mut(&run).and_then(|live| live.leader.take()) {
            state.leaders.remove(&leader);
        }
    }

    /// The run is over, and its leader has been waited for, if there was one: whatever is left of
    /// it may be killed.
    pub(super) fn end(&self, run: Uuid) {
        self.state().runs.remove(&run);
    }

    /// The run is over, and its leader was killed but has not been waited for.
    pub(super) fn abandon(&self, run: Uuid, leader: Child) {
        let mut state = self.state();
        state.runs.remove(&run);
        state.abandoned.push(leader);
    }

    fn is_own_marker(&self, run: Uuid) -> bool {
        // The version and variant bits lie over the tag's lowest four bits and the number's highest.
        run.as_u64_pair().0 >> 16 == self.tag >> 16
    }

    /// Whether there are orphans of runs that are over, killing those that were found. For the end
    /// of each run: one read of a small file when there are none.
    pub(super) fn look(&self) -> bool {
        let Some(adopted) = procfs::adopted() else { return false };
        let mut state = self.state();
        if adopted.iter().all(|pid| state.leaders.contains(pid)) {
            return false;
        }
        let now = Instant::now();
        if state.last_look.is_some_and(|last| now - last < LOOK_PAUSE) {
            return false;
        }
        state.last_look = Some(now);
        self.examine(&mut state, &adopted).killed > 0
    }

    fn sweep(&self) -> Swept {
        let adopted = procfs::adopted().unwrap_or_else(|| {
            let own = getpid().as_raw_pid();
            Process::all().iter().filter(|p| p.parent == own).map(|p| p.pid).collect()
        });
        let mut state = self.state();
        let mut settled = Vec::new();
        state.abandoned.retain_mut(|child| match (child.id(), child.try_wait()) {
            (_, Ok(None)) => true,
            (id, _) => {
                settled.extend(id.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
                false
            }
        });
        for leader in settled {
            state.leaders.remove(&leader);
        }
        self.examine(&mut state, &adopted)
    }

    fn examine(&self, state: &mut State, adopted: &[Pid]) -> Swept {
        let mut swept = Swept::default();
        let Some(own) = Process::read(getpid()) else { return swept };
        let now = Instant::now();
        let mut zombies = HashMap::new();
        for process in adopted.iter().filter(|pid| !state.leaders.contains(pid)) {
            let Some(process) =
                Process::read(*process).filter(|p| p.parent == own.pid.as_raw_pid())
            else {
                continue;
            };
            match self.fate(state, &own, &process, process.run_marker()) {
                Fate::Leave => {}
                Fate::Kill => swept.killed += usize::from(kill(process.pid)),
                Fate::Reap => swept.reaped += usize::from(reap(process.pid)),
                Fate::ReapLater => {
                    let key = (process.pid, process.started);
                    let since = state.zombies.get(&key).copied().unwrap_or(now);
                    if now - since >= ZOMBIE_PATIENCE {
                        swept.reaped += usize::from(reap(process.pid));
                    } else {
                        zombies.insert(key, since);
                    }
                }
            }
        }
        state.zombies = zombies;
        swept
    }

    fn fate(&self, state: &State, own: &Process, it: &Process, marker: Option<Uuid>) -> Fate {
        // A direct child has our session, and our group or one of its own. (One that was given
        // another session before exec could only be told by its marker.)
        let orphan =
            it.session != own.session || (it.group != own.group && it.group != it.pid.as_raw_pid());
        if it.zombie {
            return if orphan { Fate::Reap } else { Fate::ReapLater };
        }
        if let Some(run) = marker.filter(|run| self.is_own_marker(*run)) {
            return if state.runs.contains_key(&run) { Fate::Leave } else { Fate::Kill };
        }
        let may_belong_to_live =
            state.runs.values().any(|run| run.may_fork && run.started <= it.started);
        let older_than_all = state.first_started.is_none_or(|first| it.started < first);
        if orphan && !may_belong_to_live && !older_than_all { Fate::Kill } else { Fate::Leave }
    }

    /// Sends SIGKILL to all members of a run once, and reaps what has ended. Returns how many were
    /// alive; they may have forked meanwhile, so the caller comes back until there are none.
    pub(super) fn kill_members(&self, run: Uuid, leader: Pid, known: &[Process]) -> usize {
        let _ = kill_process_group(leader, Signal::KILL);
        let members = members(run, leader, known);
        let own = getpid().as_raw_pid();
        for process in &members {
            // Also those that look dead: only their first thread may have ended.
            kill(process.pid);
            let waited_for = process.pid == leader || self.state().leaders.contains(&process.pid);
            if process.zombie && process.parent == own && !waited_for {
                reap(process.pid);
            }
        }
        members.iter().filter(|process| !process.zombie).count()
    }
}

fn kill(pid: Pid) -> bool {
    kill_process(pid, Signal::KILL).is_ok()
}

fn reap(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: (i32, i32, i32) = (100, 100, 50);

    fn process(pid: i32, group: i32, session: i32, started: u64) -> Process {
        let pid = Pid::from_raw(pid).unwrap();
        Process { pid, parent: OWN.0, group, session, started, zombie: false }
    }

    fn reaper() -> Reaper {
        Reaper { tag: 0xabcd_ef01_2345_6789, next: AtomicU64::new(1), state: Mutex::default() }
    }

    fn fate(reaper: &Reaper, it: &Process, marker: Option<Uuid>) -> Fate {
        reaper.fate(&reaper.state(), &process(OWN.0, OWN.1, OWN.2, 1), it, marker)
    }

    #[test]
    fn marked_orphans_live_as_long_as_their_run() {
        let reaper = reaper();
        let run = reaper.begin(true);
        assert!(reaper.is_own_marker(run));
        assert!(!reaper.is_own_marker(Uuid::new_v4()));
        let it = process(7, 7, 7, u64::MAX);
        assert_eq!(fate(&reaper, &it, Some(run)), Fate::Leave);
        reaper.end(run);
        assert_eq!(fate(&reaper, &it, Some(run)), Fate::Kill);
    }

    #[test]
    fn unmarked_orphans_wait_for_the_runs_that_may_own_them() {
        let reaper = reaper();
        let it = process(7, 7, 7, u64::MAX);
        assert_eq!(fate(&reaper, &it, None), Fate::Leave, "no run was ever started");
        let run = reaper.begin(true);
        assert_eq!(fate(&reaper, &it, None), Fate::Leave);
        reaper.end(run);
        reaper.begin(false);
        assert_eq!(fate(&reaper, &it, None), Fate::Kill);
        assert_eq!(fate(&reaper, &process(7, 7, 7, 0), None), Fate::Leave, "older than all runs");
    }

    #[test]
    fn children_of_others_in_this_process_are_left_alone() {
        let reaper = reaper();
        let run = reaper.begin(true);
        reaper.end(run);
        for group in [OWN.1, 7] {
            let mut it = process(7, group, OWN.2, u64::MAX);
            assert_eq!(fate(&reaper, &it, Some(Uuid::new_v4())), Fate::Leave);
            it.zombie = true;
            assert_eq!(fate(&reaper, &it, None), Fate::ReapLater);
        }
        let mut it = process(7, 9, OWN.2, 0);
        it.zombie = true;
        assert_eq!(fate(&reaper, &it, None), Fate::Reap, "it lies in the group of a dead leader");
    }
}

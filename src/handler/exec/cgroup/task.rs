//! One run's cgroup: made with its limits, killed as a whole, removed when nobody is left in it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Pid;
use uuid::Uuid;

use super::events::Evidence;
use super::limits::{Controller, Limits};
use super::tree::Cgroups;

/// What was killed has left its cgroup within milliseconds; a sweep removes what takes longer.
const REMOVAL_ATTEMPTS: u32 = 20;
/// Between two attempts.
const REMOVAL_PAUSE: Duration = Duration::from_millis(5);
/// Cgroups that a task made inside its own are removed down to this depth.
const MAX_DEPTH: u32 = 16;
/// And of each, so many entries are looked at; some fifty are the kernel's own.
const MAX_ENTRIES: usize = 1_000;

/// The cgroup of one run; on a drop it is killed, and removed by a later sweep.
#[derive(Debug)]
pub(crate) struct TaskGroup {
    dir: PathBuf,
    cgroups: Arc<Cgroups>,
    /// Until it was removed.
    exists: bool,
}

impl TaskGroup {
    /// Makes it, with those limits that can be enforced here.
    pub(crate) fn make(cgroups: &Arc<Cgroups>, run: Uuid, limits: &Limits) -> io::Result<Self> {
        let dir = cgroups.tasks().join(format!("task-{run}"));
        fs::create_dir(&dir)?;
        let group = Self { dir, cgroups: Arc::clone(cgroups), exists: true };
        group.limit(limits)?;
        Ok(group)
    }

    fn limit(&self, limits: &Limits) -> io::Result<()> {
        let has = |controller| self.cgroups.controllers().contains(&controller);
        if has(Controller::Memory) {
            // Killed as a whole also when the unit or the machine runs out: half a task is none.
            self.set("memory.oom.group", 1)?;
            if let Some(bytes) = limits.memory_max {
                self.set("memory.max", bytes)?;
                // The file is missing where the kernel does not account for swap.
                let _ = self.set("memory.swap.max", 0);
            }
        }
        if let Some(count) = limits.pids_max.filter(|_| has(Controller::Pids)) {
            self.set("pids.max", count.into())?;
        }
        if let Some(weight) = limits.cpu_weight.filter(|_| has(Controller::Cpu)) {
            self.set("cpu.weight", weight.into())?;
        }
        Ok(())
    }

    fn set(&self, name: &str, value: u64) -> io::Result<()> {
        fs::write(self.dir.join(name), value.to_string())
            .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
    }

    /// Whoever writes a `0` to this moves itself inside.
    pub(crate) fn entrance(&self) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).open(self.dir.join("cgroup.procs"))
    }

    /// Lets the kernel prefer the task to the worker where a limit around both is reached, or the
    /// machine's: without the worker all tasks would be lost. Children inherit it; see
    /// proc_pid_oom_score_adj(5).
    pub(crate) fn offer_first(&self, leader: Pid) {
        let file = format!("/proc/{}/oom_score_adj", leader.as_raw_pid());
        if let Err(error) = fs::write(file, self.cgroups.oom_score_adj().to_string()) {
            // It has ended already, or is another user's by a set-user-ID bit.
            tracing::trace!("oom_score_adj of {}: {error}", leader.as_raw_pid());
        }
    }

    /// Sends SIGKILL to everybody inside, at once: nobody can fork away from it.
    pub(crate) fn kill(&self) {
        kill(&self.dir);
    }

    /// Whether anybody is alive inside; `None` when the kernel does not say.
    pub(crate) fn is_populated(&self) -> Option<bool> {
        let events = fs::read_to_string(self.dir.join("cgroup.events")).ok()?;
        let line = events.lines().find_map(|line| line.strip_prefix("populated "))?;
        Some(line.trim() != "0")
    }

    /// What happened at the limits so far.
    pub(crate) fn evidence(&self) -> Evidence {
        Evidence::read(&self.dir)
    }

    /// Removes it when the last process has left, for which it waits 0.1 s; then a sweep will.
    pub(crate) async fn remove(mut self) {
        for attempt in 1..=REMOVAL_ATTEMPTS {
            match remove_tree(&self.dir) {
                Ok(()) => {
                    self.exists = false;
                    return;
                }
                Err(_) if attempt < REMOVAL_ATTEMPTS => tokio::time::sleep(REMOVAL_PAUSE).await,
                Err(error) => tracing::debug!("{} stays for now: {error}", self.dir.display()),
            }
        }
    }
}

impl Drop for TaskGroup {
    fn drop(&mut self) {
        if self.exists && kill_and_remove(&self.dir).is_err() {
            self.cgroups.remove_later(std::mem::take(&mut self.dir));
        }
    }
}

/// Sends SIGKILL to everybody in a cgroup and below it (Linux 5.14 and later; on older ones the search
/// through `/proc` has to do).
fn kill(dir: &Path) {
    if let Err(error) = fs::write(dir.join("cgroup.kill"), "1") {
        tracing::debug!("{}: cgroup.kill: {error}", dir.display());
    }
}

/// Removes a cgroup, for which whoever is inside is killed: that may take another attempt.
pub(super) fn kill_and_remove(dir: &Path) -> io::Result<()> {
    remove_tree(dir).or_else(|_| {
        kill(dir);
        remove_tree(dir)
    })
}

/// Removes a cgroup without processes, and those that were made inside it. Only directories are
/// removed, since the files in them are the kernel's.
fn remove_tree(dir: &Path) -> io::Result<()> {
    fn remove(dir: &Path, depth: u32) -> io::Result<()> {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if depth == 0 => return Err(error),
            Err(_) => {}
        }
        for entry in fs::read_dir(dir)?.filter_map(Result::ok).take(MAX_ENTRIES) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove(&entry.path(), depth - 1)?;
            }
        }
        fs::remove_dir(dir)
    }
    remove(dir, MAX_DEPTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(controllers: &str) -> (tempfile::TempDir, Arc<Cgroups>) {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), controllers).unwrap();
        fs::write(root.path().join("cgroup.procs"), "").unwrap();
        let cgroups = Cgroups::take_over_at(root.path()).unwrap();
        (root, cgroups)
    }

    fn content(group: &TaskGroup, name: &str) -> Option<String> {
        fs::read_to_string(group.dir.join(name)).ok()
    }

    const LIMITS: Limits =
        Limits { memory_max: Some(512 << 20), pids_max: Some(64), cpu_weight: Some(20) };

    #[test]
    fn limits_are_written_where_they_can_be_enforced() {
        let (_root, cgroups) = fake("memory pids cpu");
        let group = TaskGroup::make(&cgroups, Uuid::new_v4(), &LIMITS).unwrap();
        for (name, value) in [
            ("memory.max", "536870912"),
            ("memory.swap.max", "0"),
            ("memory.oom.group", "1"),
            ("pids.max", "64"),
            ("cpu.weight", "20"),
        ] {
            assert_eq!(content(&group, name).as_deref(), Some(value), "{name}");
        }

        let (_root, cgroups) = fake("pids");
        let group = TaskGroup::make(&cgroups, Uuid::new_v4(), &LIMITS).unwrap();
        assert_eq!(content(&group, "pids.max").as_deref(), Some("64"));
        assert_eq!(content(&group, "memory.max"), None);
        assert_eq!(content(&group, "cpu.weight"), None);
    }

    #[test]
    fn without_limits_only_the_group_dies_together() {
        let (_root, cgroups) = fake("memory pids cpu");
        let group = TaskGroup::make(&cgroups, Uuid::new_v4(), &Limits::default()).unwrap();
        assert_eq!(content(&group, "memory.oom.group").as_deref(), Some("1"));
        for name in ["memory.max", "memory.swap.max", "pids.max", "cpu.weight"] {
            assert_eq!(content(&group, name), None, "{name}");
        }
    }

    #[test]
    fn a_drop_kills_and_leaves_the_removal_to_a_sweep() {
        let (_root, cgroups) = fake("");
        let group = TaskGroup::make(&cgroups, Uuid::new_v4(), &LIMITS).unwrap();
        let dir = group.dir.clone();
        // In this tree a file keeps the directory, as a process does in a real one.
        fs::write(dir.join("process"), "").unwrap();
        drop(group);
        assert_eq!(fs::read_to_string(dir.join("cgroup.kill")).unwrap(), "1");
        assert_eq!(cgroups.sweep(), 1);
    }

    #[test]
    fn population_is_what_the_kernel_says() {
        let (_root, cgroups) = fake("");
        let group = TaskGroup::make(&cgroups, Uuid::new_v4(), &LIMITS).unwrap();
        let dir = group.dir.clone();
        assert_eq!(group.is_populated(), None);
        for (text, expected) in [("populated 1\nfrozen 0\n", true), ("populated 0\n", false)] {
            fs::write(dir.join("cgroup.events"), text).unwrap();
            assert_eq!(group.is_populated(), Some(expected));
        }
    }

    #[test]
    fn what_a_task_made_inside_goes_with_it() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("task");
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::create_dir_all(dir.join("c")).unwrap();
        remove_tree(&dir).unwrap();
        assert!(!dir.exists());
        remove_tree(&dir).unwrap();
    }
}

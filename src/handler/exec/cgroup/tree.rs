//! The delegated part of the tree, arranged: the worker in a leaf, every task in one of its own.
//!
//! ```text
//! the delegated cgroup      no process; controllers are enabled for both below
//! ├── worker                this process (or the leaf that DelegateSubgroup= made)
//! └── tasks                 no process; all tasks together weigh as much as the worker
//!     ├── task-<run>
//!     └── task-<run>
//! ```
//!
//! Whatever a former life left in `tasks` is killed at the start. There may be no other process in
//! the cgroup that we begin in, so two workers never share a tree.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::delegation::{self, Delegation, Unavailable};
use super::limits::Controller;
use super::task::kill_and_remove;

/// Where the worker moves itself.
const LEAF: &str = "worker";
/// Where tasks go.
const TASKS: &str = "tasks";
/// A task's memory counts for so much more than the worker's when the kernel looks for a victim: in
/// thousandths of what may be used. systemd's user sessions have the same step.
const SOONER_KILLED: i32 = 200;
/// The largest value of `oom_score_adj`.
const MAX_OOM_SCORE_ADJ: i32 = 1_000;
/// Processes that an error names.
const NAMED: usize = 5;
/// Cgroups of ended runs that wait for their removal; beyond that, they are left to the next start.
const MAX_LEFTOVERS: usize = 4_096;

/// Our part of the tree, with this process in its place.
#[derive(Debug)]
pub struct Cgroups {
    tasks: PathBuf,
    controllers: Vec<Controller>,
    oom_score_adj: i32,
    /// Of runs that are over, not removed yet.
    leftovers: Mutex<Vec<PathBuf>>,
}

impl Cgroups {
    /// Takes over what was delegated to this process, and moves it into a leaf.
    ///
    /// Called once, early, and before any child is started: children stay where their parent was.
    pub fn take_over() -> Result<Arc<Self>, Unavailable> {
        Self::arrange(&delegation::find("self")?)
    }

    /// Takes over `root`, in which this process already is, asking nobody whether it was delegated.
    pub fn take_over_at(root: &Path) -> Result<Arc<Self>, Unavailable> {
        Self::arrange(&Delegation { root: root.to_owned(), own: root.to_owned() })
    }

    fn arrange(delegation: &Delegation) -> Result<Arc<Self>, Unavailable> {
        let Delegation { root, own } = delegation;
        let tasks = root.join(TASKS);
        if *own == tasks {
            return Err(Unavailable::NameTaken(own.clone()));
        }
        alone_in(own)?;
        if own == root {
            let leaf = root.join(LEAF);
            make(&leaf)?;
            let entrance = leaf.join("cgroup.procs");
            fs::write(&entrance, "0").map_err(failed("move this process by", &entrance))?;
        }
        // Controllers are for cgroups without processes only.
        empty(root)?;
        make(&tasks)?;
        let offered = read(&root.join("cgroup.controllers"))?;
        let enable = |it: &Controller| [root, &tasks].into_iter().all(|dir| enable(dir, *it));
        let controllers = Controller::listed(&offered).into_iter().filter(enable).collect();
        let leftovers = Mutex::new(children(&tasks));
        let own = fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
        let own: i32 = own.trim().parse().unwrap_or(0);
        let oom_score_adj = (own + SOONER_KILLED).min(MAX_OOM_SCORE_ADJ);
        let cgroups = Self { tasks, controllers, oom_score_adj, leftovers };
        cgroups.sweep();
        Ok(Arc::new(cgroups))
    }

    /// The controllers that hold tasks to their limits here.
    pub fn controllers(&self) -> &[Controller] {
        &self.controllers
    }

    /// Where tasks have their cgroups.
    pub fn tasks(&self) -> &Path {
        &self.tasks
    }

    /// What the tasks' `oom_score_adj` is set to.
    pub(super) fn oom_score_adj(&self) -> i32 {
        self.oom_score_adj
    }

    /// Kills what is left in the cgroups of ended runs and removes them. Cheap when there are none;
    /// to be called every few seconds. Returns how many remain.
    pub fn sweep(&self) -> usize {
        let mut leftovers = self.leftovers.lock().unwrap_or_else(PoisonError::into_inner);
        leftovers.retain(|dir| kill_and_remove(dir).is_err());
        leftovers.len()
    }

    /// Leaves the removal of a cgroup to later sweeps.
    pub(super) fn remove_later(&self, dir: PathBuf) {
        let mut leftovers = self.leftovers.lock().unwrap_or_else(PoisonError::into_inner);
        if leftovers.len() < MAX_LEFTOVERS {
            leftovers.push(dir);
        } else {
            tracing::debug!("{} stays until the next start", dir.display());
        }
    }
}

/// The controllers that a worker could use that runs, or would run, where the process does (`None`:
/// this one). Changes nothing.
pub fn controllers_of(process: Option<u32>) -> Result<Vec<Controller>, Unavailable> {
    let process = process.map_or_else(|| "self".to_owned(), |id| id.to_string());
    let Delegation { root, .. } = delegation::find(&process)?;
    Ok(Controller::listed(&read(&root.join("cgroup.controllers"))?))
}

fn alone_in(dir: &Path) -> Result<(), Unavailable> {
    let own = std::process::id().to_string();
    unoccupied(dir, |process| process == own)
}

fn empty(dir: &Path) -> Result<(), Unavailable> {
    unoccupied(dir, |_| false)
}

fn unoccupied(dir: &Path, expected: impl Fn(&str) -> bool) -> Result<(), Unavailable> {
    let listed = read(&dir.join("cgroup.procs"))?;
    let strangers: Vec<&str> =
        listed.split_ascii_whitespace().filter(|process| !expected(process)).take(NAMED).collect();
    if strangers.is_empty() {
        return Ok(());
    }
    Err(Unavailable::Occupied(dir.to_owned(), format!("process {}", strangers.join(", "))))
}

fn enable(dir: &Path, controller: Controller) -> bool {
    let written = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
    if let Err(error) = &written {
        tracing::warn!("controller {controller} not enabled in {}: {error}", dir.display());
    }
    written.is_ok()
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let entries = entries.filter_map(Result::ok);
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).take(MAX_LEFTOVERS).collect()
}

fn make(dir: &Path) -> Result<(), Unavailable> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(failed("make", dir)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn read(file: &Path) -> Result<String, Unavailable> {
    fs::read_to_string(file).map_err(failed("read", file))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Unavailable {
    let path = path.to_owned();
    move |source| Unavailable::Failed { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with the files that the kernel would make, and nobody inside.
    fn fake(controllers: &str, processes: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), controllers).unwrap();
        fs::write(root.path().join("cgroup.procs"), processes).unwrap();
        root
    }

    #[test]
    fn the_worker_moves_and_controllers_are_enabled_for_both() {
        let root = fake("cpuset cpu io memory pids\n", "");
        let cgroups = Cgroups::take_over_at(root.path()).unwrap();
        assert_eq!(cgroups.controllers(), Controller::ALL);
        let content = |name: &str| fs::read_to_string(root.path().join(name)).unwrap();
        assert_eq!(content("worker/cgroup.procs"), "0");
        for dir in ["", "tasks/"] {
            assert!(content(&format!("{dir}cgroup.subtree_control")).starts_with('+'), "{dir}");
        }
    }

    #[test]
    fn nobody_else_is_moved() {
        let root = fake("", "1\n77777777\n");
        let error = Cgroups::take_over_at(root.path()).unwrap_err();
        assert!(matches!(error, Unavailable::Occupied(..)), "{error}");
        assert!(error.to_string().contains("77777777"), "{error}");
        assert!(!root.path().join(LEAF).exists(), "nothing was changed");
    }

    #[test]
    fn a_leaf_that_somebody_made_for_us_is_kept() {
        let root = fake("memory", "");
        let own = root.path().join("payload");
        fs::create_dir(&own).unwrap();
        fs::write(own.join("cgroup.procs"), std::process::id().to_string()).unwrap();
        let cgroups = Cgroups::arrange(&Delegation { root: root.path().into(), own }).unwrap();
        assert_eq!(cgroups.controllers(), [Controller::Memory]);
        assert!(!root.path().join(LEAF).exists());

        let own = root.path().join(TASKS);
        let error = Cgroups::arrange(&Delegation { root: root.path().into(), own }).unwrap_err();
        assert!(matches!(error, Unavailable::NameTaken(_)), "{error}");
    }

    #[test]
    fn what_a_former_life_left_is_killed_and_removed() {
        let root = fake("", "");
        let old = root.path().join("tasks/task-old/inner");
        fs::create_dir_all(&old).unwrap();
        let busy = root.path().join("tasks/task-busy");
        fs::create_dir_all(&busy).unwrap();
        fs::write(busy.join("cgroup.events"), "populated 1\n").unwrap();
        let cgroups = Cgroups::take_over_at(root.path()).unwrap();
        assert!(!old.parent().unwrap().exists());
        assert_eq!(fs::read_to_string(busy.join("cgroup.kill")).unwrap(), "1");
        assert_eq!(cgroups.sweep(), 1, "a file keeps the directory, as processes would");
        for name in ["cgroup.events", "cgroup.kill"] {
            fs::remove_file(busy.join(name)).unwrap();
        }
        assert_eq!(cgroups.sweep(), 0);
        assert!(!busy.exists());
    }
}

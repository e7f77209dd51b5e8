//! Which processes belong to a run.
//!
//! They are known by three marks: the process group and session of the run's leader, the chain of
//! parents (as long as it is unbroken), and the run's id in their environment. Only one that left
//! both, cleared its environment and was forked twice before anybody looked is missed here; the
//! reaper finds it when no run is left that could own it.

use std::collections::HashSet;

use rustix::process::{Pid, child_subreaper, getpid};
use uuid::Uuid;

use super::procfs::Process;

/// All processes of a run, found by every mark; `known` are members seen earlier.
pub(super) fn members(run: Uuid, leader: Pid, known: &[Process]) -> Vec<Process> {
    let all = Process::all();
    let subreaper = matches!(child_subreaper(), Ok(Some(_)));
    let ours = subreaper.then(|| family(&all, [getpid().as_raw_pid()].into()));
    let leader = leader.as_raw_pid();
    let seeds = all
        .iter()
        .filter(|p| {
            let pid = p.pid.as_raw_pid();
            pid == leader
                || p.group == leader
                || p.session == leader
                || known.iter().any(|seen| (seen.pid, seen.started) == (p.pid, p.started))
                || (ours.as_ref().is_none_or(|ours| ours.contains(&pid))
                    && !p.zombie
                    && p.run_marker() == Some(run))
        })
        .map(|p| p.pid.as_raw_pid())
        .collect();
    let members = family(&all, seeds);
    let own = getpid();
    all.into_iter().filter(|p| members.contains(&p.pid.as_raw_pid()) && p.pid != own).collect()
}

/// The processes of `roots` and everything that descends from them.
fn family(all: &[Process], roots: HashSet<i32>) -> HashSet<i32> {
    let mut family = roots;
    loop {
        let before = family.len();
        for process in all {
            if family.contains(&process.parent) {
                family.insert(process.pid.as_raw_pid());
            }
        }
        if family.len() == before {
            return family;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_found_in_any_order() {
        let with_parent = |pid, parent| Process {
            pid: Pid::from_raw(pid).unwrap(),
            parent,
            group: 1,
            session: 1,
            started: 1,
            zombie: false,
        };
        let all = [with_parent(4, 3), with_parent(3, 2), with_parent(2, 1), with_parent(9, 8)];
        assert_eq!(family(&all, [2].into()), [2, 3, 4].into());
    }
}

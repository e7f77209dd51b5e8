//! A cgroup of its own for each program that runs, where the unit delegates.
//!
//! The kernel then holds every descendant together, whatever it does to its group, session, parents
//! and environment: `cgroup.kill` ends all of them at once, and limits on memory, processes and
//! processor time hold for the whole of a task. Where nothing is delegated, process groups and the
//! search through `/proc` remain, and no limit is enforced. Only cgroup v2 is known here: see the
//! kernel's admin-guide/cgroup-v2 and systemd's CGROUP_DELEGATION.
//!
//! Nothing here defends against malice: a program of the same user may write to the delegated tree.

mod delegation;
mod events;
mod limits;
mod place;
mod task;
mod tree;

pub use delegation::Unavailable;
pub(super) use events::Evidence;
pub use limits::{Controller, Limits, Unenforced, readable_bytes};
pub(super) use place::start_inside;
pub(super) use task::TaskGroup;
pub use tree::{Cgroups, controllers_of};

//! Runs a task as a program: payload on standard input, result on standard output.
//!
//! The program is executed directly, never through a shell. Exit status 0 is success, 65 (EX_DATAERR
//! of sysexits.h) a failure for good, 75 (EX_TEMPFAIL) and everything else a failure worth another
//! attempt. Standard error goes to the log line by line, and its end is kept as evidence.
//!
//! A program runs in a process group of its own, with an environment that holds nothing of the
//! daemon's but [`INHERITED`]. When its run is over, in whatever way, no process of it is left: not
//! the group, not a child that left the group, not one that was forked twice. Where the unit
//! delegates its cgroup, each run has one of its own besides, with the handler's limits.

pub mod cgroup;
mod descent;
pub(in crate::handler) mod environment;
mod execution;
mod handler;
pub(in crate::handler) mod leader;
mod options;
mod output;
mod pipes;
pub(in crate::handler) mod procfs;
mod reaper;
pub(in crate::handler) mod status;

pub use environment::INHERITED;
pub use handler::ExecHandler;
pub use options::ExecOptions;
pub use reaper::{Swept, become_reaper, sweep};

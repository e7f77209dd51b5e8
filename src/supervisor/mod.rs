//! Rank 6: the life of the process. Builds the parts, starts them in order, stops them in reverse,
//! and tells systemd.
//!
//! [`run`] is the whole of it. One `select!` only names what happened; [`Phase::on`] decides, and
//! the phase is published to all parts. The runtimes keep out of each other's way: this one
//! coordinates; handlers, the heartbeat and the pages have threads of their own.
//!
//! [`Phase::on`]: crate::protocol::drain::Phase::on

mod allowance;
mod backlog;
mod build;
mod commits;
mod confinement;
mod handlers;
mod heartbeat;
mod life;
mod marker;
mod pace;
mod reload;
mod runtime;
mod signals;
mod start;
mod status;
mod systemd;
pub mod unit;
mod web;

pub use build::{
    git_report_results, ledger_options, lock_node, postgres_connect, postgres_password,
    redis_target,
};
pub use confinement::{UnenforcedLimit, unenforced_limits};
pub use handlers::git_options;
pub use marker::{DrainNote, Note};
pub use runtime::run_to_end;
pub use start::{StartError, Startup, run};

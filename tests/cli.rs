//! The commands that people and scripts use, as processes, on real servers and live workers.

mod bus;
mod common;

#[path = "cli/dead.rs"]
mod dead;
#[path = "cli/dev.rs"]
mod dev;
#[path = "cli/doctor.rs"]
mod doctor;
#[path = "cli/enqueue.rs"]
mod enqueue;
#[path = "cli/program.rs"]
mod program;
#[path = "cli/said.rs"]
mod said;
#[path = "cli/status.rs"]
mod status;
#[path = "cli/tasks.rs"]
mod tasks;

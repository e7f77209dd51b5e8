//! Commits as tasks: real Redis, Postgres and git, real workers.
//!
//! `whole` analyses histories with a worker and compares the views with git's own words; `batches` runs
//! the handler itself, where locks and fences stand in its way; `zoo` does odd repositories; `kills`
//! takes workers away in the middle, `memory` their git children; `heavy` holds up Postgres; `again` is about what was refused or
//! left over; `fan_out` about ranges over mirrors with something wrong; `commands` are what a person
//! types.

#[path = "../git/bombs.rs"]
mod bombs;
#[path = "../common/mod.rs"]
mod common;
#[path = "../git/gitlog.rs"]
#[allow(dead_code, reason = "one function of several")]
mod gitlog;
#[path = "../git/invented.rs"]
mod invented;
#[path = "../git/repository.rs"]
#[allow(dead_code, reason = "some functions of several")]
mod repository;
#[path = "../cli/said.rs"]
#[allow(dead_code, reason = "some functions of several")]
mod said;

mod again;
mod batches;
mod commands;
mod fan_out;
mod ground;
mod heavy;
mod kills;
mod memory;
mod whole;
mod zoo;

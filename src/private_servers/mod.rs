//! Rank 6: private Redis and Postgres servers, for `dev`, `demo`, `bench`, `drill` and the tests.
//!
//! Each server listens on a free loopback port, keeps its files in one folder (a temporary one
//! unless told otherwise) and belongs to this process: dropping the value ends it, and the kernel
//! ends it when this process dies. Nothing here ever touches a server that it did not start:
//! servers are signalled by process id, never by name. Postgres refuses to run as root, so it runs
//! as `postgres` or `nobody` when this process is root.
//!
//! For fault tests a server can be killed, frozen, thawed and started again on the same port with
//! the same data. A [`Companion`] is any other program, a worker above all, that is held the same
//! way. This module knows no schema and no protocol of the queue.

mod account;
mod cluster;
mod companion;
mod error;
mod folder;
mod password;
mod port;
mod postgres;
mod process;
mod program;
mod redis;

pub use companion::{Companion, CompanionOutput};
pub use error::PrivateServerError;
pub use password::random_password;
pub use postgres::{PostgresOptions, PostgresServer};
pub(crate) use program::optional as program_on_path;
pub use redis::{AppendFsync, RedisOptions, RedisServer};

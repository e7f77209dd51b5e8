//! `queue-worker`: a queue worker that loses nothing and does nothing twice.
//!
//! The library behind the binary of the same name. Tasks come from Redis Streams, each is wrapped
//! in a heartbeat lease (Redis) and an idempotency transaction (Postgres), and a SIGTERM drains.
//! Modules have ranks and import only downward; `ARCHITECTURE.md` shows the map and
//! `tests/architecture.rs` checks it:
//!
//! | rank | modules |
//! | --- | --- |
//! | base | [`clock`], [`coalesce`] |
//! | 0 | [`domain`] |
//! | 1 | [`protocol`], [`config`], [`telemetry`], [`connection`] |
//! | 2 | [`queue`], [`lease`], [`ledger`] |
//! | 3 | [`handler`] |
//! | 4 | [`worker`] |
//! | 5 | [`web`] |
//! | 6 | [`supervisor`], [`private_servers`] |
//! | 7 | [`cli`] |

pub mod cli;
pub mod clock;
pub mod coalesce;
pub mod config;
pub mod connection;
pub mod domain;
pub mod handler;
pub mod lease;
pub mod ledger;
pub mod private_servers;
pub mod protocol;
pub mod queue;
pub mod supervisor;
pub mod telemetry;
pub mod web;
pub mod worker;

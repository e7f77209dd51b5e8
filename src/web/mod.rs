//! Rank 5: health and metrics over HTTP, for whoever watches the worker.
//!
//! - [`health`]: whether the loops come round, and whether tasks are pulled;
//! - [`metrics`]: what was counted and how things stand, in the text format of Prometheus;
//! - [`pages`]: which path answers what;
//! - [`server`]: the listener, on a thread of its own, so that a busy worker answers too.
//!
//! It reads, and changes nothing: no task waits for it, and the worker goes on without it.

pub mod health;
pub mod metrics;
pub mod pages;
pub mod server;

pub use health::{Stuck, Vitals};
pub use metrics::Metrics;
pub use pages::Pages;
pub use server::Server;

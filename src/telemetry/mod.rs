//! Rank 1: what the worker says: the journal with fields, text for people, JSON for collectors.
//!
//! [`init`] is called once, by the binary. A record's fields have the names in [`fields`]; what a
//! task or a peer said is escaped, so that nobody forges a line. [`Health`] says once that a store
//! is gone and once that it is back, however often it was tried. [`metrics`] names what is counted.

mod escape;
pub mod fields;
mod health;
mod init;
mod journal;
mod json;
pub mod metrics;
mod text;

pub(crate) use escape::escaped;
pub use health::{Health, Outage};
pub use init::{LogError, LogHandle, Sink, init, subscriber};
pub use journal::stderr_is_journal;

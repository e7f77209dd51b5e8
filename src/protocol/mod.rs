//! Rank 1: the decisions. Pure functions and small state machines: the time and the randomness are
//! arguments, nothing here waits, and every state can be met with every event in a unit test.
//!
//! - [`dispatch`]: how many entries to fetch;
//! - [`lease_clock`]: until when this process may start an effect;
//! - [`drain`]: from running to stopped, signal by signal;
//! - [`budget`]: how a drain fits into what the service manager allows;
//! - [`settle`]: from how a run ended to what is recorded;
//! - [`backoff`]: how long to wait before trying a store again;
//! - [`quorum`]: when a majority of lock nodes has granted a lock.

pub mod backoff;
pub mod budget;
pub mod dispatch;
pub mod drain;
pub mod lease_clock;
pub mod quorum;
pub mod settle;

//! tmp
use super::Handler;
use crate::domain::*;
use std::time::Duration;
/// t
#[derive(Clone)]
pub struct Entry {
    /// h
    pub handler: Handler,
    /// t
    pub timeout: Duration,
    /// p
    pub policy: RetryPolicy,
    /// k
    pub kill_after: Duration,
}
/// r
pub struct Registry;
impl Registry {
    /// g
    pub fn get(&self, _: &str) -> Option<Entry> {
        None
    }
}

//! In place of `sentinel` in a program built without that feature: there are no Sentinels to ask.

use std::convert::Infallible;
use std::future::Ready;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, RedisConnectionInfo};

use super::super::RedisError;
use crate::domain::SentinelUrl;

/// Never made.
pub(super) struct Sentinels(Infallible);

impl Sentinels {
    /// What the master would be called in errors.
    pub(super) fn address(url: &SentinelUrl) -> String {
        url.name.clone()
    }

    /// Refuses.
    pub(super) fn new(_: &SentinelUrl, _: &ConnectionInfo) -> Result<Self, &'static str> {
        Err("names sentinels, and this program was built without the feature `sentinel`")
    }

    /// Never called.
    pub(super) fn master(
        &self,
        _: &RedisConnectionInfo,
        _: Duration,
    ) -> Ready<Result<ConnectionAddr, RedisError>> {
        match self.0 {}
    }

    /// Never called.
    pub(super) fn has_moved_from(&self, _: &str) -> bool {
        match self.0 {}
    }
}

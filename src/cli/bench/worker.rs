//! The worker process of a bench: a real one, with two native handlers more.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::config::{Config, Environment};
use crate::domain::Failure;
use crate::handler::{ExternalHandler, Run};
use crate::supervisor::{self, Startup};
use crate::telemetry;

/// Does nothing.
struct Noop;

#[async_trait]
impl ExternalHandler for Noop {
    async fn run(&self, _: Run) -> Result<Option<Bytes>, Failure> {
        Ok(None)
    }
}

/// Waits until it is cancelled.
struct Hold;

#[async_trait]
impl ExternalHandler for Hold {
    async fn run(&self, run: Run) -> Result<Option<Bytes>, Failure> {
        run.cancel.cancelled().await;
        Err(Failure::retry("cancelled"))
    }
}

//! `queue-worker check-config`: whether a worker would accept the configuration.
//!
//! Reads the file and the environment as `run` does and reports every problem at once, with its
//! place and its remedy. It connects to nothing and opens no secret, so that a package or a NixOS
//! module can call it at build time.

use std::io::{self, Write};
use std::process::ExitCode;

use super::GlobalOptions;
use crate::config::{Config, Environment};
use crate::domain::Kind;

/// Check the configuration and say everything that is wrong with it
///
/// Exits with 0 if a worker would start with it and with 78 if not. Servers are not contacted and
/// secrets are not read.
#[derive(Debug, clap::Args)]
pub(super) struct CheckConfig {}

pub(super) fn run(global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let config = Config::load(&global.config, &Environment::of_process())?;
    let mut out = io::stdout().lock();
    writeln!(out, "{}: good", global.config.display())?;
    writeln!(out, "queues: {}", list(config.queues.iter().map(|queue| queue.name.as_str())))?;
    writeln!(out, "handlers: {}", list(config.handlers.keys().map(Kind::as_str)))?;
    Ok(ExitCode::SUCCESS)
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

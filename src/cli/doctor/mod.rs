//! `queue-worker doctor`: what this machine and its stores can have wrong, with the remedies.
//!
//! It only looks: nothing is changed, and nothing is claimed or delivered. Each part asks within a
//! limit of its own, all at the same time; a store that is away is a finding like any other. What a
//! fact means is decided in pure functions (`judge` of each part), so that every finding has a test.

mod clocks;
mod container;
mod finding;
mod lock_nodes;
mod machine;
mod postgres;
mod redis;
mod streams;
mod unit;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use self::finding::{Finding, Findings, Level};
use super::{DEFAULT_CONFIG, GlobalOptions};
use crate::config::{Config, Environment, HandlerAction};
use crate::telemetry::escaped;

/// How long a store may take for all of its answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// Check what a machine and its stores can have wrong
///
/// Looks at the unit as systemd has loaded it, at Redis, the lock nodes and Postgres, at the clocks,
/// at the limits of a container, and at this machine. Each finding is ok, a note, a warning or an
/// error, says why it matters and names the remedy. Nothing is changed. Exits with 1 if there is an
/// error. Run it as the user of the unit, or as root.
#[derive(Debug, clap::Args)]
#[command(after_long_help = JSON_FIELDS)]
pub(super) struct Doctor {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Leave out what is well
    #[arg(long, short)]
    quiet: bool,
    /// The unit to look at; of those that match a name with * in it, the workers
    #[arg(long, value_name = "NAME", default_value = "queue-worker*.service")]
    unit: String,
}

const JSON_FIELDS: &str = "\
Fields of --json:
  worst             ok, note, warning or error
  findings          level, check, about, found, why, remedy (null where all is well)";

impl Doctor {
    pub(super) async fn run(self, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
        let path = self.configuration(global).await;
        let config = Config::load(&path, &Environment::of_process())?;
        let (units, redis, streams, nodes, postgres, clock) = tokio::join!(
            unit::look(&self.unit, &config, &path),
            redis::look(&config),
            streams::look(&config),
            lock_nodes::look(&config),
            postgres::look(&config),
            clocks::synchronized(),
        );
        let (units, known) = units;
        let (redis, redis_clock) = redis;
        let (postgres, postgres_clock) = postgres;
        let clocks = clocks::judge(clock, &[("redis", redis_clock), ("postgres", postgres_clock)]);
        let machine = machine::look(&config, &known);
        let container = container::look(&config).await;
        let parts = [units, machine, container, clocks, redis, streams, nodes, postgres];
        let findings: Vec<Finding> =
            parts.into_iter().flatten().flat_map(|part| part.all).collect();
        let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
        let shown: Vec<&Finding> =
            findings.iter().filter(|one| !self.quiet || one.level > Level::Ok).collect();
        let mut out = io::stdout().lock();
        if self.json {
            let report = serde_json::json!({ "worst": worst, "findings": shown });
            writeln!(out, "{report}")?;
        } else {
            write_findings(&mut out, &shown)?;
            write_summary(&mut out, &findings)?;
        }
        Ok(if worst == Level::Error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

impl Doctor {
    /// The file of --config. Where that is the default and is not there, the one that the only unit
    /// names: on NixOS it is /etc/queue-worker/NAME.toml.
    async fn configuration(&self, global: &GlobalOptions) -> PathBuf {
        let given = &global.config;
        if given != Path::new(DEFAULT_CONFIG) || given.exists() {
            return given.clone();
        }
        unit::configuration(&self.unit).await.unwrap_or_else(|| given.clone())
    }
}

/// One line for what is well, three for what is not. What servers said is escaped.
fn write_findings(out: &mut impl Write, findings: &[&Finding]) -> io::Result<()> {
    for Finding { level, check, about, found, why, remedy } in findings {
        let level = level.as_str();
        writeln!(out, "{level:<8} {check:<22} {}: {}", escaped(about), escaped(found))?;
        for (name, text) in [("why", why), ("remedy", remedy)] {
            if let Some(text) = text {
                writeln!(out, "{:<8} {name}: {}", "", escaped(text))?;
            }
        }
    }
    Ok(())
}

fn write_summary(out: &mut impl Write, findings: &[Finding]) -> io::Result<()> {
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let counts = [Level::Error, Level::Warning, Level::Note, Level::Ok]
        .map(|level| format!("{} {}", count(level), level.as_str()));
    writeln!(out, "{}", counts.join(", "))
}

/// One part with nothing to tell, or what it found.
fn one(findings: Findings) -> Vec<Findings> {
    vec![findings]
}

fn analyses_commits(config: &Config) -> bool {
    config.handlers.values().any(|handler| matches!(handler.action, HandlerAction::Git(_)))
}

/// Sessions of one worker in Postgres at most: the ledger's, the effects', those that all handlers of
/// commits share, and the heartbeat's.
fn postgres_sessions(config: &Config) -> u32 {
    let pools = if analyses_commits(config) { 3 } else { 2 };
    config.postgres.pool_size.saturating_mul(pools).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_of_commits_share_their_sessions() {
        let sessions = |kinds: &[&str]| {
            let handler = |kind| format!("[handler.{kind}]\ntype = \"git-analysis\"\n");
            let handlers: String = kinds.iter().map(handler).collect();
            let text = format!("[postgres]\npool_size = 5\n[[queue]]\nname = \"q\"\n{handlers}");
            // Relative names of programs are looked for on PATH.
            let environment = Environment::of_process();
            let config = Config::parse(&text, Path::new("f"), &environment).expect("a good file");
            postgres_sessions(&config)
        };
        assert_eq!([sessions(&[]), sessions(&["a"]), sessions(&["a", "b"])], [11, 16, 16]);
    }
}

//! `queue-worker bench`: what the protocol costs, beside yardsticks taken in the same run.
//!
//! Private servers with their default durability (fsync, synchronous_commit and an append-only file
//! on), a real worker process, interleaved rounds, medians. Absolute figures are the machine's;
//! ratios to the yardsticks are the program's.

mod git;
mod latency;
mod servers;
mod throughput;
mod worker;
mod yardstick;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use self::servers::Servers;
use self::throughput::Load;
use crate::supervisor::run_to_end;

/// Measure this machine: tasks per second beside bare commits and bare spawns.
#[derive(Debug, clap::Args)]
pub(super) struct Bench {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Interleaved rounds; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Shrinks every load, for a quick look (1 is the full size).
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Leave out the backlog of a million.
    #[arg(long)]
    no_backlog: bool,
    /// Only these loads, beside the yardsticks; nothing else is measured then.
    #[arg(long, value_delimiter = ',', value_name = "LOAD")]
    only: Vec<Load>,
    /// Measure the analysis of commits instead, on an invented history.
    #[arg(long)]
    git: bool,
    /// Measure it on this repository.
    #[arg(long, value_name = "PATH", requires = "git")]
    repository: Option<PathBuf>,
    /// Used by the bench itself: run as a worker with this configuration.
    #[arg(long, hide = true)]
    worker: Option<PathBuf>,
}

/// What the bench reports; what was not measured is null. Rates are per second.
#[derive(Debug, Default, Serialize)]
struct Figures {
    noop_external_per_s: Option<f64>,
    noop_transaction_per_s: Option<f64>,
    sql_per_s: Option<f64>,
    sql_batch_per_s: Option<f64>,
    exec_per_s: Option<f64>,
    commit_yardstick_per_s: Option<f64>,
    spawn_yardstick_per_s: Option<f64>,
    /// External no-op to commits.
    noop_external_ratio: Option<f64>,
    /// In-transaction no-op to commits.
    noop_transaction_ratio: Option<f64>,
    /// Programs to bare spawns.
    exec_ratio: Option<f64>,
    /// The first 100 thousand tasks on a fresh database to the steady rate.
    fresh_ratio: Option<f64>,
    /// A backlog of a million to one of twenty thousand.
    backlog_ratio: Option<f64>,
    latency_ms_p50: Option<f64>,
    latency_ms_p99: Option<f64>,
    /// While Postgres vacuums and writes to disk what a backlog of a million left behind.
    latency_after_backlog_ms_p99: Option<f64>,
    /// Resident memory of a worker with 2,000 tasks in flight, in MiB.
    rss_mb: Option<f64>,
}

/// The loads of a round, and how many tasks each has.
const ROUND: [(Load, u32); 5] = [
    (Load::External, 100_000),
    (Load::Transaction, 100_000),
    (Load::Sql, 20_000),
    (Load::SqlBatch, 60_000),
    (Load::Exec, 6_000),
];

/// How long tasks come at a steady rate.
const LATENCY_TIME: Duration = Duration::from_secs(20);

/// The goals that the project holds itself to, as ratios within one run.
const GOALS: [(&str, f64, bool); 8] = [
    ("noop_external_ratio", 3.5, true),
    ("noop_transaction_ratio", 5.0, true),
    ("exec_ratio", 0.75, true),
    ("fresh_ratio", 0.8, true),
    ("backlog_ratio", 0.85, true),
    ("latency_ms_p50", 3.0, false),
    ("latency_ms_p99", 20.0, false),
    ("rss_mb", 40.0, false),
];

impl Bench {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(config) = &self.worker {
            return worker::run(config);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let (value, goals) = if self.git {
            let path = self.repository.as_deref();
            let measuring = git::measure(path, self.rounds, self.scale, |line| self.say(line));
            (serde_json::to_value(run_to_end(runtime, measuring)?)?, &git::GOALS[..])
        } else {
            (serde_json::to_value(run_to_end(runtime, self.measure())?)?, &GOALS[..])
        };
        if self.json {
            println!("{value}");
        } else {
            print(&value, goals);
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn measure(&self) -> anyhow::Result<Figures> {
        self.say("starting private servers …");
        let servers = Servers::start().await?;
        let fresh = if self.only.is_empty() {
            self.say("the first tasks on a fresh database …");
            Some(throughput::rate(&servers, Load::External, self.scaled(100_000)).await?)
        } else {
            None
        };
        let mut figures = self.rounds(&servers).await?;
        figures.fresh_ratio = ratio(fresh, figures.noop_external_per_s);
        if !self.only.is_empty() {
            return Ok(figures);
        }
        self.say("latency at 100 tasks a second …");
        let (p50, p99) = latency::percentiles(&servers, LATENCY_TIME).await?;
        (figures.latency_ms_p50, figures.latency_ms_p99) = (Some(p50), Some(p99));
        if !self.no_backlog {
            self.say("a backlog of a million …");
            let small = throughput::rate(&servers, Load::External, self.scaled(20_000)).await?;
            let large = throughput::rate(&servers, Load::External, self.scaled(1_000_000)).await?;
            let again = throughput::rate(&servers, Load::External, self.scaled(20_000)).await?;
            figures.backlog_ratio = Some(large / f64::midpoint(small, again));
            self.say("latency right after that …");
            let (_, p99) = latency::percentiles(&servers, LATENCY_TIME).await?;
            figures.latency_after_backlog_ms_p99 = Some(p99);
        }
        self.say("memory with 2,000 in flight …");
        figures.rss_mb = Some(throughput::memory(&servers, 2_000).await?);
        Ok(figures)
    }

    /// Interleaved rounds of yardsticks and loads.
    async fn rounds(&self, servers: &Servers) -> anyhow::Result<Figures> {
        let (mut commits, mut spawns) = (Vec::new(), Vec::new());
        let mut rates: [Vec<f64>; ROUND.len()] = Default::default();
        for round in 1..=self.rounds {
            self.say(&format!("round {round} of {} …", self.rounds));
            commits.push(yardstick::commits_per_second(servers).await?);
            for ((load, tasks), rates) in ROUND.into_iter().zip(&mut rates) {
                if self.measures(load) {
                    rates.push(throughput::rate(servers, load, self.scaled(tasks)).await?);
                }
            }
            if self.measures(Load::Exec) {
                spawns.push(yardstick::spawns_per_second(self.scaled(6_000)).await?);
            }
        }
        let (commit, spawn) = (median(commits), median(spawns));
        let [external, transaction, sql, sql_batch, exec] = rates.map(median);
        Ok(Figures {
            noop_external_per_s: external,
            noop_transaction_per_s: transaction,
            sql_per_s: sql,
            sql_batch_per_s: sql_batch,
            exec_per_s: exec,
            commit_yardstick_per_s: commit,
            spawn_yardstick_per_s: spawn,
            noop_external_ratio: ratio(external, commit),
            noop_transaction_ratio: ratio(transaction, commit),
            exec_ratio: ratio(exec, spawn),
            ..Figures::default()
        })
    }

    fn measures(&self, load: Load) -> bool {
        self.only.is_empty() || self.only.contains(&load)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a scaled count of tasks fits"
    )]
    fn scaled(&self, tasks: u32) -> u32 {
        (f64::from(tasks) * self.scale).max(200.0) as u32
    }

    fn say(&self, line: &str) {
        if !self.json {
            eprintln!("{line}");
        }
    }
}

/// The middle one; the mean of the two in the middle where there is an even number.
fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => None,
        n if n % 2 == 1 => Some(figures[middle]),
        _ => Some(f64::midpoint(figures[middle - 1], figures[middle])),
    }
}

fn ratio(figure: Option<f64>, yardstick: Option<f64>) -> Option<f64> {
    Some(figure? / yardstick?)
}

fn print(value: &serde_json::Value, goals: &[(&str, f64, bool)]) {
    let Some(figures) = value.as_object() else { return };
    for (name, figure) in figures {
        let Some(figure) = figure.as_f64() else { continue };
        let goal = goals.iter().find(|(goal, _, _)| goal == name);
        let note = goal.map_or_else(String::new, |(_, bound, at_least)| {
            let met = if *at_least { figure >= *bound } else { figure <= *bound };
            let (sign, word) =
                (if *at_least { "≥" } else { "≤" }, if met { "met" } else { "MISSED" });
            format!("goal {sign} {bound}: {word}")
        });
        println!("{name:<28} {figure:>12.2}   {note}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }
}

//! `queue-worker bench`: what the protocol costs, beside yardsticks taken in the same run.
//!
//! Private servers with their default durability (fsync, synchronous_commit and an append-only file
//! on), a real worker process, interleaved rounds, medians. Absolute figures are the machine's;
//! ratios to the yardsticks are the program's.

mod latency;
mod servers;
mod throughput;
mod worker;
mod yardstick;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use self::servers::Servers;
use self::throughput::Load;

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
    /// Used by the bench itself: run as a worker with this configuration.
    #[arg(long, hide = true)]
    worker: Option<PathBuf>,
}

/// What the bench reports. Rates are per second.
#[derive(Debug, Default, Serialize)]
struct Figures {
    noop_external_per_s: f64,
    noop_transaction_per_s: f64,
    sql_per_s: f64,
    sql_batch_per_s: f64,
    exec_per_s: f64,
    commit_yardstick_per_s: f64,
    spawn_yardstick_per_s: f64,
    /// External no-op to commits.
    noop_external_ratio: f64,
    /// In-transaction no-op to commits.
    noop_transaction_ratio: f64,
    /// Programs to bare spawns.
    exec_ratio: f64,
    /// The first 100 thousand tasks on a fresh database to the steady rate.
    fresh_ratio: f64,
    /// A backlog of a million to one of twenty thousand.
    backlog_ratio: Option<f64>,
    latency_ms_p50: f64,
    latency_ms_p99: f64,
    /// Resident memory of a worker with 2,000 tasks in flight, in MiB.
    rss_mb: f64,
}

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
        let figures = runtime.block_on(self.measure())?;
        let value = serde_json::to_value(&figures)?;
        if self.json {
            println!("{value}");
        } else {
            print(&value);
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn measure(&self) -> anyhow::Result<Figures> {
        let mut samples: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        self.say("starting private servers …");
        let servers = Servers::start().await?;
        self.say("the first tasks on a fresh database …");
        let fresh = throughput::rate(&servers, Load::External, self.scaled(100_000)).await?;
        for round in 1..=self.rounds {
            self.say(&format!("round {round} of {} …", self.rounds));
            let mut note = |name, figure| samples.entry(name).or_default().push(figure);
            note("commit", yardstick::commits_per_second(&servers).await?);
            for (name, load, tasks) in [
                ("external", Load::External, 100_000),
                ("transaction", Load::Transaction, 100_000),
                ("sql", Load::Sql, 20_000),
                ("sql_batch", Load::SqlBatch, 60_000),
                ("exec", Load::Exec, 6_000),
            ] {
                note(name, throughput::rate(&servers, load, self.scaled(tasks)).await?);
            }
            note("spawn", yardstick::spawns_per_second(self.scaled(6_000)).await?);
        }
        let median = |name: &str| samples.get(name).map_or(0.0, |figures| median(figures.clone()));
        let backlog_ratio = if self.no_backlog {
            None
        } else {
            self.say("a backlog of a million …");
            let small = throughput::rate(&servers, Load::External, self.scaled(20_000)).await?;
            let large = throughput::rate(&servers, Load::External, self.scaled(1_000_000)).await?;
            let again = throughput::rate(&servers, Load::External, self.scaled(20_000)).await?;
            Some(large / f64::midpoint(small, again))
        };
        self.say("latency at 100 tasks a second …");
        let (p50, p99) = latency::percentiles(&servers, Duration::from_secs(20)).await?;
        self.say("memory with 2,000 in flight …");
        let rss_mb = throughput::memory(&servers, 2_000).await?;
        let (commit, spawn) = (median("commit"), median("spawn"));
        Ok(Figures {
            noop_external_per_s: median("external"),
            noop_transaction_per_s: median("transaction"),
            sql_per_s: median("sql"),
            sql_batch_per_s: median("sql_batch"),
            exec_per_s: median("exec"),
            commit_yardstick_per_s: commit,
            spawn_yardstick_per_s: spawn,
            noop_external_ratio: median("external") / commit,
            noop_transaction_ratio: median("transaction") / commit,
            exec_ratio: median("exec") / spawn,
            fresh_ratio: fresh / median("external"),
            backlog_ratio,
            latency_ms_p50: p50,
            latency_ms_p99: p99,
            rss_mb,
        })
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
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => 0.0,
        n if n % 2 == 1 => figures[middle],
        _ => f64::midpoint(figures[middle - 1], figures[middle]),
    }
}

fn print(value: &serde_json::Value) {
    let Some(figures) = value.as_object() else { return };
    for (name, figure) in figures {
        let Some(figure) = figure.as_f64() else { continue };
        let goal = GOALS.iter().find(|(goal, _, _)| goal == name);
        let note = goal.map_or_else(String::new, |(_, bound, at_least)| {
            let met = if *at_least { figure >= *bound } else { figure <= *bound };
            let (sign, word) =
                (if *at_least { "≥" } else { "≤" }, if met { "met" } else { "MISSED" });
            format!("goal {sign} {bound}: {word}")
        });
        println!("{name:<26} {figure:>12.2}   {note}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
    }
}

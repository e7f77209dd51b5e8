//! `queue-worker demo`: the promises, shown on private servers in under two minutes.
//!
//! Starts Redis, Postgres and two workers as real processes, enqueues a few hundred mixed tasks,
//! kills one worker and terminates the other in the middle of a task, starts replacements, and
//! counts. Then a worker analyses a git history. Exits with 1 if any promise broke.

mod commits;
mod report;
mod stage;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;

use self::report::Report;
use self::stage::Stage;
use crate::supervisor::run_to_end;

/// Watch the promises being kept: two workers, one SIGKILL, one SIGTERM, nothing lost.
#[derive(Debug, clap::Args)]
pub(super) struct Demo {
    /// How many tasks to enqueue.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(40..=100_000))]
    tasks: u32,
    /// Print the table as one JSON object.
    #[arg(long)]
    json: bool,
}

/// No demo takes longer; more means that something hangs.
const LIMIT: Duration = Duration::from_secs(110);

impl Demo {
    /// Runs the demo.
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let report = run_to_end(runtime, async { tokio::time::timeout(LIMIT, self.play()).await })
            .context("the demo did not come to an end; the promises are not kept")??;
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            report.print();
        }
        Ok(if report.kept() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn play(&self) -> anyhow::Result<Report> {
        let say = |line: &str| {
            if !self.json {
                eprintln!("{line}");
            }
        };
        say("starting a private Redis and Postgres …");
        let stage = Stage::set().await?;
        say("starting two workers …");
        let mut killed = stage.start_worker("a").await?;
        let mut drained = stage.start_worker("b").await?;
        say(&format!("enqueueing {} tasks: sql effects and programs …", self.tasks));
        stage.enqueue(self.tasks).await?;

        let victims = stage.until_busy(&killed).await?;
        say("SIGKILL to worker a, in the middle of its tasks …");
        let kill = tokio::time::Instant::now();
        killed.kill()?;
        let mut third = stage.start_worker("c").await?;

        stage.until_busy(&drained).await?;
        say("SIGTERM to worker b, in the middle of its tasks …");
        let drain_seconds = drained.terminate().await?;
        let mut fourth = stage.start_worker("d").await?;

        let recovery_seconds = stage.until_taken_over(&victims, kill).await?;
        say("waiting for the rest …");
        stage.until_all_ended(self.tasks).await?;
        third.terminate().await?;
        fourth.terminate().await?;
        let mut report = stage.count(self.tasks).await?;
        report.killed_in_mid_task = victims.len();
        report.seconds_to_recover = recovery_seconds;
        report.seconds_to_drain = drain_seconds;
        let mut fifth = stage.start_worker("e").await?;
        report.history = commits::analyse(&stage, &say).await?;
        fifth.terminate().await?;
        Ok(report)
    }
}

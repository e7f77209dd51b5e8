//! `queue-worker drill`: one's own proof, on private servers: thousands of mixed tasks, while
//! workers are killed, frozen and terminated, connections cut and the stores restarted.
//!
//! Plan and faults follow from a seed. Faults stop before the end, everything must end, and every
//! promise is counted from outside: in the database, in a journal, at a receiver, in Redis. Exits
//! with 1 if any broke. `docs/drill.md` says what is counted, and how.

mod count;
mod evidence;
mod fleet;
mod ground;
mod orphan;
mod owners;
mod plan;
mod producer;
mod proxy;
mod receiver;
mod recovery;
mod report;
mod schedule;
mod slowness;
mod strike;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use self::count::{Count, Left};
use self::fleet::Fleet;
use self::ground::Ground;
use self::plan::PlannedTask;
use self::recovery::Recovery;
use self::report::{Report, percentile};
use self::schedule::Fault;
use self::strike::Striker;
use crate::supervisor::run_to_end;

/// Prove the promises under faults, on private servers
///
/// Starts Redis, Postgres and workers as processes, enqueues mixed tasks over the given time,
/// strikes with the given faults, waits until all tasks have ended and counts. Exits with 1 if
/// anything was lost, done twice, left behind or late.
#[derive(Debug, clap::Args)]
pub(super) struct Drill {
    /// How many tasks to enqueue
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(100..=200_000))]
    tasks: u32,
    /// How many workers to run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=16))]
    workers: u32,
    /// How long to enqueue and strike, in minutes; a fraction is fine
    #[arg(long, default_value_t = 1.0, value_parser = minutes)]
    minutes: f64,
    /// Which faults, separated by commas; all unless given
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    faults: Vec<Fault>,
    /// Tasks and faults follow from it; a new one unless given
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Keep the folder with logs and journal (after a breach it is kept in any case)
    #[arg(long)]
    keep: bool,
}

/// Before the first fault: the workers start.
const WARM_UP: Duration = Duration::from_secs(2);
/// Faults stop this long before the enqueueing does, as a share of the time.
const CALM_SHARE: f64 = 0.1;
/// Once all is enqueued, everything must have ended after this: backoffs, leases and delays.
const END_LIMIT: Duration = Duration::from_secs(120);
/// The most time that starting, counting and stopping take.
const MARGIN: Duration = Duration::from_secs(120);
/// How often the bar moves.
const BAR_EVERY: Duration = Duration::from_secs(1);

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.25..=240.0).contains(&minutes) {
        Ok(minutes)
    } else {
        Err("not in 0.25..=240".to_owned())
    }
}

impl Drill {
    /// Runs the drill.
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let limit = self.time() + END_LIMIT + MARGIN;
        let report = run_to_end(runtime, async {
            tokio::select! {
                report = tokio::time::timeout(limit, self.play()) => {
                    report.context("the drill did not come to an end")?
                }
                interrupted = tokio::signal::ctrl_c() => {
                    interrupted?;
                    bail!("interrupted")
                }
            }
        })?;
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            report.write(&mut io::stdout().lock())?;
        }
        Ok(if report.kept() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }

    fn faults(&self) -> &[Fault] {
        if self.faults.is_empty() { &Fault::ALL } else { &self.faults }
    }

    async fn play(&self) -> anyhow::Result<Report> {
        let seed = self.seed.unwrap_or_else(|| rand::random::<u64>() >> 16);
        let plan = plan::plan(seed, self.tasks, self.time());
        let faults_end = self.time().mul_f64(1.0 - CALM_SHARE);
        let schedule = schedule::schedule(seed, self.faults(), self.workers, WARM_UP, faults_end);
        let bar = self.bar();
        bar.set_message(format!("seed {seed}: starting private servers …"));
        let ground = Arc::new(Ground::prepare(self.workers).await?);
        let fleet = Fleet::start(&ground, self.workers)?;
        let recovery = Arc::new(Recovery::default());
        let striker =
            Arc::new(Striker::new(Arc::clone(&ground), Arc::clone(&fleet), Arc::clone(&recovery)));
        let start = Instant::now();
        let working = async {
            tokio::try_join!(
                producer::produce(&ground, &plan, start),
                Arc::clone(&striker).strike_all(schedule, start)
            )?;
            self.until_all_ended(&ground).await
        };
        tokio::select! {
            ended = working => ended?,
            tended = fleet.tend() => tended?,
            () = recovery.watch(&ground, &fleet) => {}
            () = show(&bar, &ground, &striker) => {}
        }
        bar.set_message("all is enqueued and struck; counting …");
        let left = tokio::select! {
            left = Left::after_tidying(&ground) => left?,
            tended = fleet.tend() => { tended?; Left::default() }
        };
        fleet.stop();
        fleet.tend().await?;
        let count = Count::take(&ground, &plan, self.workers).await?;
        let mut report = Report { seed, seconds: start.elapsed().as_secs_f64(), ..self.head() };
        fill(&mut report, &plan, &count, &left);
        fill_times(&mut report, &striker, &ground);
        report.judge(self.faults().contains(&Fault::Kill));
        bar.finish_and_clear();
        let slowest = recovery.measured().slowest;
        drop(striker);
        if self.keep || !report.kept() {
            evidence::write(&ground, &report, &count.suspects, &left.locks, &slowest).await?;
            let mut ground = Arc::into_inner(ground).context("the drill is over")?;
            eprintln!("logs, journal and evidence are in {}", ground.keep().display());
        }
        Ok(report)
    }

    fn head(&self) -> Report {
        Report { workers: self.workers, enqueued: self.tasks, ..Report::default() }
    }

    fn bar(&self) -> ProgressBar {
        let target =
            if self.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = ProgressStyle::with_template("{elapsed_precise} {bar:30} {pos}/{len} {msg}");
        ProgressBar::with_draw_target(Some(u64::from(self.tasks)), target)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }

    /// Waits until every task has ended, or as long as that may take: what has not is lost.
    async fn until_all_ended(&self, ground: &Ground) -> anyhow::Result<()> {
        let start = Instant::now();
        while start.elapsed() < END_LIMIT {
            // A question that meets a pool with broken connections is asked again.
            let ended = count::statuses(ground).await.map_or(0, |statuses| {
                ["succeeded", "failed", "dead"]
                    .iter()
                    .filter_map(|status| statuses.get(*status))
                    .sum()
            });
            if ended >= self.tasks {
                break;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        Ok(())
    }
}

/// Moves the bar; never ends.
async fn show(bar: &ProgressBar, ground: &Ground, striker: &Striker) {
    loop {
        tokio::time::sleep(BAR_EVERY).await;
        if bar.is_hidden() {
            continue;
        }
        if let Ok(statuses) = count::statuses(ground).await {
            let of = |status: &str| u64::from(statuses.get(status).copied().unwrap_or(0));
            bar.set_position(of("succeeded") + of("failed") + of("dead"));
        }
        let faults: Vec<String> =
            striker.tally().faults.iter().map(|(name, count)| format!("{name} {count}")).collect();
        bar.set_message(faults.join(", "));
    }
}

fn fill(report: &mut Report, plan: &[PlannedTask], count: &Count, left: &Left) {
    report.planned_failures = u32::try_from(plan.iter().filter(|task| task.for_good).count())
        .expect("no more than tasks");
    report.succeeded = count.succeeded;
    report.failed = count.failed;
    report.dead = count.dead;
    report.lost = report.enqueued.saturating_sub(count.succeeded + count.failed + count.dead);
    report.duplicate_effects = count.duplicate_effects;
    report.effects_amiss = count.effects_amiss;
    report.fence_inversions = count.fence_inversions;
    report.wrong_ends = count.wrong_ends;
    report.wrong_attempts = count.wrong_attempts;
    report.external_reruns = count.external_reruns;
    report.stale_refused_by_receiver = count.refused_by_receiver;
    report.stale_refused_by_ledger = count.refused_by_ledger;
    report.worker_panics = count.worker_panics;
    report.zombie_locks = left.locks.len() as u64;
    report.stream_length = left.stream_length;
    report.pending = left.pending;
    report.consumers = left.consumers;
}

fn fill_times(report: &mut Report, striker: &Striker, ground: &Ground) {
    let tally = striker.tally().clone();
    report.faults = tally.faults;
    if ground.proxy.dropped() > 0 {
        report.faults.insert(Fault::DropAck.name(), ground.proxy.dropped());
    }
    report.process_kills = report.faults.get(Fault::Kill.name()).copied().unwrap_or(0);
    report.spared = tally.spared;
    report.missed = tally.missed;
    let measured = striker.recovery.measured();
    report.kills_with_tasks = measured.kills;
    report.kills_left_out = measured.kills_left_out;
    report.recoveries = measured.seconds.len();
    report.recovery_p50 = percentile(&measured.seconds, 0.5);
    report.recovery_p99 = percentile(&measured.seconds, 0.99);
    report.recovery_max = measured.seconds.last().copied();
    report.recoveries_killed_twice = measured.killed_twice;
    report.recovery_slowness_max = measured.slowness_max;
    report.recoveries_late = measured
        .late
        .iter()
        .map(|(task, took, allowed)| format!("{task} after {took:.2} s, over {allowed:.2} s"))
        .collect();
    report.suspects = measured.suspects;
    report.suspect_wait_max = (measured.suspects > 0).then_some(measured.suspect_max);
    let record = striker.fleet.record().clone();
    report.drains = record.drains.len();
    report.drain_max = record.drains.iter().max().map(Duration::as_secs_f64);
    report.bad_ends = record.bad_ends;
}

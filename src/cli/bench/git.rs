//! Commits per second: git itself, the engine alone, the whole path in batches and one by one.
//!
//! All on one history and in one run, so that the ratios hold on any machine. Merges are left out,
//! since each of the programs compares them with something else, or not at all. PyDriller is measured
//! where python3 has it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::servers::Servers;
use super::throughput::{Load, start, stop};
use super::{median, ratio};
use crate::cli::invented;
use crate::handler::git::results::{Place, Results};
use crate::handler::git::{Engine, GitEngine, GitOptions, Mirror, ObjectId, Payload, SourcePolicy};
use crate::handler::git::{GitMirrors, Mirrors, Profile, Selection, Source};
use crate::queue::codec::NewTask;

/// Commits of the invented history.
const COMMITS: u32 = 10_000;
/// Of these, analysed one by one.
const SINGLY: usize = 2_000;
/// Commits of one call of the engine.
const BATCH: usize = 256;
/// Results under way.
const UNDER_WAY: usize = 64;
/// A measurement that makes no progress for this long is broken.
const STALLED: Duration = Duration::from_secs(60);
/// How often the results are counted, which costs the database something.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// PyDriller is looked at for this long.
const PYDRILLER_TIME: &str = "15";
/// A beginning of what PyDriller is given takes each of so many commits.
const STRIDE: usize = 97;
/// What a mirror is walked from.
const REACHED: [&str; 2] = ["--glob=refs/qw/heads/*", "--glob=refs/qw/tags/*"];

/// Commits per second; what was not measured is null.
#[derive(Debug, Default, Serialize)]
pub(super) struct GitFigures {
    commits: u64,
    cores: usize,
    git_log_per_s: Option<f64>,
    engine_per_s: Option<f64>,
    /// Engine to git log.
    engine_ratio: Option<f64>,
    /// The whole path, on all cores.
    batches_per_s: Option<f64>,
    batches_per_core_s: Option<f64>,
    singly_per_s: Option<f64>,
    singly_per_core_s: Option<f64>,
    pydriller_per_s: Option<f64>,
    /// The whole path in batches to PyDriller, per core.
    pydriller_ratio: Option<f64>,
    /// Resident memory of the largest git child of the engine, in MiB.
    child_rss_mb: Option<f64>,
}

/// The goals, as [`super::GOALS`].
pub(super) const GOALS: [(&str, f64, bool); 5] = [
    ("engine_ratio", 0.9, true),
    ("batches_per_core_s", 300.0, true),
    ("singly_per_core_s", 100.0, true),
    ("pydriller_ratio", 3.0, true),
    ("child_rss_mb", 128.0, false),
];

/// A history to measure on.
struct Ground {
    _folder: tempfile::TempDir,
    /// Where a worker clones it from.
    origin: String,
    git_dir: PathBuf,
    mirror: Mirror,
    commits: Vec<ObjectId>,
}

/// Measures on the repository at `path`, or on an invented one.
pub(super) async fn measure(
    path: Option<&Path>,
    rounds: u32,
    scale: f64,
    say: impl Fn(&str),
) -> anyhow::Result<GitFigures> {
    say("a history …");
    let ground = Ground::new(path, scale).await?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let engine = GitEngine::new(&GitOptions::new("/nonexistent")).await?;
    let (mut logs, mut engines) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        say(&format!("git log and the engine, round {round} of {rounds} …"));
        logs.push(git_log(&ground, engine.profile()).await?);
        engines.push(engine_alone(&engine, &ground).await?);
    }
    engine.close_idle().await;
    say("PyDriller …");
    let pydriller = pydriller(&ground).await;
    say("starting private servers …");
    let servers = Servers::start().await?;
    let (mut batches, mut singly) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        say(&format!("the whole path, round {round} of {rounds} …"));
        batches.push(whole_path(&servers, &ground, &ground.commits, BATCH / 4).await?);
        let few = &ground.commits[..ground.commits.len().min(SINGLY)];
        singly.push(whole_path(&servers, &ground, few, 1).await?);
    }
    let (log, engine_rate) = (median(logs), median(engines));
    let (batches, singly) = (median(batches), median(singly));
    #[expect(clippy::cast_precision_loss, reason = "a number of cores, or of bytes")]
    let per_core = |rate: Option<f64>| rate.map(|rate| rate / cores as f64);
    #[expect(clippy::cast_precision_loss, reason = "a number of bytes")]
    let peak = engine.peak_memory() as f64 / (1024.0 * 1024.0);
    Ok(GitFigures {
        commits: ground.commits.len() as u64,
        cores,
        git_log_per_s: log,
        engine_per_s: engine_rate,
        engine_ratio: ratio(engine_rate, log),
        batches_per_s: batches,
        batches_per_core_s: per_core(batches),
        singly_per_s: singly,
        singly_per_core_s: per_core(singly),
        pydriller_per_s: pydriller,
        pydriller_ratio: ratio(per_core(batches), pydriller),
        child_rss_mb: Some(peak),
    })
}

impl Ground {
    async fn new(path: Option<&Path>, scale: f64) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let origin = if let Some(path) = path {
            path.canonicalize().with_context(|| format!("find {}", path.display()))?
        } else {
            let git_dir = folder.path().join("invented.git");
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a scaled count of commits fits"
            )]
            let commits = (f64::from(COMMITS) * scale).max(200.0) as usize;
            let made = git_dir.clone();
            tokio::task::spawn_blocking(move || invented::repository(&made, commits)).await??;
            git_dir
        };
        let mut options = GitOptions::new(folder.path().join("mirrors"));
        options.sources = local();
        let url = origin.to_str().context("the path is not UTF-8")?;
        let source = Source::new("bench", url, &options.sources)?;
        let mirrors = GitMirrors::new(&options).await?;
        let mirror = mirrors.refresh(&source).await?;
        let git_dir = mirror.git_dir().to_owned();
        let merges = merges(&git_dir).await?;
        let mut commits = mirrors.list(&mirror, &Selection::All).await?;
        commits.retain(|commit| !merges.contains(commit));
        if commits.is_empty() {
            bail!("{} has no commits", origin.display());
        }
        let origin = url.to_owned();
        Ok(Self { _folder: folder, origin, git_dir, mirror, commits })
    }

    fn rate(&self, started: Instant) -> f64 {
        per_second(self.commits.len(), started)
    }
}

fn local() -> SourcePolicy {
    let trusted_paths = vec!["*".into()];
    SourcePolicy { protocols: vec!["file".to_owned()], hosts: None, trusted_paths }
}

#[expect(clippy::cast_precision_loss, reason = "a count of commits")]
fn per_second(commits: usize, started: Instant) -> f64 {
    commits as f64 / started.elapsed().as_secs_f64()
}

async fn merges(git_dir: &Path) -> anyhow::Result<HashSet<ObjectId>> {
    let mut command = Command::from(invented::command(Some(git_dir)));
    command.args(["rev-list", "--merges"]).args(REACHED);
    let output = command.output().await?;
    if !output.status.success() {
        bail!("git rev-list ended with {}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?.lines().filter_map(|line| line.parse().ok()).collect())
}

/// What a person would type, and no larger file looked into than by the engine.
async fn git_log(ground: &Ground, profile: &Profile) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut command = Command::from(invented::command(Some(&ground.git_dir)));
    command.args(["-c", &format!("core.bigFileThreshold={}", profile.big_file_threshold)]);
    command.args(["log", "--numstat", "-M", "--no-textconv", "--no-ext-diff", "--format=%H"]);
    command.arg("--no-merges").args(REACHED);
    let status = command.stdout(Stdio::null()).status().await?;
    if !status.success() {
        bail!("git log ended with {status}");
    }
    Ok(ground.rate(started))
}

async fn engine_alone(engine: &GitEngine, ground: &Ground) -> anyhow::Result<f64> {
    let started = Instant::now();
    let (sender, mut receiver) = mpsc::channel(UNDER_WAY);
    let analyse = async move {
        for batch in ground.commits.chunks(BATCH) {
            engine.analyse(&ground.mirror, batch, &sender).await;
        }
    };
    let count = async {
        let mut analysed = 0;
        while let Some(one) = receiver.recv().await {
            analysed += usize::from(one.outcome.analysis().is_some());
        }
        analysed
    };
    let ((), analysed) = tokio::join!(analyse, count);
    if analysed < ground.commits.len() {
        bail!("only {analysed} of {} commits could be analysed", ground.commits.len());
    }
    Ok(ground.rate(started))
}

/// Tasks in the stream, a worker, rows in the database; from the first that is there to the last.
async fn whole_path(
    servers: &Servers,
    ground: &Ground,
    commits: &[ObjectId],
    batch: usize,
) -> anyhow::Result<f64> {
    let name = format!("bench-{}", uuid::Uuid::new_v4());
    let mut redis = servers.redis().await?;
    for part in commits.chunks(batch) {
        let payload = Payload::of_commits(&name, &ground.origin, part);
        let kind = Load::Git.kind().parse()?;
        let mut command = redis::cmd("XADD");
        command.arg(super::servers::STREAM).arg("*");
        for (field, value) in NewTask::new(kind, payload).encode().fields {
            command.arg(&field[..]).arg(&value[..]);
        }
        command.query_async::<()>(&mut redis).await?;
    }
    let results = Results::new(&servers.database.parse()?, None, 1);
    let worker = start(servers, Load::Git)?;
    let rate = until_done(&results, &name, commits.len()).await;
    stop(worker).await?;
    rate
}

async fn until_done(results: &Results, name: &str, commits: usize) -> anyhow::Result<f64> {
    let mut place: Option<Place> = None;
    let mut first: Option<(Instant, u64)> = None;
    let mut last_progress = (Instant::now(), 0);
    loop {
        if place.is_none() {
            place = results.find(name, None).await?;
        }
        let done = match place {
            Some(place) => results.progress(place).await?.succeeded,
            None => 0,
        };
        let now = Instant::now();
        if done > last_progress.1 {
            last_progress = (now, done);
            first.get_or_insert((now, done));
        } else if now - last_progress.0 > STALLED {
            bail!("no progress at {done} of {commits} commits");
        }
        if let (true, Some((started, before))) = (done >= commits as u64, first) {
            let counted = usize::try_from(done - before)?;
            // What was done before the first look says nothing.
            if counted * 2 < commits {
                bail!("{commits} commits are too few to measure a rate");
            }
            return Ok(per_second(counted, started));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The loop over added and deleted lines that its manual shows, over commits from all of the history
/// for as long as it may take; `None` where it is not installed.
async fn pydriller(ground: &Ground) -> Option<f64> {
    const LOOP: &str = "
import sys, time
from pydriller import Git
git, ids = Git(sys.argv[1]), sys.stdin.read().split()
start, count = time.monotonic(), 0
for id in ids:
    for file in git.get_commit(id).modified_files:
        file.added_lines, file.deleted_lines
    count += 1
    if time.monotonic() - start > float(sys.argv[2]):
        break
print(count / (time.monotonic() - start))
";
    // It needs a branch under its usual name.
    let folder = tempfile::tempdir().ok()?;
    let copy = folder.path().join("copy.git");
    let mut clone = Command::from(invented::command(None));
    clone.args(["init", "--quiet", "--bare", "--template="]).arg(&copy);
    clone.status().await.ok()?.success().then_some(())?;
    let mut fetch = Command::from(invented::command(Some(&copy)));
    fetch.args(["fetch", "--quiet"]).arg(&ground.git_dir);
    fetch.args(["refs/qw/heads/*:refs/heads/*", "refs/qw/tags/*:refs/tags/*"]);
    fetch.stderr(Stdio::null()).status().await.ok()?.success().then_some(())?;
    let mut head = Command::from(invented::command(Some(&copy)));
    head.args(["for-each-ref", "--count=1", "--format=%(refname)", "refs/heads"]);
    let name = String::from_utf8(head.output().await.ok()?.stdout).ok()?;
    let mut set = Command::from(invented::command(Some(&copy)));
    set.args(["symbolic-ref", "HEAD", name.trim()]).status().await.ok()?;
    let mut python = Command::new("python3");
    python.args(["-c", LOOP]).arg(&copy).arg(PYDRILLER_TIME);
    python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut python = python.spawn().ok()?;
    let ids: Vec<String> = spread(&ground.commits).map(|id| id.to_string()).collect();
    python.stdin.take()?.write_all(ids.join("\n").as_bytes()).await.ok()?;
    let output = python.wait_with_output().await.ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// All of them in an order of which every beginning is spread over the whole.
fn spread(commits: &[ObjectId]) -> impl Iterator<Item = ObjectId> {
    (0..STRIDE).flat_map(|from| commits.iter().skip(from).step_by(STRIDE)).copied()
}

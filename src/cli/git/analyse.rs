//! `queue-worker git analyse`: a whole history, enqueued and waited for.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::{own_program, shell_word, stores};
use super::follow::{LOOK_EVERY, handler, queue, until_done};
use super::report::tables;
use crate::config::Config;
use crate::domain::{Kind, QueueName, TaskId};
use crate::handler::git::results::{Place, Progress, Report, Results, Scope};
use crate::handler::git::{InvalidSource, Payload, Source};
use crate::ledger::{PostgresLedger, Status};
use crate::queue::Queue as _;
use crate::queue::codec::NewTask;
use crate::supervisor::{git_options, git_report_results};

/// After this long without a worker that took the task, that is said.
const QUIET: Duration = Duration::from_secs(10);
/// Rows of the summary.
const SHOWN: u32 = 10;

/// Analyse a whole history, and wait for it
///
/// Enqueues one task, which a worker cuts into tasks of some commits each. Commits that are known
/// already are not analysed again. Interrupting this command stops nothing but the waiting.
#[derive(Debug, clap::Args)]
pub(super) struct Analyse {
    /// Where the repository is: a URL, or a path on the worker's machine
    #[arg(value_name = "URL|PATH")]
    source: String,
    /// The name of the results; default: from the URL or the path
    #[arg(long)]
    name: Option<String>,
    /// Only a range: FROM..TO, or what TO reaches; full ids, branches or tags
    #[arg(long, value_name = "RANGE")]
    range: Option<String>,
    /// The kind of task; default: the only handler of type "git-analysis"
    #[arg(long)]
    kind: Option<Kind>,
    /// The queue; default: the first of the configuration
    #[arg(long)]
    queue: Option<QueueName>,
    /// Do not wait
    #[arg(long)]
    no_wait: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What the first task has found.
struct History {
    commits: u64,
    tasks: u64,
    place: Option<Place>,
}

impl Analyse {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<ExitCode> {
        let (kind, settings, timeout) = handler(config, self.kind.as_ref())?;
        let queue = queue(config, self.queue.as_ref())?;
        let (url, name) = located(&self.source)?;
        let name = self.name.clone().unwrap_or(name);
        let policy = git_options(settings, timeout, config).sources;
        let source = Source::new(&name, &url, &policy).map_err(|error| refused(&error, kind))?;
        let payload = match &self.range {
            Some(range) => Payload::of_range(source.name(), source.url(), range),
            None => Payload::of_all(source.name(), source.url()),
        };
        Payload::parse(payload.as_bytes())?;
        let ledger = stores::ledger(config).await?;
        let task = NewTask::new(kind.clone(), payload);
        let id = task.id.clone();
        stores::queues(config)?.append(&queue, &task.encode()).await?;
        if self.no_wait {
            println!("{id}");
            return Ok(ExitCode::SUCCESS);
        }
        let results = git_report_results(config).context("postgres.url")?;
        let started = Instant::now();
        let history = self.history(&ledger, &results, &id, &name).await?;
        let progress = match history.place {
            Some(place) => until_done(&results, place, self.json).await?,
            None => Progress::default(),
        };
        self.show(&name, &history, progress, &results, started).await?;
        Ok(if progress.open > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn say(&self, line: &str) {
        if !self.json {
            eprintln!("{line}");
        }
    }

    /// Waits for the task that reads the history.
    async fn history(
        &self,
        ledger: &PostgresLedger,
        results: &Results,
        id: &TaskId,
        name: &str,
    ) -> anyhow::Result<History> {
        self.say(&format!("task {id}: fetching {name} …"));
        let started = Instant::now();
        let mut is_told = false;
        let said = loop {
            let task = ledger.task(id.as_str()).await?;
            match task.as_ref().map(|task| task.status) {
                Some(Status::Succeeded) => {
                    let result = task.and_then(|task| task.result).unwrap_or_default();
                    break serde_json::from_slice::<Value>(&result)
                        .context("the task's result is not JSON")?;
                }
                Some(Status::Failed | Status::Dead) => {
                    let error = task.and_then(|task| task.error).unwrap_or_default();
                    bail!("the history cannot be read: {error}");
                }
                None if !is_told && started.elapsed() > QUIET => {
                    is_told = true;
                    self.say("no worker has taken the task yet; does one serve this queue?");
                }
                Some(Status::Running | Status::Released | Status::Delayed) | None => {}
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        let number = |name: &str| said[name].as_u64().unwrap_or(0);
        let place = results.find(name, said["profile"].as_str()).await?;
        Ok(History { commits: number("commits"), tasks: number("tasks"), place })
    }

    async fn show(
        &self,
        name: &str,
        history: &History,
        progress: Progress,
        results: &Results,
        started: Instant,
    ) -> anyhow::Result<()> {
        let seconds = started.elapsed().as_secs_f64();
        if self.json {
            let said = json!({
                "repository": name,
                "commits": history.commits,
                "tasks": history.tasks,
                "analysed": progress.succeeded,
                "refused": progress.refused,
                "abandoned": progress.abandoned,
                "seconds": (seconds * 1000.0).round() / 1000.0,
            });
            println!("{said}");
            return Ok(());
        }
        println!(
            "{name}: {} commits in {} tasks, {seconds:.1} s; {} analysed, {} refused in all",
            history.commits, history.tasks, progress.succeeded, progress.refused
        );
        if progress.abandoned > 0 {
            println!("{} are left over from tasks that failed:", progress.abandoned);
            println!("    {} dead list", own_program()?.display());
        }
        let Some(place) = history.place else { return Ok(()) };
        let mut grids = Vec::new();
        for report in [Report::Summary, Report::Authors] {
            let grid = results.report(report, Scope { place, limit: SHOWN }).await?;
            grids.push((report.name(), grid));
        }
        println!();
        tables(&mut io::stdout().lock(), &grids)?;
        println!("\nmore: queue-worker git report {}", shell_word(Path::new(name)));
        Ok(())
    }
}

/// The URL, and the name that follows from it.
fn located(source: &str) -> anyhow::Result<(String, String)> {
    let path = Path::new(source);
    if path.exists() || source.starts_with(['/', '.']) {
        let path = path.canonicalize().with_context(|| format!("find {source}"))?;
        let named = match (path.file_name(), path.parent()) {
            (Some(name), Some(parent)) if name == ".git" => parent.file_name(),
            (name, _) => name,
        };
        let name = named.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let url = path.to_str().with_context(|| format!("{source} is not UTF-8"))?;
        return Ok((url.to_owned(), short(&name)));
    }
    let path = match url::Url::parse(source) {
        Ok(url) if url.has_host() => url.path().to_owned(),
        // user@host:path
        Ok(_) | Err(_) => source.split_once(':').map_or(source, |(_, path)| path).to_owned(),
    };
    Ok((source.to_owned(), short(&path)))
}

fn short(name: &str) -> String {
    let name = name.trim_matches('/');
    name.strip_suffix(".git").unwrap_or(name).to_owned()
}

fn refused(error: &InvalidSource, kind: &Kind) -> anyhow::Error {
    let remedy = match error {
        InvalidSource::Protocol(protocol) => {
            format!("; add \"{protocol}\" to handler.{kind}.protocols")
        }
        InvalidSource::Host(_) => format!("; see handler.{kind}.hosts"),
        InvalidSource::Name => "; give another with --name".to_owned(),
        InvalidSource::Form | InvalidSource::Credentials => String::new(),
    };
    anyhow::anyhow!("{error}{remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_where_a_repository_is() {
        for (source, name) in [
            ("https://example.org/owner/name.git", "owner/name"),
            ("ssh://git@example.org:22/owner/name", "owner/name"),
            ("git@example.org:owner/name.git", "owner/name"),
            ("https://example.org/name/", "name"),
        ] {
            assert_eq!(located(source).unwrap(), (source.to_owned(), name.to_owned()));
        }
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("project.git");
        std::fs::create_dir(&inner).unwrap();
        let (url, name) = located(inner.to_str().unwrap()).unwrap();
        assert_eq!((Path::new(&url), &*name), (&*inner.canonicalize().unwrap(), "project"));
        std::fs::create_dir(inner.join(".git")).unwrap();
        assert_eq!(located(inner.join(".git").to_str().unwrap()).unwrap().1, "project");
        assert!(located("/nonexistent/x").is_err());
    }
}

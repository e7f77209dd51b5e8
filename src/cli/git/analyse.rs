//! `queue-worker git analyse`: a whole history, enqueued and waited for.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::json;
use tokio::time::Instant;

use super::super::{own_program, shell_word, stores};
use super::follow::{Follower, handler, queue};
use super::report::tables;
use crate::config::Config;
use crate::domain::{EntryId, Kind, QueueName, TaskId};
use crate::handler::git::results::{Place, Progress, Report, Results, Scope};
use crate::handler::git::{InvalidSource, Made, Payload, Source};
use crate::queue::Queue as _;
use crate::queue::codec::NewTask;
use crate::supervisor::{git_options, git_report_results};

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

/// What became of it all.
struct End {
    made: Made,
    place: Option<Place>,
    /// Of the whole repository.
    progress: Progress,
    /// Commits that the tasks of this call have left over.
    left: u64,
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
        let stream = stores::queues(config)?;
        let entry = stream.append(&queue, &task.encode()).await?;
        if self.no_wait {
            println!("{id}");
            return Ok(ExitCode::SUCCESS);
        }
        let results = git_report_results(config).context("postgres.url")?;
        let started = Instant::now();
        let follower =
            Follower { ledger: &ledger, stream: &stream, queue: &queue, is_quiet: self.json };
        follower.say(&format!("task {id}: fetching {name} …"));
        let made = made(&follower, &id, entry).await?;
        if made.tasks > made.ids.len() {
            follower.say(&format!("{} tasks are too many to wait for here", made.tasks));
        }
        let failed = follower.until_ended(made.ids.clone(), made.newest).await?;
        let place = results.find(&name, Some(&made.profile)).await?;
        let (progress, left) = match place {
            Some(place) => (results.progress(place).await?, results.left_by(place, &failed).await?),
            None => (Progress::default(), 0),
        };
        self.show(&name, &End { made, place, progress, left }, &results, started).await?;
        Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn show(
        &self,
        name: &str,
        end: &End,
        results: &Results,
        started: Instant,
    ) -> anyhow::Result<()> {
        let End { made, place, progress, left } = end;
        let seconds = started.elapsed().as_secs_f64();
        if self.json {
            let said = json!({
                "repository": name,
                "commits": made.commits,
                "tasks": made.tasks,
                "analysed": progress.succeeded,
                "refused": progress.refused,
                "abandoned": left,
                "seconds": (seconds * 1000.0).round() / 1000.0,
            });
            println!("{said}");
            return Ok(());
        }
        println!(
            "{name}: {} commits in {} tasks, {seconds:.1} s; {} analysed, {} refused in all",
            made.commits, made.tasks, progress.succeeded, progress.refused
        );
        if *left > 0 {
            let program = own_program()?;
            println!("{left} are left over from tasks that failed; why, and once more:");
            println!("    {} dead list", program.display());
            println!("    {} git retry {}", program.display(), shell_word(Path::new(name)));
        }
        let Some(place) = *place else { return Ok(()) };
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

/// Waits for the task that reads the history.
async fn made(follower: &Follower<'_>, id: &TaskId, entry: EntryId) -> anyhow::Result<Made> {
    let failed = follower.until_ended(vec![id.to_string()], Some(entry)).await?;
    let task = follower.ledger.task(id.as_str()).await?;
    if failed.is_empty() {
        let result = task.and_then(|task| task.result).unwrap_or_default();
        return Made::from_json(&result).context("the task's result is not that of a history");
    }
    match task {
        Some(task) => bail!("the history cannot be read: {}", task.error.unwrap_or_default()),
        None => bail!("the task {id} was lost with what Redis held"),
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

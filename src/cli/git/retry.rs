//! `queue-worker git retry`: once more what was refused, after the cause was mended.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::builder::PossibleValuesParser;
use futures_util::future::try_join_all;
use serde_json::json;

use super::super::stores;
use super::follow::{handler, queue, until_done};
use crate::config::Config;
use crate::domain::{Kind, QueueName};
use crate::handler::git::{Payload, Refusal};
use crate::queue::Queue as _;
use crate::queue::codec::NewTask;
use crate::supervisor::git_report_results;

/// Entries on their way to Redis at once.
const UNDER_WAY: usize = 100;

/// Analyse commits again that were refused, or whose tasks have failed
///
/// For after the cause was mended: access that was denied, a repository that was damaged. A commit
/// that was analysed stays as it is.
#[derive(Debug, clap::Args)]
pub(super) struct Retry {
    /// The repository's name
    repo: String,
    /// Only those refused under this name; may be given several times
    #[arg(long, value_name = "CODE", value_parser = codes())]
    code: Vec<String>,
    /// The rules of the results, by their digest; default: the newest
    #[arg(long, value_name = "DIGEST")]
    profile: Option<String>,
    /// The kind of task; default: the only handler of type "git-analysis"
    #[arg(long)]
    kind: Option<Kind>,
    /// The queue; default: the first of the configuration
    #[arg(long)]
    queue: Option<QueueName>,
    /// Commits of each task; 1 keeps one that brings its worker down from taking others along
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: Option<u16>,
    /// Do not wait
    #[arg(long)]
    no_wait: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn codes() -> PossibleValuesParser {
    Refusal::ALL.map(Refusal::as_str).into()
}

impl Retry {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<ExitCode> {
        let (kind, settings, _) = handler(config, self.kind.as_ref())?;
        let queue = queue(config, self.queue.as_ref())?;
        let results = git_report_results(config).context("postgres.url")?;
        let Some(place) = results.find(&self.repo, self.profile.as_deref()).await? else {
            bail!("nothing is known of a repository {:?}; see git report", self.repo);
        };
        let stream = stores::queues(config)?;
        stream.check().await?;
        let (name, url) = results.source(place).await?;
        let codes = Some(self.code.as_slice()).filter(|codes| !codes.is_empty());
        let commits = results.reopen(place, codes).await?;
        let entries: Vec<_> = commits
            .chunks(self.batch.map_or(settings.batch, usize::from).max(1))
            .map(|part| NewTask::new(kind.clone(), Payload::of_commits(&name, &url, part)).encode())
            .collect();
        for part in entries.chunks(UNDER_WAY) {
            try_join_all(part.iter().map(|entry| stream.append(&queue, entry))).await?;
        }
        if self.no_wait || commits.is_empty() {
            self.say(commits.len(), None);
            return Ok(ExitCode::SUCCESS);
        }
        let progress = until_done(&results, place, self.json).await?;
        self.say(commits.len(), Some(progress.refused));
        Ok(if progress.open > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn say(&self, commits: usize, refused: Option<u64>) {
        if self.json {
            println!("{}", json!({"commits": commits, "refused": refused}));
            return;
        }
        match refused {
            Some(refused) => println!("{commits} commits tried again, {refused} refused in all"),
            None => println!("{commits} commits to be tried again"),
        }
    }
}

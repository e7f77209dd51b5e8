//! `queue-worker git retry`: once more what was refused, after the cause was mended.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::builder::PossibleValuesParser;
use futures_util::future::try_join_all;
use serde_json::json;

use super::super::stores;
use super::follow::{Follower, handler, queue};
use crate::config::Config;
use crate::domain::{EntryId, Kind, QueueName};
use crate::handler::git::results::Reopen;
use crate::handler::git::{ObjectId, Payload, Refusal};
use crate::queue::codec::NewTask;
use crate::queue::{Queue as _, RedisQueue};
use crate::supervisor::git_report_results;

/// Entries on their way to Redis at once.
const UNDER_WAY: usize = 100;

/// Analyse commits again that were refused, or whose tasks have failed
///
/// For after the cause was mended: access that was denied, a repository that was damaged, a task that
/// was lost. A commit that was analysed stays as it is, unless its lines were not counted and that is
/// asked for.
#[derive(Debug, clap::Args)]
pub(super) struct Retry {
    /// The repository's name
    repo: String,
    /// Only those refused under this name; may be given several times
    #[arg(long, value_name = "CODE", value_parser = codes())]
    code: Vec<String>,
    /// Also those whose lines were not counted (flag 32), as when the kernel was short of memory; what
    /// is known of them is gone until they are analysed again
    #[arg(long)]
    truncated: bool,
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
        let ledger = stores::ledger(config).await?;
        let stream = stores::queues(config)?;
        stream.check().await?;
        let (name, url) = results.source(place).await?;
        let queues = config.queues.iter().map(|queue| &queue.name).chain([&queue]);
        let which = Reopen {
            codes: Some(self.code.as_slice()).filter(|codes| !codes.is_empty()),
            truncated: self.truncated,
            oldest_ms: oldest(&stream, queues).await?.and_then(|entry| entry.ms.try_into().ok()),
        };
        let commits = results.reopen(place, which).await?;
        let batch = self.batch.map_or(settings.batch, usize::from).max(1);
        let payload = |part| Payload::of_commits(&name, &url, part);
        let tasks: Vec<(NewTask, &[ObjectId])> = commits
            .chunks(batch)
            .map(|part| (NewTask::new(kind.clone(), payload(part)), part))
            .collect();
        let mut newest = None;
        for part in tasks.chunks(UNDER_WAY) {
            let entries: Vec<_> = part.iter().map(|(task, _)| task.encode()).collect();
            let added = entries.iter().map(|entry| stream.append(&queue, entry));
            newest = try_join_all(added).await?.into_iter().max().max(newest);
        }
        let theirs: Vec<(ObjectId, &str)> = tasks
            .iter()
            .flat_map(|(task, part)| part.iter().map(|commit| (*commit, task.id.as_str())))
            .collect();
        results.hand_on(place, &theirs, None).await?;
        if self.no_wait || commits.is_empty() {
            self.say(commits.len(), None);
            return Ok(ExitCode::SUCCESS);
        }
        let follower =
            Follower { ledger: &ledger, stream: &stream, queue: &queue, is_quiet: self.json };
        let ids = tasks.iter().map(|(task, _)| task.id.to_string()).collect();
        let failed = follower.until_ended(ids, newest).await?;
        self.say(commits.len(), Some(results.progress(place).await?.refused));
        Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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

/// The oldest entry of all queues.
async fn oldest(
    stream: &RedisQueue,
    queues: impl Iterator<Item = &QueueName>,
) -> anyhow::Result<Option<EntryId>> {
    let oldest = try_join_all(queues.map(|queue| stream.oldest(queue))).await?;
    Ok(oldest.into_iter().flatten().min())
}

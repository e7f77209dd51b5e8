//! What the commands share that make tasks about commits: which handler and queue, and waiting.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use crate::config::{Config, GitSettings, HandlerAction};
use crate::domain::{EntryId, Kind, QueueName};
use crate::ledger::{PostgresLedger, Status};
use crate::queue::RedisQueue;

/// How often tasks are looked at, if that is quick.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// After this long without a worker that took a task, that is said.
const QUIET: Duration = Duration::from_secs(10);
/// Tasks that one question is about.
const ASKED_AT_ONCE: usize = 5_000;

/// The handler of commits: of that kind, or the only one.
pub(super) fn handler<'a>(
    config: &'a Config,
    wanted: Option<&Kind>,
) -> anyhow::Result<(&'a Kind, &'a GitSettings, Duration)> {
    let mut found = config.handlers.iter().filter_map(|(kind, handler)| {
        let HandlerAction::Git(settings) = &handler.action else { return None };
        let is_wanted = wanted.is_none_or(|wanted| wanted == kind);
        is_wanted.then_some((kind, &**settings, handler.common.timeout))
    });
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => bail!("several handlers analyse commits; name one with --kind"),
        (None, _) => bail!(
            "no handler analyses commits; add [handler.commits] with type = \"git-analysis\" \
             to the configuration of the workers and of this command"
        ),
    }
}

/// The queue: the given one, or the first of the configuration.
pub(super) fn queue(config: &Config, given: Option<&QueueName>) -> anyhow::Result<QueueName> {
    let first = || config.queues.first().map(|queue| queue.name.clone());
    given.cloned().or_else(first).context("the configuration has no queue")
}

/// Waits for tasks of one queue.
pub(super) struct Follower<'a> {
    pub(super) ledger: &'a PostgresLedger,
    pub(super) stream: &'a RedisQueue,
    pub(super) queue: &'a QueueName,
    /// Nothing is to be said but the result.
    pub(super) is_quiet: bool,
}

impl Follower<'_> {
    /// Waits until each of `tasks` has ended, and answers those that did not succeed: they failed, are
    /// dead, or were lost. `newest` is the newest of their entries; a task is lost that the ledger does
    /// not know although the stream holds nothing that old any more.
    pub(super) async fn until_ended(
        &self,
        tasks: Vec<String>,
        newest: Option<EntryId>,
    ) -> anyhow::Result<Vec<String>> {
        let bar = self.bar(tasks.len());
        let started = Instant::now();
        let mut is_silent = true;
        let mut open = tasks;
        let mut failed = Vec::new();
        let mut lost = Vec::new();
        while !open.is_empty() {
            let asked = Instant::now();
            // Asked first: who takes an entry off the stream has told the ledger before.
            let has_passed = self.has_passed(newest).await;
            let known = self.statuses(&open).await?;
            open.retain(|id| match known.get(id) {
                Some(Status::Succeeded) => false,
                Some(Status::Failed | Status::Dead) => {
                    failed.push(id.clone());
                    false
                }
                None if has_passed => {
                    lost.push(id.clone());
                    false
                }
                Some(Status::Running | Status::Released | Status::Delayed) | None => true,
            });
            bar.set_position(bar.length().unwrap_or(0).saturating_sub(open.len() as u64));
            if is_silent && (!known.is_empty() || started.elapsed() > QUIET) {
                is_silent = false;
                if known.is_empty() && lost.is_empty() {
                    self.say("no worker has taken a task yet; does one serve this queue?");
                }
            }
            if !open.is_empty() {
                // What takes long is not asked all the time.
                tokio::time::sleep(LOOK_EVERY.max(asked.elapsed() * 5)).await;
            }
        }
        bar.finish_and_clear();
        if !lost.is_empty() {
            self.say(&format!("{} tasks were lost with what Redis held", lost.len()));
        }
        failed.append(&mut lost);
        Ok(failed)
    }

    pub(super) fn say(&self, line: &str) {
        if !self.is_quiet {
            eprintln!("{line}");
        }
    }

    /// Whether nothing is in the stream any more that is as old as that entry.
    async fn has_passed(&self, newest: Option<EntryId>) -> bool {
        let Some(newest) = newest else { return false };
        // A Redis that is away says nothing about what it holds.
        match self.stream.oldest(self.queue).await {
            Ok(oldest) => oldest.is_none_or(|oldest| oldest > newest),
            Err(_) => false,
        }
    }

    async fn statuses(&self, ids: &[String]) -> anyhow::Result<HashMap<String, Status>> {
        let mut known = HashMap::new();
        for part in ids.chunks(ASKED_AT_ONCE) {
            known.extend(self.ledger.statuses(part).await?);
        }
        Ok(known)
    }

    fn bar(&self, tasks: usize) -> ProgressBar {
        if self.is_quiet || tasks < 2 || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} tasks {per_sec} {eta} left");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(tasks as u64).with_style(style)
    }
}

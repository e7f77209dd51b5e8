//! What the commands share that make tasks about commits: which handler and queue, and waiting.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};

use tokio::time::Instant;

use crate::config::{Config, GitSettings, HandlerAction};
use crate::domain::{Kind, QueueName};
use crate::handler::git::results::{Place, Progress, Results};

/// How often the rows are looked at, if that is quick.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

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

/// Waits until every commit of the repository has a result, or nobody works on the rest.
pub(super) async fn until_done(
    results: &Results,
    place: Place,
    is_quiet: bool,
) -> anyhow::Result<Progress> {
    let bar = if is_quiet || !io::stderr().is_terminal() {
        ProgressBar::hidden()
    } else {
        let style =
            ProgressStyle::with_template("{bar:40} {pos}/{len} commits {per_sec} {eta} left {msg}");
        ProgressBar::no_length().with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    };
    let progress = loop {
        let asked = Instant::now();
        let progress = results.progress(place).await?;
        // A large repository is not counted all the time.
        let pause = LOOK_EVERY.max(asked.elapsed() * 5);
        let done = progress.succeeded + progress.refused;
        bar.set_length(done + progress.open);
        bar.set_position(done);
        if progress.refused > 0 {
            bar.set_message(format!("({} refused)", progress.refused));
        }
        if progress.open == progress.abandoned {
            break progress;
        }
        tokio::time::sleep(pause).await;
    };
    bar.finish_and_clear();
    Ok(progress)
}

//! The way down for a commit that a child did not survive, or not in time.
//!
//! First the commit gets a child of its own, so that what the child did before cannot matter; then
//! one that lists paths only; then it is refused. Where the trouble is no monster but a damaged object
//! or somebody's signal, it ends earlier.

use std::time::Duration;

use tokio::time::Instant;

use super::death::{Cause, Death};
use super::differ::{Depth, Differ, NoAnswer, Request};
use super::spawner::Spawner;
use crate::handler::exec::procfs::processor_time;
use crate::handler::git::mirror::Mirror;
use crate::handler::git::outcome::{Outcome, Refusal};
use crate::handler::git::parse::changes::{RawChange, changes};

/// The part of a commit's time after which it is watched how busy its child is.
const WATCHED_FROM: u32 = 8;

/// What went wrong with a commit in one child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// More memory than allowed.
    Memory(String),
    /// More work than the time allows.
    Slow(String),
    /// The result itself is longer than allowed.
    TooLong(String),
    /// A signal ended the child.
    Killed(String),
    /// An object is missing or damaged.
    Corrupt(String),
    /// Anything else, also a child that had no chance to work.
    Other(String),
}

impl From<Death> for Trouble {
    fn from(death: Death) -> Self {
        match death.cause {
            Cause::Memory => Self::Memory(death.detail),
            Cause::Killed => Self::Killed(death.detail),
            Cause::Corrupt => Self::Corrupt(death.detail),
            Cause::Other => Self::Other(death.detail),
        }
    }
}

/// What a commit changed, or how else it ended.
pub(super) type Counted = Result<(Vec<RawChange>, Depth), Outcome>;

/// The answer of a child to its oldest group, no longer than that of a single commit; in trouble the
/// child is gone. Several commits get only a part of the time, since which of them needs more is found
/// out one by one.
pub(super) async fn answer(
    mut differ: Differ,
    group: impl ExactSizeIterator<Item = &Request>,
    spawner: &Spawner,
) -> Result<(Differ, Vec<Vec<RawChange>>), Trouble> {
    let limits = &spawner.limits;
    let started = Instant::now();
    let soon = started + limits.commit_time / WATCHED_FROM;
    let mut busy = None;
    let mut got = differ.answer(limits.output, soon).await;
    if got == Err(NoAnswer::Late) && group.len() == 1 {
        busy = processor_time(differ.child.pid());
        got = differ.answer(limits.output, started + limits.commit_time).await;
    }
    let output = match got {
        Ok(output) => output,
        Err(NoAnswer::Died) => return Err(differ.child.death().await.into()),
        Err(NoAnswer::TooLong) => {
            differ.child.kill().await;
            return Err(Trouble::TooLong(format!("more than {} bytes of changes", limits.output)));
        }
        Err(NoAnswer::Late) => {
            let used = processor_time(differ.child.pid())
                .zip(busy)
                .map(|(now, then)| now.saturating_sub(then));
            differ.child.kill().await;
            return Err(late(limits.commit_time, used.unwrap_or_default()));
        }
    };
    let most = usize::try_from(limits.files).unwrap_or(usize::MAX);
    if output.is_empty() {
        differ.child.kill().await;
        return Err(Trouble::Corrupt("git does not take the object for a commit".to_owned()));
    }
    let trouble = match changes(&output, group.map(|request| &request.commit)) {
        Ok(found) => match found.iter().map(Vec::len).find(|files| *files > most) {
            None => return Ok((differ, found)),
            Some(files) => Trouble::TooLong(format!("{files} changed paths, more than {most}")),
        },
        Err(error) => Trouble::Other(error.to_string()),
    };
    differ.child.kill().await;
    Err(trouble)
}

/// A child that worked was given a monster; one that did not had no processor or disk.
fn late(limit: Duration, used: Duration) -> Trouble {
    let detail = format!("not done within {limit:?}, {used:?} of it at work");
    if used * 2 >= limit.saturating_sub(limit / WATCHED_FROM) {
        Trouble::Slow(detail)
    } else {
        Trouble::Other(detail)
    }
}

/// What becomes of a commit after its first trouble.
pub(super) async fn descend(
    first: Trouble,
    request: &Request,
    spawner: &Spawner,
    mirror: &Mirror,
) -> Counted {
    tracing::debug!(commit = %request.commit, trouble = ?first, "a commit needs another attempt");
    let again = match first {
        // These would be the same in another child.
        Trouble::TooLong(_) | Trouble::Slow(_) => first,
        Trouble::Memory(_) | Trouble::Killed(_) | Trouble::Corrupt(_) | Trouble::Other(_) => {
            match alone(request, Depth::Full, spawner, mirror).await {
                Ok(found) => return Ok((found, Depth::Full)),
                Err(trouble) => trouble,
            }
        }
    };
    let why = match again {
        Trouble::Corrupt(detail) => return Err(Outcome::refused(Refusal::RepoCorrupt, detail)),
        Trouble::Other(detail) => return Err(Outcome::failed(detail)),
        Trouble::Memory(detail)
        | Trouble::Slow(detail)
        | Trouble::TooLong(detail)
        | Trouble::Killed(detail) => detail,
    };
    match alone(request, Depth::Raw, spawner, mirror).await {
        Ok(found) => Ok((found, Depth::Raw)),
        Err(Trouble::Memory(detail) | Trouble::Slow(detail) | Trouble::TooLong(detail)) => {
            let detail = format!("{detail} (paths only; before that: {why})");
            Err(Outcome::refused(Refusal::TooLarge, detail))
        }
        Err(Trouble::Corrupt(detail)) => Err(Outcome::refused(Refusal::RepoCorrupt, detail)),
        Err(Trouble::Killed(detail) | Trouble::Other(detail)) => {
            Err(Outcome::failed(format!("{detail} (paths only; before that: {why})")))
        }
    }
}

async fn alone(
    request: &Request,
    depth: Depth,
    spawner: &Spawner,
    mirror: &Mirror,
) -> Result<Vec<RawChange>, Trouble> {
    let unstarted = |error| Trouble::Other(format!("git could not be started: {error}"));
    let mut differ = spawner.differ(mirror, depth).map_err(unstarted)?;
    if differ.ask(std::iter::once(request)).await.is_err() {
        return Err(differ.child.death().await.into());
    }
    let (differ, mut found) = answer(differ, std::iter::once(request), spawner).await?;
    differ.child.close().await;
    found.pop().ok_or_else(|| Trouble::Other("git gave no answer".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_did_not_work_is_no_monster() {
        let limit = Duration::from_secs(30);
        assert!(matches!(late(limit, Duration::from_secs(20)), Trouble::Slow(_)));
        assert!(matches!(late(limit, Duration::from_secs(5)), Trouble::Other(_)));
    }
}

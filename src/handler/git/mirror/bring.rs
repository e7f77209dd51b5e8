//! Makes and renews mirrors, under the exclusive lock.
//!
//! A mirror is made under another name and gets its mark last. One that is there is swept before
//! anything is fetched into it.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::error::MirrorError;
use super::fetch_error::FetchError;
use super::git_mirrors::{GitMirrors, local, may_replace};
use super::job::{Limits, Output, run};
use super::lock::Held;
use super::place::{Mark, Place};
use super::source::Source;
use super::tips::{self, Tips};
use super::{settings, sweep, upkeep};
use crate::clock::Clock;
use crate::handler::git::oid::{ObjectFormat, ObjectId, lines};

/// Looking into a mirror takes no longer than this.
const LOOK_TIME: Duration = Duration::from_secs(60);
/// Bytes that are asked for before a fetch into a mirror that is larger. Most fetches bring less, and
/// a larger one has what stays free on the disk besides.
const FETCH_ROOM: u64 = 256 * 1024 * 1024;

/// Refusals, each a round trip, after which others may have the mirror.
const GONE_AT_ONCE: usize = 16;

/// What somebody needs of a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need<'a> {
    /// That it has these commits, or that the source does not.
    Commits(&'a [ObjectId]),
    /// That it was fetched into since then, in milliseconds since the Unix epoch.
    FetchedSince(i64),
    /// That it is another one than the damaged one of this generation.
    Another(&'a str),
}

impl GitMirrors {
    /// Which of `wanted` the mirror does not have.
    pub(super) async fn missing(
        &self,
        git_dir: &Path,
        format: ObjectFormat,
        wanted: &[ObjectId],
    ) -> Result<Vec<ObjectId>, MirrorError> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let config = [("core.commitGraph", "false".to_owned())];
        let mut command = self.transfer.program.command(git_dir, format, &config);
        // With the type git looks at the object, and not only into the index.
        command.args(["cat-file", "--batch-check=%(objectname) %(objecttype)", "--buffer"]);
        let input = lines("", wanted, "");
        let output = Output::Kept(wanted.len() * 128);
        let until = Instant::now() + LOOK_TIME;
        let limits = Limits { memory: Some(self.transfer.limits.fetch_memory), file: Some(0) };
        let done = run(command, input.as_bytes(), output, limits, until).await;
        let done = done.map_err(|error| MirrorError::Local(error.to_string()))?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        // A child that died at a damaged object has not answered for the rest: they count as missing.
        let found: HashSet<ObjectId> = said
            .lines()
            .filter_map(|line| line.split_once(' ').filter(|(_, kind)| *kind != "missing"))
            .filter_map(|(id, _)| id.parse().ok())
            .collect();
        Ok(wanted.iter().copied().filter(|id| !found.contains(id)).collect())
    }

    /// Whether a mirror with this mark meets a need. Some lock on it is held.
    pub(super) async fn is_met(
        &self,
        need: Need<'_>,
        place: &Place,
        mark: &Mark,
        format: ObjectFormat,
    ) -> Result<bool, MirrorError> {
        match need {
            Need::Commits(wanted) => {
                Ok(self.missing(&place.mirror(), format, wanted).await?.is_empty())
            }
            Need::FetchedSince(at) => Ok(place.fetched_ms() >= at),
            Need::Another(generation) => Ok(mark.generation != generation),
        }
    }

    /// Clones or fetches, unless somebody has met the need meanwhile. Answers as
    /// [`GitMirrors::fetch_all`] does.
    pub(super) async fn bring(
        &self,
        place: &Place,
        source: &Source,
        need: Need<'_>,
        held: &Held,
    ) -> Result<Vec<ObjectId>, MirrorError> {
        let until = Instant::now() + self.transfer.limits.fetch_time;
        let wanted = match need {
            Need::Commits(wanted) => wanted,
            Need::FetchedSince(_) | Need::Another(_) => &[],
        };
        let mark = self.tidy(place, held).await?;
        let Some((mark, format)) = mark.and_then(|mark| Some((mark.clone(), mark.format()?)))
        else {
            return self.clone(place, source, wanted, false, held, until).await;
        };
        if self.is_met(need, place, &mark, format).await? {
            return Ok(Vec::new());
        }
        let fetched = match need {
            Need::Another(_) => {
                Err(FetchError::Damaged("also a mirror cloned anew was found damaged".to_owned()))
            }
            Need::Commits(_) | Need::FetchedSince(_) => {
                self.fetch(place, source, format, wanted, held, until).await
            }
        };
        match fetched {
            Ok(gone) => Ok(gone),
            // It was empty when it was cloned, or has been made anew.
            Err(FetchError::OtherFormat(_)) => {
                self.clone(place, source, wanted, false, held, until).await
            }
            // Whose damage it is shows in a new clone.
            Err(error) if error.is_of_damage() && may_replace(&mark) => {
                let detail = MirrorError::from(error);
                tracing::warn!(source = source.name(), %detail, "damaged mirror, cloned anew");
                self.clone(place, source, wanted, true, held, until).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes leftovers; the mark of what is left, if it is whole.
    pub(super) async fn tidy(
        &self,
        place: &Place,
        held: &Held,
    ) -> Result<Option<Mark>, MirrorError> {
        let place = place.clone();
        let tidied = held.blocking(move || {
            let mark = place.mark();
            if mark.is_none() {
                place.discard()?;
            } else {
                let removed = sweep::sweep(&place.mirror())?;
                if removed > 0 {
                    tracing::info!(folder = %place.folder().display(), removed, "leftovers removed");
                }
            }
            place.clear()?;
            Ok(mark)
        });
        tidied.await.map_err(local)
    }

    /// Makes a mirror under another name and puts it into its place when it is whole. How the source
    /// names its objects shows when it is asked; that it is damaged is believed the second time, since
    /// a server that is short of something may say so, too.
    pub(super) async fn clone(
        &self,
        place: &Place,
        source: &Source,
        wanted: &[ObjectId],
        is_replacement: bool,
        held: &Held,
        until: Instant,
    ) -> Result<Vec<ObjectId>, MirrorError> {
        self.make_room(place, 0, held).await?;
        let now = Clock::System.wall_ms();
        let first = wanted.first().map_or(ObjectFormat::Sha1, ObjectId::format);
        let unknown = "it names its objects neither by SHA-1 nor by SHA-256";
        let mut refused = FetchError::OtherFormat(unknown.to_owned());
        for format in [first, first.other(), first, first.other()] {
            let git_dir = place.unfinished();
            let made = self.make(&git_dir, source, format, wanted, held, until).await;
            let is_made = made.is_ok();
            let (to, mark) = (place.clone(), Mark::new(format, is_replacement));
            let put = held.blocking(move || {
                if is_made {
                    to.discard()?;
                    to.finish(&git_dir, &mark)?;
                    to.note_fetched(now)?;
                    to.measure()?;
                }
                to.clear()
            });
            put.await.map_err(local)?;
            match made {
                Ok(gone) => {
                    self.settle(place, source, held).await?;
                    return Ok(gone);
                }
                Err(error) if error.is_of_damage() => refused = error,
                Err(FetchError::OtherFormat(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(refused.into())
    }

    /// Makes a mirror and fetches all into it.
    async fn make(
        &self,
        git_dir: &Path,
        source: &Source,
        format: ObjectFormat,
        wanted: &[ObjectId],
        held: &Held,
        until: Instant,
    ) -> Result<Vec<ObjectId>, FetchError> {
        self.init(git_dir, format, source, held).await?;
        self.fetch_all(git_dir, source, format, wanted, held, until).await
    }

    async fn init(
        &self,
        git_dir: &Path,
        format: ObjectFormat,
        source: &Source,
        held: &Held,
    ) -> Result<(), MirrorError> {
        let mut command = self.transfer.program.bare_command(&[]);
        command.args(["init", "--quiet", "--bare", "--template="]);
        // HEAD names no branch that there is: nothing of it may depend on where it points.
        command.args(["--initial-branch=none", &format!("--object-format={}", format.as_str())]);
        command.arg("--").arg(git_dir);
        let until = Instant::now() + LOOK_TIME;
        let limits = Limits { memory: Some(self.transfer.limits.fetch_memory), file: None };
        let done = run(command, b"", Output::Locked(held), limits, until).await;
        let done = done.map_err(|error| MirrorError::Local(error.to_string()))?;
        if !done.success {
            return Err(MirrorError::Local(done.stderr));
        }
        let (git_dir, source) = (git_dir.to_owned(), source.clone());
        let access = self.transfer.access.clone();
        let written = held.blocking(move || settings::write(&git_dir, &source, format, &access));
        written.await.map_err(local)
    }

    /// Fetches into a mirror that is whole; what the source lets go of is pinned.
    async fn fetch(
        &self,
        place: &Place,
        source: &Source,
        format: ObjectFormat,
        wanted: &[ObjectId],
        held: &Held,
        until: Instant,
    ) -> Result<Vec<ObjectId>, FetchError> {
        let other = FetchError::Other;
        self.make_room(place, place.size().min(FETCH_ROOM), held).await.map_err(other)?;
        let git_dir = place.mirror();
        let (to, about, access) = (git_dir.clone(), source.clone(), self.transfer.access.clone());
        let written = held.blocking(move || settings::write(&to, &about, format, &access));
        written.await.map_err(|error| other(local(error)))?;
        let program = &self.transfer.program;
        let now = Clock::System.wall_ms();
        let before = Tips::of(&git_dir, format, program).await?;
        let fetched = self.fetch_all(&git_dir, source, format, wanted, held, until).await;
        // Also after a fetch that failed half way.
        tips::pin_lost(&before, &git_dir, format, program, held).await?;
        let gone = fetched?;
        let (tended, age) = (git_dir.clone(), self.transfer.limits.pin_time);
        let expired = held.blocking(move || upkeep::expire_pins(&tended, age)).await;
        expired.map_err(|error| other(local(error)))?;
        if upkeep::is_due(&git_dir) {
            self.tend(place, format, held).await.map_err(other)?;
        }
        let place = place.clone();
        let noted =
            held.blocking(move || place.note_fetched(now).and_then(|()| place.measure())).await;
        noted.map_err(|error| other(local(error)))?;
        Ok(gone)
    }

    /// Branches and tags, then by their ids what is wanted and not among them. What the source does
    /// not have is left out; a refusal names one such commit, so that each costs a fetch. After some of
    /// them others shall have the mirror: then it answers which these are, and has not asked for the
    /// rest.
    async fn fetch_all(
        &self,
        git_dir: &Path,
        source: &Source,
        format: ObjectFormat,
        wanted: &[ObjectId],
        held: &Held,
        until: Instant,
    ) -> Result<Vec<ObjectId>, FetchError> {
        self.transfer.fetch(git_dir, format, source, held, until).await?;
        let wanted: Vec<ObjectId> =
            wanted.iter().copied().filter(|id| id.format() == format).collect();
        let mut missing =
            self.missing(git_dir, format, &wanted).await.map_err(FetchError::Other)?;
        let mut gone = Vec::new();
        while !missing.is_empty() {
            if gone.len() == GONE_AT_ONCE {
                return Ok(gone);
            }
            match self.transfer.fetch_ids(git_dir, &missing, source, held, until).await {
                Ok(()) => break,
                Err(FetchError::Gone(id)) if missing.contains(&id) => {
                    missing.retain(|other| *other != id);
                    gone.push(id);
                }
                Err(error) => return Err(error),
            }
        }
        // The source has these, and they came or were there before.
        match self.missing(git_dir, format, &missing).await.map_err(FetchError::Other)?.first() {
            Some(id) => Err(FetchError::Damaged(format!("{id} was fetched and cannot be read"))),
            None => Ok(Vec::new()),
        }
    }
}

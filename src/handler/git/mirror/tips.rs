//! The tips of a mirror's branches and tags, and what becomes of those that a fetch takes away.
//!
//! After a force push the source no longer has commits that may still be queued. Whatever the old tips
//! reach and the new ones do not is kept by a pin on the old tip.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::error::MirrorError;
use super::fetch_error::{FetchError, is_damage};
use super::guard::Mirror;
use super::job::{JobError, Limits, Output, run};
use super::lock::Held;
use crate::handler::git::oid::{ObjectFormat, ObjectId, lines};
use crate::handler::git::program::Program;

/// Bytes of the list of tips, and of the list of commits that only old tips reach.
const MAX_LIST: usize = 64 * 1024 * 1024;
/// Listing takes no longer than this.
const LIST_TIME: Duration = Duration::from_secs(5 * 60);

/// What branches and tags pointed to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Tips(HashSet<ObjectId>);

impl Tips {
    /// Those of a mirror now; a tag stands for what it names. Half a list is none: what it does not
    /// name would not be pinned.
    pub(super) async fn of(
        git_dir: &Path,
        format: ObjectFormat,
        program: &Program,
    ) -> Result<Self, FetchError> {
        let mut command = program.command(git_dir, format, &[]);
        command.args(["for-each-ref", "--format=%(objectname) %(*objectname)"]);
        command.args(["refs/qw/heads", "refs/qw/tags"]);
        let until = Instant::now() + LIST_TIME;
        let done = run(command, b"", Output::Kept(MAX_LIST), Limits::WALK, until).await;
        let done = done.map_err(|error| MirrorError::Local(error.to_string()))?;
        if !done.success {
            let detail = format!("the tips cannot be listed: {}", done.stderr.trim());
            return Err(if is_damage(&done.stderr.to_lowercase()) {
                FetchError::Damaged(detail)
            } else {
                MirrorError::Local(detail).into()
            });
        }
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let last = |line: &str| line.split_whitespace().last().and_then(|id| id.parse().ok());
        Ok(Self(said.lines().filter_map(last).collect()))
    }
}

/// Pins the tips of `before` that no branch and no tag reaches any more.
pub(super) async fn pin_lost(
    before: &Tips,
    git_dir: &Path,
    format: ObjectFormat,
    program: &Program,
    held: &Held,
) -> Result<(), FetchError> {
    let now = Tips::of(git_dir, format, program).await?;
    let changed: Vec<ObjectId> = before.0.difference(&now.0).copied().collect();
    if changed.is_empty() {
        return Ok(());
    }
    let mut command = program.command(git_dir, format, &[]);
    command.args(["rev-list", "--ignore-missing", "--stdin", "--not"]);
    command.args(["--glob=refs/qw/heads/*", "--glob=refs/qw/tags/*"]);
    let input = lines("", &changed, "");
    let until = Instant::now() + LIST_TIME;
    let listed = run(command, input.as_bytes(), Output::Kept(MAX_LIST), Limits::WALK, until);
    let lost: Vec<ObjectId> = match listed.await {
        Ok(done) if done.success => {
            let said = String::from_utf8_lossy(&done.stdout).into_owned();
            let unreached: HashSet<ObjectId> =
                said.lines().filter_map(|line| line.parse().ok()).collect();
            changed.into_iter().filter(|id| unreached.contains(id)).collect()
        }
        // In doubt all: a pin too many costs a line.
        Ok(_) | Err(JobError::Late | JobError::TooMuch(_)) => changed,
        Err(JobError::Io(error)) => return Err(MirrorError::Local(error.to_string()).into()),
    };
    let mirror = Mirror::unlocked(git_dir, format);
    let pinned = held.blocking(move || mirror.pin(&lost)).await;
    pinned.map_err(|error| MirrorError::Local(format!("pins could not be written: {error}")).into())
}

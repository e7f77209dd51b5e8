//! What a mirror holds: its commits, what a name stands for, and its mailmap.
//!
//! What cannot be told because an object is missing or damaged is [`MirrorError::Corrupt`]: another
//! attempt in the same mirror would end in the same way.

use std::time::Duration;

use tokio::time::Instant;

use super::error::MirrorError;
use super::fetch_error::is_damage;
use super::guard::Mirror;
use super::job::{Done, JobError, Limits, Output, run};
use super::transfer::{DEFAULT, is_branch};
use crate::handler::git::oid::ObjectId;
use crate::handler::git::program::Program;

/// Bytes of a list of commits: enough for three million of them.
const MAX_LIST: usize = 128 * 1024 * 1024;
/// Bytes of a mailmap.
const MAX_MAILMAP: usize = 16 * 1024 * 1024;
/// Bytes of an answer about one name.
const MAX_ANSWER: usize = 4096;
/// Refs that are looked at for one name: those of the branch and the tag, if nothing is below them. The
/// answer has room for so many.
const MAX_REFS: &str = "--count=32";
/// Listing takes no longer than this.
const LIST_TIME: Duration = Duration::from_secs(10 * 60);

/// Which commits of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// All that a branch or a tag reaches.
    All,
    /// All that `to` reaches and `from` does not, as in `from..to`.
    Range {
        /// Where it begins; that commit is not part of it.
        from: Option<ObjectId>,
        /// Where it ends; that commit is part of it.
        to: ObjectId,
    },
}

/// The commits of a selection, newest first.
pub(super) async fn list(
    mirror: &Mirror,
    selection: &Selection,
    program: &Program,
) -> Result<Vec<ObjectId>, MirrorError> {
    let mut command = program.command(mirror.git_dir(), mirror.format(), &[]);
    command.args(["rev-list", "--stdin"]);
    let input = match selection {
        Selection::All => {
            command.args(["--glob=refs/qw/heads/*", "--glob=refs/qw/tags/*"]);
            String::new()
        }
        Selection::Range { from, to } => {
            let from = from.map(|from| format!("^{from}\n")).unwrap_or_default();
            format!("{to}\n{from}")
        }
    };
    let output = ask(command, &input, MAX_LIST).await?.stdout;
    let text = String::from_utf8_lossy(&output);
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

/// The commit that a full id, a branch or a tag stands for, if there is one.
pub(super) async fn resolve(
    mirror: &Mirror,
    name: &str,
    program: &Program,
) -> Result<Option<ObjectId>, MirrorError> {
    let candidates = match name.parse::<ObjectId>() {
        Ok(id) => vec![id.to_string()],
        Err(_) if name == "HEAD" => vec![DEFAULT.to_owned()],
        Err(_) if is_branch(name) => {
            vec![format!("refs/qw/heads/{name}"), format!("refs/qw/tags/{name}")]
        }
        Err(_) => return Ok(None),
    };
    let mut command = program.command(mirror.git_dir(), mirror.format(), &[]);
    command.args(["cat-file", "--batch-check=%(objectname)"]);
    let input: String = candidates.iter().flat_map(|name| [name.as_str(), "^{commit}\n"]).collect();
    let done = ask(command, &input, MAX_ANSWER).await?;
    let text = String::from_utf8_lossy(&done.stdout);
    if let Some(id) = text.lines().find_map(|line| line.parse().ok()) {
        return Ok(Some(id));
    }
    // A name that is there stands for something, or the mirror has lost it.
    if is_damage(&done.stderr.to_lowercase()) {
        return Err(MirrorError::Corrupt(done.stderr));
    }
    lost(mirror, &candidates, program).await
}

/// Nothing, or an error if one of the names is there and what it names is not.
async fn lost(
    mirror: &Mirror,
    names: &[String],
    program: &Program,
) -> Result<Option<ObjectId>, MirrorError> {
    let mut command = program.command(mirror.git_dir(), mirror.format(), &[]);
    command.args(["for-each-ref", MAX_REFS, "--format=%(objectname)"]).args(names);
    let output = ask(command, "", MAX_ANSWER).await?.stdout;
    let mut command = program.command(mirror.git_dir(), mirror.format(), &[]);
    command.args(["cat-file", "--batch-check=%(objectname)"]);
    let input: String =
        String::from_utf8_lossy(&output).lines().flat_map(|id| [id, "^{}\n"]).collect();
    let output = ask(command, &input, MAX_ANSWER).await?.stdout;
    let text = String::from_utf8_lossy(&output);
    match text.lines().find(|line| line.ends_with(" missing")) {
        Some(line) => Err(MirrorError::Corrupt(line.to_owned())),
        None => Ok(None),
    }
}

/// The mailmap of the default branch, if it has one; [`MirrorError::TooLarge`] if it has too many bytes.
pub(super) async fn mailmap(
    mirror: &Mirror,
    program: &Program,
) -> Result<Option<Vec<u8>>, MirrorError> {
    let look = async |format: &str, most: usize| {
        let mut command = program.command(mirror.git_dir(), mirror.format(), &[]);
        command.args(["cat-file", format]);
        ask(command, &format!("{DEFAULT}:.mailmap\n"), most).await
    };
    // Git would read all of it into its memory.
    let said = look("--batch-check=%(objecttype) %(objectsize)", MAX_ANSWER).await?;
    let text = String::from_utf8_lossy(&said.stdout);
    let Some(size) = text.trim_end().strip_prefix("blob ") else {
        return if is_damage(&said.stderr.to_lowercase()) {
            Err(MirrorError::Corrupt(said.stderr))
        } else {
            Ok(None)
        };
    };
    if size.parse::<usize>().is_ok_and(|size| size > MAX_MAILMAP) {
        return Err(MirrorError::TooLarge(format!("its mailmap has {size} bytes")));
    }
    let mut output = look("--batch=%(objecttype)", MAX_MAILMAP + MAX_ANSWER).await?.stdout;
    let start = output.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let is_blob = output.starts_with(b"blob\n");
    // After the content comes a newline of cat-file's own.
    output.pop();
    if is_blob {
        Ok(Some(output.split_off(start)))
    } else {
        Err(MirrorError::Corrupt("the mailmap cannot be read".to_owned()))
    }
}

async fn ask(
    command: tokio::process::Command,
    input: &str,
    most: usize,
) -> Result<Done, MirrorError> {
    let until = Instant::now() + LIST_TIME;
    match run(command, input.as_bytes(), Output::Kept(most), Limits::WALK, until).await {
        Ok(done) if done.success => Ok(done),
        Ok(done) => Err(failed(done.stderr)),
        // It will not be shorter another time.
        Err(error @ JobError::TooMuch(_)) => Err(MirrorError::TooLarge(error.to_string())),
        Err(error @ (JobError::Io(_) | JobError::Late)) => {
            Err(MirrorError::Local(error.to_string()))
        }
    }
}

/// Why git could not tell.
fn failed(said: String) -> MirrorError {
    if is_damage(&said.to_lowercase()) {
        MirrorError::Corrupt(said)
    } else {
        MirrorError::Local(said)
    }
}

//! What a mirror holds: its commits, what a name stands for, and its mailmap.

use std::time::Duration;

use tokio::time::Instant;

use super::error::MirrorError;
use super::guard::Mirror;
use super::job::{Limits, Output, run};
use super::transfer::{DEFAULT, is_branch};
use crate::handler::git::oid::ObjectId;
use crate::handler::git::program::Program;

/// Bytes of a list of commits: enough for three million of them.
const MAX_LIST: usize = 128 * 1024 * 1024;
/// Bytes of a mailmap.
const MAX_MAILMAP: usize = 16 * 1024 * 1024;
/// Bytes of an answer about one name.
const MAX_ANSWER: usize = 4096;
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
    let output = ask(command, &input, MAX_LIST).await?;
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
    let input: String =
        candidates.into_iter().flat_map(|name| [name, "^{commit}\n".into()]).collect();
    let output = ask(command, &input, MAX_ANSWER).await?;
    let text = String::from_utf8_lossy(&output);
    Ok(text.lines().find_map(|line| line.parse().ok()))
}

/// The mailmap of the default branch, if it has one.
pub(super) async fn mailmap(
    mirror: &Mirror,
    program: &Program,
) -> Result<Option<Vec<u8>>, MirrorError> {
    let mut command = program.command(mirror.git_dir(), mirror.format(), &[]);
    command.args(["cat-file", "--batch=%(objecttype)"]);
    let mut output = ask(command, &format!("{DEFAULT}:.mailmap\n"), MAX_MAILMAP).await?;
    let start = output.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let is_blob = output.starts_with(b"blob\n");
    // After the content comes a newline of cat-file's own.
    output.pop();
    Ok(is_blob.then(|| output.split_off(start)))
}

async fn ask(
    command: tokio::process::Command,
    input: &str,
    most: usize,
) -> Result<Vec<u8>, MirrorError> {
    let until = Instant::now() + LIST_TIME;
    let done = run(command, input.as_bytes(), Output::Kept(most), Limits::default(), until).await;
    match done {
        Ok(done) if done.success => Ok(done.stdout),
        Ok(done) => Err(MirrorError::Local(done.stderr)),
        Err(error) => Err(MirrorError::Local(error.to_string())),
    }
}

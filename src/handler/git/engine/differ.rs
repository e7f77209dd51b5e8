//! `git diff-tree --stdin`: what each commit changed.
//!
//! A request is a line with the commit and the parent to compare it with: git then believes no graft
//! and no shallow boundary, and a merge is compared with one parent. Requests go out in groups, since
//! each answer that is waited for costs both sides a switch of processes. The line after a group is no
//! object id, so git repeats it and flushes: that marks the end of the answers. It holds a number that
//! nobody can guess, or a path could pretend to be it.

use std::fmt::Write as _;
use std::io;

use tokio::process::Command;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::child::Child;
use crate::handler::git::oid::ObjectId;
use crate::handler::git::profile::Profile;

/// What is asked about each commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Paths, renames and counts of lines.
    Full,
    /// Paths only: no content is read.
    Raw,
    /// The names of the paths of a merge that differ from every parent.
    Combined,
}

/// The arguments of the program.
pub(super) fn arguments(command: &mut Command, depth: Depth, profile: &Profile) {
    command.args(["--stdin", "--always", "-r", "--root", "-z"]);
    command.args(["--no-textconv", "--no-ext-diff", "--no-color", "--no-abbrev"]);
    command.arg("--ignore-submodules=none");
    match depth {
        Depth::Full => {
            command.args(["--raw", "--numstat", "--diff-algorithm=myers"]);
            command.arg(format!("-M{}%", profile.rename_percent));
            command.arg(format!("-l{}", profile.rename_limit));
        }
        Depth::Raw => {
            command.args(["--raw", "--no-renames"]);
        }
        Depth::Combined => {
            command.args(["-c", "--name-only", "--no-renames"]);
        }
    }
    // The marker alone flushes, and not git after each commit besides.
    command.env("GIT_FLUSH", "0");
}

/// A commit and its first parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) commit: ObjectId,
    pub(super) parent: Option<ObjectId>,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The child has ended.
    Died,
    /// The time is over.
    Late,
    /// The answer is longer than allowed.
    TooLong,
}

/// The child.
pub(super) struct Differ {
    pub(super) child: Child,
    marker: String,
    /// How far what is unread was searched for the marker.
    searched: usize,
}

impl Differ {
    pub(super) fn new(child: Child) -> Self {
        let marker = format!("--END {}--\n", Uuid::new_v4().simple());
        Self { child, marker, searched: 0 }
    }

    /// Asks about a group; any number of groups that together fit into a pipe may be under way.
    pub(super) async fn ask(&mut self, group: impl Iterator<Item = &Request>) -> io::Result<()> {
        let mut lines = String::new();
        for Request { commit, parent } in group {
            // Writing to a String cannot fail.
            let _ = match parent {
                Some(parent) => writeln!(lines, "{commit} {parent}"),
                None => writeln!(lines, "{commit}"),
            };
        }
        lines.push_str(&self.marker);
        self.child.write(lines.as_bytes()).await
    }

    /// Asks about a commit and the parents that stand after it in the line, as a group of its own.
    pub(super) async fn ask_line(&mut self, line: &str) -> io::Result<()> {
        self.child.write(format!("{line}\n{}", self.marker).as_bytes()).await
    }

    /// The answer to the oldest group, at most `most` bytes long, given before `until`.
    pub(super) async fn answer(&mut self, most: u64, until: Instant) -> Result<Vec<u8>, NoAnswer> {
        let marker = memchr::memmem::Finder::new(self.marker.as_bytes());
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        loop {
            let unread = self.child.unread();
            let found = marker.find(&unread[self.searched..]);
            // Also if it came all at once, or the pace of reading would decide.
            if self.searched + found.unwrap_or(0) > most {
                return Err(NoAnswer::TooLong);
            }
            if let Some(at) = found {
                let answer = unread[..self.searched + at].to_vec();
                self.child.take(answer.len() + self.marker.len());
                self.searched = 0;
                self.child.count_answer();
                return Ok(answer);
            }
            self.searched = unread.len().saturating_sub(self.marker.len());
            match timeout_at(until, self.child.read()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false) | Err(_)) => return Err(NoAnswer::Died),
                Err(_) => return Err(NoAnswer::Late),
            }
        }
    }
}

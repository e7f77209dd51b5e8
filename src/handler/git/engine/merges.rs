//! How many paths of a merge differ from every parent: edits made while merging.
//!
//! It is asked of a child of its own, only for merges, and never decides about a commit's outcome:
//! where there is no answer, the number is not known.

use std::fmt::Write as _;

use tokio::time::Instant;

use super::differ::{Depth, Differ, NoAnswer};
use super::spawner::Spawner;
use crate::handler::git::mirror::Mirror;
use crate::handler::git::oid::ObjectId;

/// Bytes of the longest request; git reads its lines into a buffer of a thousand.
const MAX_LINE: usize = 900;

/// The child, started when it is needed.
pub(super) struct Merges<'a> {
    pub(super) spawner: &'a Spawner,
    pub(super) mirror: &'a Mirror,
    pub(super) child: Option<Differ>,
}

impl Merges<'_> {
    /// The number for a merge all of whose parents are there.
    pub(super) async fn count(&mut self, commit: &ObjectId, parents: &[ObjectId]) -> Option<u32> {
        let mut line = commit.to_string();
        for parent in parents {
            // Writing to a String cannot fail.
            let _ = write!(line, " {parent}");
        }
        if line.len() > MAX_LINE {
            return None;
        }
        let mut answer = self.attempt(&line).await;
        if answer == Err(NoAnswer::Died) {
            // Somebody may have killed it.
            answer = self.attempt(&line).await;
        }
        let answer = answer.ok()?;
        // The commit's id, then the paths, each with a NUL after it.
        let fields = memchr::memchr_iter(0, &answer).count();
        u32::try_from(fields.checked_sub(1)?).ok()
    }

    /// Asks; without an answer the child is gone.
    async fn attempt(&mut self, line: &str) -> Result<Vec<u8>, NoAnswer> {
        let mut differ = if let Some(differ) = self.child.take() {
            differ
        } else {
            let differ = self.spawner.differ(self.mirror, Depth::Combined);
            differ.map_err(|_| NoAnswer::Late)?
        };
        let limits = &self.spawner.limits;
        let until = Instant::now() + limits.commit_time;
        let answer = match differ.ask_line(line).await {
            Ok(()) => differ.answer(limits.output, until).await,
            Err(_) => Err(NoAnswer::Died),
        };
        match answer {
            Ok(_) => self.child = Some(differ),
            Err(_) => differ.child.kill().await,
        }
        answer
    }
}

//! Turns commits of a mirror into analyses.
//!
//! One commit never stops the others: whatever happens to it, be it a monster or a damaged object, is
//! its own outcome. Results come one by one, as they are ready and in any order.

mod assemble;
mod batch;
mod child;
mod count;
mod death;
mod differ;
mod git_engine;
mod ladder;
mod lookup;
mod merges;
mod objects;
mod pool;
mod spawner;

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::mirror::Mirror;
use super::oid::ObjectId;
use super::outcome::Outcome;
use super::profile::Profile;

pub use git_engine::GitEngine;

/// What analyses commits.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// The rules that its results follow.
    fn profile(&self) -> &Profile;

    /// Analyses `commits` and sends exactly one result for each of them, a duplicate included once.
    ///
    /// Returns when all were sent, or soon after the receiver is gone. Dropping the future ends every
    /// process that it started.
    async fn analyse(
        &self,
        mirror: &Mirror,
        commits: &[ObjectId],
        results: &mpsc::Sender<Analysed>,
    );
}

/// One commit and how its analysis ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Analysed {
    /// The commit.
    pub id: ObjectId,
    /// How it ended.
    pub outcome: Outcome,
    /// How long git needed for it.
    pub took: Duration,
}

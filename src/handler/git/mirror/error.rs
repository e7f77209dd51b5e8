//! Why there is no mirror.

use thiserror::Error;

use crate::handler::git::outcome::{Outcome, Refusal};

/// Why there is no mirror.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MirrorError {
    /// The source is not allowed, or is no repository, or hides that it is one.
    #[error("the repository cannot be read: {0}")]
    Unreadable(String),
    /// The source is damaged, or a clone of it was twice.
    #[error("the repository is damaged: {0}")]
    Corrupt(String),
    /// The repository is larger than a mirror may be.
    #[error("the repository is too large: {0}")]
    TooLarge(String),
    /// Others used the mirror all the time that was allowed for waiting.
    #[error("the mirror stayed in use: {0}")]
    Busy(String),
    /// The source could not be reached, did not let us in, or broke off.
    #[error("the fetch failed: {0}")]
    Fetch(String),
    /// There is no room, also after mirrors that nobody uses were removed.
    #[error("no room for the mirror: {0}")]
    NoRoom(String),
    /// A file or a program of this node failed.
    #[error("the mirror cannot be kept: {0}")]
    Local(String),
}

impl MirrorError {
    /// Another attempt may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Busy(_) | Self::Fetch(_) | Self::NoRoom(_) | Self::Local(_) => true,
            Self::Unreadable(_) | Self::Corrupt(_) | Self::TooLarge(_) => false,
        }
    }

    /// What it means for each commit that was wanted.
    pub fn outcome(&self) -> Outcome {
        let detail = self.to_string();
        match self {
            Self::Unreadable(_) => Outcome::refused(Refusal::RepoUnreadable, detail),
            Self::Corrupt(_) => Outcome::refused(Refusal::RepoCorrupt, detail),
            Self::TooLarge(_) => Outcome::refused(Refusal::TooLarge, detail),
            Self::Busy(_) | Self::Fetch(_) | Self::NoRoom(_) | Self::Local(_) => {
                Outcome::failed(detail)
            }
        }
    }
}

//! How the analysis of one commit ended.
//!
//! A commit is analysed, refused for good under a name, or failed in a way that another attempt may
//! mend. Each ends alone: neither its neighbours in a batch nor the worker are touched.

use std::fmt;

use super::analysis::Analysis;

/// How the analysis of one commit ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Analysed(Box<Analysis>),
    /// No further attempt can succeed.
    Refused {
        /// Why, by its name.
        reason: Refusal,
        /// One or a few lines for a human, free of secrets, at most [`Outcome::MAX_DETAIL`] bytes.
        detail: String,
    },
    /// Something that may be otherwise at another attempt: the network, a full disk, a child that was
    /// killed from outside.
    Failed {
        /// As above.
        detail: String,
    },
}

impl Outcome {
    /// Bytes that are kept of a detail.
    pub const MAX_DETAIL: usize = 2 * 1024;

    /// Refused for `reason`.
    pub fn refused(reason: Refusal, detail: impl Into<String>) -> Self {
        Self::Refused { reason, detail: cut(detail.into()) }
    }

    /// Failed; to be tried again.
    pub fn failed(detail: impl Into<String>) -> Self {
        Self::Failed { detail: cut(detail.into()) }
    }

    /// The analysis, if there is one.
    pub fn analysis(&self) -> Option<&Analysis> {
        match self {
            Self::Analysed(analysis) => Some(analysis),
            Self::Refused { .. } | Self::Failed { .. } => None,
        }
    }

    /// Why it was refused, if it was.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { reason, .. } => Some(*reason),
            Self::Analysed(_) | Self::Failed { .. } => None,
        }
    }
}

/// Why a commit will never be analysed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The repository does not have the commit (any more), or the id is that of something else.
    CommitGone,
    /// The source is a shallow clone that ends at this commit: its parent is not there to compare.
    ShallowBoundary,
    /// Objects are missing or damaged, also in a mirror cloned anew.
    RepoCorrupt,
    /// The repository cannot be had: the URL is not allowed, or no repository is there for us.
    RepoUnreadable,
    /// Not even the list of changed paths could be had within the limits.
    TooLarge,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::CommitGone,
        Self::ShallowBoundary,
        Self::RepoCorrupt,
        Self::RepoUnreadable,
        Self::TooLarge,
    ];

    /// Its name, as it is stored and shown: `COMMIT_GONE` and the like.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CommitGone => "COMMIT_GONE",
            Self::ShallowBoundary => "SHALLOW_BOUNDARY",
            Self::RepoCorrupt => "REPO_CORRUPT",
            Self::RepoUnreadable => "REPO_UNREADABLE",
            Self::TooLarge => "TOO_LARGE",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn cut(mut text: String) -> String {
    if text.len() > Outcome::MAX_DETAIL {
        let end = (0..=Outcome::MAX_DETAIL).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
    text
}

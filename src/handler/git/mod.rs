//! Reads commits: what each of them changed, and how it was written down.
//!
//! A repository is kept as a bare [`Mirror`], never checked out, and read by git's own plumbing in
//! child processes. [`Mirrors`] fetches, [`Engine`] counts; an [`Analysis`] is a pure function of
//! the commit, its first parent and the [`Profile`].
//!
//! What a repository or a task says is hostile until read: no hook, filter, attribute, text
//! conversion or external program of it is ever run, submodules and large files are never fetched,
//! and every child has limits on memory, output and time.

mod analysis;
mod analyst;
mod change;
mod class;
mod complaint;
pub mod engine;
mod flags;
mod handler;
mod identity;
pub mod mirror;
mod oid;
mod options;
mod outcome;
mod parse;
mod profile;
mod program;
mod redact;
pub mod results;
mod version;

pub use analysis::{Analysis, CommitKind, ExtraHeader, Message, SignatureKind, Totals, Trailer};
pub use analyst::analyse;
pub use change::{FileChange, FileKind, Status, path_text};
pub use class::{CLASS_RULES, FileClass};
pub use engine::{Analysed, Engine, GitEngine};
pub use flags::Flags;
pub use handler::{
    GitHandler, GitHandlerOptions, GitParts, GitStores, MAX_COMMITS, Made, Payload, PayloadError,
    Wish,
};
pub use identity::{Identity, When};
pub use mirror::{
    GitMirrors, InvalidSource, Mirror, MirrorError, Mirrors, MirrorsError, Selection, Source,
};
pub use oid::{InvalidObjectId, ObjectFormat, ObjectId};
pub use options::{Access, EngineLimits, GitOptions, MirrorLimits, SourcePolicy};
pub use outcome::{Outcome, Refusal};
pub use profile::Profile;
pub use program::ProgramError;
pub use version::GitVersion;

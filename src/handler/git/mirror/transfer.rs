//! Fetches from a source.
//!
//! The source's one protocol is allowed and no other. Refs go into a namespace of their own, and
//! replacement refs are not among them; submodules and large files of LFS are never fetched. What is
//! fetched by its id is pinned by the same step. How to sign in is in the mirror's configuration,
//! and nowhere else.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use tokio::process::Command;
use tokio::time::Instant;

use super::error::MirrorError;
use super::fetch_error::FetchError;
use super::job::{Done, JobError, Limits, Output, run};
use super::lock::Held;
use super::owner;
use super::settings::shell;
use super::source::Source;
use crate::handler::git::complaint::is_of_memory;
use crate::handler::git::oid::{ObjectFormat, ObjectId};
use crate::handler::git::options::{Access, MirrorLimits};
use crate::handler::git::program::Program;

/// Branches and tags, and where HEAD points: a pattern, since a source may have none, and then the
/// mirror must not keep what it had. Everything else of the source is of no interest.
const REFSPECS: &str = "+refs/heads/*:refs/qw/heads/*\n+refs/tags/*:refs/qw/tags/*\n\
                        +HEAD*:refs/qw/default*\n";
/// The tip of the default branch, where REFSPECS puts it.
pub(super) const DEFAULT: &str = "refs/qw/default";
/// Where pins lie.
pub(super) const PINS: &str = "refs/qw/pin";
/// How ssh asks nothing and trusts only hosts that are known.
const SSH: &str = "ssh -oBatchMode=yes -oStrictHostKeyChecking=yes -oConnectTimeout=10";

/// What is needed to talk to sources.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) program: Program,
    pub(super) access: Access,
    pub(super) limits: MirrorLimits,
    /// The configuration for sources on this disk.
    pub(super) global_config: PathBuf,
    /// Whose repositories on this disk may be read though they are not ours.
    pub(super) trusted: Vec<PathBuf>,
}

impl Transfer {
    /// Fetches branches and tags, and forgets those that are gone. A mirror that ended where a shallow
    /// source did is asked to end where it does now, if at all.
    pub(super) async fn fetch(
        &self,
        git_dir: &Path,
        format: ObjectFormat,
        source: &Source,
        held: &Held,
        until: Instant,
    ) -> Result<(), FetchError> {
        // Git refuses to deepen what is whole.
        let is_shallow = git_dir.join("shallow").exists();
        let options: &[&str] = if is_shallow { &["--prune", "--unshallow"] } else { &["--prune"] };
        self.run(git_dir, format, source, REFSPECS, options, held, until).await
    }

    /// Fetches commits by their ids and pins them.
    pub(super) async fn fetch_ids(
        &self,
        git_dir: &Path,
        ids: &[ObjectId],
        source: &Source,
        held: &Held,
        until: Instant,
    ) -> Result<(), FetchError> {
        let Some(format) = ids.first().map(ObjectId::format) else { return Ok(()) };
        let mut refspecs = String::new();
        for id in ids {
            // Writing to a String cannot fail.
            let _ = writeln!(refspecs, "+{id}:{PINS}/{id}");
        }
        self.run(git_dir, format, source, &refspecs, &[], held, until).await
    }

    #[expect(clippy::too_many_arguments, reason = "two callers, which differ in two of them")]
    async fn run(
        &self,
        git_dir: &Path,
        format: ObjectFormat,
        source: &Source,
        refspecs: &str,
        options: &[&str],
        held: &Held,
        until: Instant,
    ) -> Result<(), FetchError> {
        self.check_owner(source).await?;
        let mut command = self.program.command(git_dir, format, &[]);
        self.admit(&mut command, source);
        command.args(["fetch", "--quiet", "--stdin", "--no-tags", "--no-write-fetch-head"]);
        command.args(["--no-recurse-submodules", "--no-auto-maintenance", "--refmap="]);
        command.args(["--update-shallow"]).args(options).arg("origin");
        let limits =
            Limits { memory: Some(self.limits.fetch_memory), file: Some(self.limits.repository) };
        match run(command, refspecs.as_bytes(), Output::Locked(held), limits, until).await {
            Ok(Done { success: true, .. }) => Ok(()),
            Ok(done) if has_stopped_at(git_dir, self.limits.repository) => {
                Err(MirrorError::TooLarge(done.stderr).into())
            }
            Ok(done) => Err(FetchError::of(&self.explained(done.stderr, source))),
            Err(error @ (JobError::Io(_) | JobError::Late | JobError::TooMuch(_))) => {
                Err(MirrorError::Fetch(error.to_string()).into())
            }
        }
    }

    async fn check_owner(&self, source: &Source) -> Result<(), MirrorError> {
        let Some(path) = source.path() else { return Ok(()) };
        let trusted = self.trusted.clone();
        let check = move || owner::check(&path, &trusted, geteuid().as_raw());
        let checked = tokio::task::spawn_blocking(check).await;
        checked.unwrap_or_else(|error| Err(MirrorError::Local(error.to_string())))
    }

    /// What was said, with the limit that may have been the cause. What a server says of its own
    /// memory is none of ours, unless it runs here.
    fn explained(&self, said: String, source: &Source) -> String {
        let is_ours = |line: &&str| source.protocol() == "file" || !line.starts_with("remote:");
        let ours: Vec<&str> = said.lines().filter(is_ours).collect();
        if !is_of_memory(&ours.join("\n").to_lowercase()) {
            return said;
        }
        let limit = self.limits.fetch_memory / (1024 * 1024);
        format!("out of memory, of which each program here may have {limit} MiB: {said}")
    }

    /// Lets a command talk to the source.
    fn admit(&self, command: &mut Command, source: &Source) {
        let ssh = self.access.ssh_command.as_deref().unwrap_or(SSH);
        command
            .envs(&self.access.environment)
            .env("GIT_ALLOW_PROTOCOL", source.protocol())
            .env("GIT_SSH_COMMAND", ssh)
            .env("GIT_CONFIG_GLOBAL", &self.global_config);
    }
}

/// Whether a pack that was being received is as large as allowed: then that is why the fetch failed,
/// and git may not say so. Those that came whole have other names.
fn has_stopped_at(git_dir: &Path, bytes: u64) -> bool {
    let entries = std::fs::read_dir(git_dir.join("objects/pack")).into_iter().flatten();
    entries.flatten().any(|entry| {
        entry.file_name().to_string_lossy().starts_with("tmp_")
            && entry.metadata().is_ok_and(|found| found.len() >= bytes)
    })
}

/// A helper for gitcredentials(7) that reads a file when it is asked for a password.
pub(super) fn helper(file: &str) -> String {
    format!("!f() {{ test \"$1\" = get && cat -- {}; }}; f", shell(file))
}

/// What git-check-ref-format(1) allows, and a bit less.
pub(super) fn is_branch(name: &str) -> bool {
    !name.is_empty()
        && name.len() < 1024
        && !name.chars().any(|c| c.is_control() || " ~^:?*[\\".contains(c))
        && !name.contains("..")
        && !name.contains("@{")
        && name.split('/').all(|part| {
            !part.is_empty()
                && !part.starts_with('.')
                && !part.ends_with('.')
                && part.strip_suffix(".lock").is_none()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_branches_are_checked() {
        assert!(is_branch("a/b-c.d"));
        for bad in ["", "a..b", "/a", "a//b", ".a", "a.lock", "a b", "a\u{7}"] {
            assert!(!is_branch(bad), "{bad}");
        }
    }

    #[test]
    fn only_what_is_being_received_counts() {
        let folder = tempfile::tempdir().unwrap();
        let packs = folder.path().join("objects/pack");
        std::fs::create_dir_all(&packs).unwrap();
        std::fs::write(packs.join("pack-1.pack"), [0; 10]).unwrap();
        std::fs::write(packs.join("tmp_pack_2"), [0; 9]).unwrap();
        assert!(!has_stopped_at(folder.path(), 10));
        assert!(has_stopped_at(folder.path(), 9));
    }
}

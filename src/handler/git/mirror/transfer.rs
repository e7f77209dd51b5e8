//! Talks to a source: what is there, and fetching it.
//!
//! The source's one protocol is allowed and no other. Refs go into a namespace of their own, and
//! replacement refs are not among them; submodules and large files of LFS are never fetched. What is
//! fetched by its id is pinned by the same step.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tokio::process::Command;
use tokio::time::Instant;

use super::error::MirrorError;
use super::job::{Done, JobError, Limits, Output, run};
use super::lock::Held;
use super::settings::shell;
use super::source::Source;
use crate::handler::git::complaint::is_of_memory;
use crate::handler::git::oid::{ObjectFormat, ObjectId};
use crate::handler::git::options::{Access, MirrorLimits};
use crate::handler::git::program::Program;

/// Branches and tags; everything else of the source is of no interest.
const REFSPECS: &str = "+refs/heads/*:refs/qw/heads/*\n+refs/tags/*:refs/qw/tags/*\n";
/// Where pins lie.
pub(super) const PINS: &str = "refs/qw/pin";
/// Bytes of the answer to what HEAD is.
const MAX_HEAD: usize = 64 * 1024;
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
}

/// What a source says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Head {
    /// The branch that HEAD names, without `refs/heads/`.
    pub(super) branch: Option<String>,
    /// How its objects are named, if it has any.
    pub(super) format: Option<ObjectFormat>,
}

/// Why a fetch failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FetchError {
    /// The source does not have this object, or does not give it.
    Gone(ObjectId),
    /// The mirror itself is damaged.
    Damaged(String),
    /// Anything else.
    Other(MirrorError),
}

impl Transfer {
    /// Asks what HEAD is: this also tells whether the source can be read.
    pub(super) async fn head(&self, source: &Source, until: Instant) -> Result<Head, MirrorError> {
        let config = [("remote.origin.url", source.url().to_owned())];
        let config = config.into_iter().chain(access_config(source, &self.access));
        let config: Vec<(&str, String)> = config.collect();
        let mut command = self.program.bare_command(&config);
        command.env("GIT_CEILING_DIRECTORIES", "/");
        self.admit(&mut command, source);
        command.args(["ls-remote", "--symref", "origin", "HEAD"]);
        let limits = Limits { memory: Some(self.limits.fetch_memory), file: None };
        let done = run(command, b"", Output::Kept(MAX_HEAD), limits, until).await;
        let done = done.map_err(|error| MirrorError::Fetch(error.to_string()))?;
        if !done.success {
            return Err(refusal(&self.explained(done.stderr, source)));
        }
        Ok(head(&done.stdout))
    }

    /// Fetches branches and tags, and forgets those that are gone.
    pub(super) async fn fetch(
        &self,
        git_dir: &Path,
        format: ObjectFormat,
        source: &Source,
        held: &Held,
        until: Instant,
    ) -> Result<(), FetchError> {
        self.run(git_dir, format, source, REFSPECS, &["--prune"], held, until).await
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
        let mut command = self.program.command(git_dir, format, &[]);
        self.admit(&mut command, source);
        command.args(["fetch", "--quiet", "--stdin", "--no-tags", "--no-write-fetch-head"]);
        command.args(["--no-recurse-submodules", "--no-auto-maintenance", "--refmap="]);
        command.args(["--update-shallow"]).args(options).arg("origin");
        let limits =
            Limits { memory: Some(self.limits.fetch_memory), file: Some(self.limits.repository) };
        match run(command, refspecs.as_bytes(), Output::Locked(held), limits, until).await {
            Ok(Done { success: true, .. }) => Ok(()),
            Ok(done) if has_file_of(git_dir, self.limits.repository) => {
                Err(FetchError::Other(MirrorError::TooLarge(done.stderr)))
            }
            Ok(done) => Err(fetch_error(&self.explained(done.stderr, source))),
            Err(error @ (JobError::Io(_) | JobError::Late | JobError::TooMuch(_))) => {
                Err(FetchError::Other(MirrorError::Fetch(error.to_string())))
            }
        }
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

/// Whether a pack, whole or not, is as large as allowed: then that is why the fetch failed.
fn has_file_of(git_dir: &Path, bytes: u64) -> bool {
    let entries = std::fs::read_dir(git_dir.join("objects/pack")).into_iter().flatten();
    entries.flatten().any(|entry| entry.metadata().is_ok_and(|found| found.len() >= bytes))
}

/// How the password for a source is found, for a command that reads no mirror's configuration.
fn access_config(source: &Source, access: &Access) -> Vec<(&'static str, String)> {
    let mut config = vec![
        ("http.followRedirects", "false".to_owned()),
        ("http.lowSpeedLimit", "1000".to_owned()),
        ("http.lowSpeedTime", "60".to_owned()),
    ];
    if let Some(file) = source.host().and_then(|host| access.credentials.get(host)) {
        config.push(("credential.helper", helper(&file.to_string_lossy())));
    }
    config
}

/// A helper for gitcredentials(7) that reads a file when it is asked for a password.
pub(super) fn helper(file: &str) -> String {
    format!("!f() {{ test \"$1\" = get && cat -- {}; }}; f", shell(file))
}

/// Reads `ref: refs/heads/main<TAB>HEAD` and `OID<TAB>HEAD`.
fn head(said: &[u8]) -> Head {
    let mut head = Head::default();
    for line in String::from_utf8_lossy(said).lines() {
        let Some((value, "HEAD")) = line.split_once('\t') else { continue };
        if let Some(branch) = value.strip_prefix("ref: refs/heads/") {
            head.branch = Some(branch.to_owned()).filter(|branch| is_branch(branch));
        } else {
            head.format = ObjectId::from_hex(value.as_bytes()).map(|id| id.format());
        }
    }
    head
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

/// Sign-in and reachability may be mended; the rest of these will not.
const UNREADABLE: [(&str, &str); 6] = [
    ("does not appear to be a git repository", ""),
    ("repository", "not found"),
    ("dubious ownership", ""),
    ("transport", "not allowed"),
    ("unable to update url base from redirection", ""),
    ("mismatched algorithms", ""),
];
const SIGN_IN: [&str; 6] = [
    "authentication failed",
    "could not read username",
    "could not read password",
    "permission denied",
    "host key verification failed",
    "requested url returned error: 403",
];
const KILLED: &str = "died of signal 9";
const DAMAGED_SOURCE: [&str; 5] = [
    "repository corruption on the remote side",
    "did not send all necessary objects",
    "pack has bad object",
    "bad object",
    "pack is corrupted",
];
const TOO_LARGE: [&str; 3] = ["signal 25", "file size limit", "file too large"];
const NO_ROOM: [&str; 2] = ["no space left", "disk quota exceeded"];
const DAMAGED_MIRROR: [&str; 6] = [
    "object file",
    "loose object",
    "packfile",
    "could not read",
    "unable to parse commit",
    "reference broken",
];

/// Why a source cannot be read.
fn refusal(said: &str) -> MirrorError {
    let lower = said.to_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    let said = said.trim().to_owned();
    // A source on this disk is packed under our limits, and what packs is as large as anything here: when
    // it dies of that, the source speaks of corruption.
    if has(&SIGN_IN) || is_of_memory(&lower) || lower.contains(KILLED) {
        MirrorError::Fetch(said)
    } else if has(&NO_ROOM) {
        MirrorError::NoRoom(said)
    } else if has(&TOO_LARGE) {
        MirrorError::TooLarge(said)
    } else if has(&DAMAGED_SOURCE) {
        MirrorError::Corrupt(said)
    } else if lower.lines().any(|line| {
        UNREADABLE.iter().any(|(first, second)| line.contains(first) && line.contains(second))
    }) {
        MirrorError::Unreadable(said)
    } else {
        MirrorError::Fetch(said)
    }
}

fn fetch_error(said: &str) -> FetchError {
    if let Some(id) = gone(said) {
        return FetchError::Gone(id);
    }
    let lower = said.to_lowercase();
    // What the other side says of itself begins with `remote:`.
    let is_ours = lower.lines().filter(|line| !line.starts_with("remote:")).any(|line| {
        line.starts_with("error:") && DAMAGED_MIRROR.iter().any(|part| line.contains(part))
    });
    match refusal(said) {
        MirrorError::Fetch(said)
            if is_ours && !said.contains("remote:") && !is_of_memory(&lower) =>
        {
            FetchError::Damaged(said)
        }
        other => FetchError::Other(other),
    }
}

/// The id that a server refused to give.
fn gone(said: &str) -> Option<ObjectId> {
    ["not our ref ", "unadvertised object ", "couldn't find remote ref "].iter().find_map(|words| {
        let (_, rest) = said.split_once(words)?;
        rest.split(|c: char| !c.is_ascii_hexdigit()).next()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read() {
        let id = ObjectFormat::Sha256.empty_tree();
        let said = format!("ref: refs/heads/a/b\tHEAD\n{id}\tHEAD\n");
        let expected = Head { branch: Some("a/b".to_owned()), format: Some(ObjectFormat::Sha256) };
        assert_eq!(head(said.as_bytes()), expected);
        assert_eq!(head(b""), Head::default());
        for bad in ["", "a..b", "/a", "a//b", ".a", "a.lock", "a b", "a\u{7}"] {
            assert!(!is_branch(bad), "{bad}");
        }
    }

    #[test]
    fn errors_are_told_apart() {
        let id = ObjectFormat::Sha1.empty_tree();
        for said in [
            format!("fatal: remote error: upload-pack: not our ref {id}\n"),
            format!("error: Server does not allow request for unadvertised object {id}"),
        ] {
            assert_eq!(fetch_error(&said), FetchError::Gone(id.parse().unwrap()));
        }
        let other = |said: &str| match fetch_error(said) {
            FetchError::Other(error) => error,
            other => panic!("{said}: {other:?}"),
        };
        let unreadable = other(
            "fatal: '/x' does not appear to be a git repository\nfatal: Could not read from remote repository.",
        );
        assert!(matches!(unreadable, MirrorError::Unreadable(_)));
        assert!(matches!(
            other("fatal: repository 'https://a/b/' not found"),
            MirrorError::Unreadable(_)
        ));
        assert!(other("bash: git-upload-pack: command not found").is_transient());
        assert!(other("fatal: Authentication failed for 'https://a/b/'").is_transient());
        assert!(
            other("ssh: Could not resolve hostname x: Name or service not found").is_transient()
        );
        assert!(other("fatal: the remote end hung up unexpectedly").is_transient());
        assert!(matches!(other("error: index-pack died of signal 25"), MirrorError::TooLarge(_)));
        assert!(matches!(
            other("fatal: write error: No space left on device"),
            MirrorError::NoRoom(_)
        ));
        let corrupt = "remote: aborting due to possible repository corruption on the remote side.";
        assert!(matches!(other(corrupt), MirrorError::Corrupt(_)));
        for said in [
            "remote: fatal: Out of memory, malloc failed (tried to allocate 9 bytes)\n\
             remote: aborting due to possible repository corruption on the remote side.",
            "error: object file objects/ab/cd could not be read: Cannot allocate memory",
            "error: git-pack-objects died of signal 9\n\
             remote: aborting due to possible repository corruption on the remote side.",
        ] {
            assert!(matches!(other(said), MirrorError::Fetch(_)), "{said}");
        }
        let ours = "error: object file objects/ab/cd is empty\nfatal: loose object is corrupt";
        assert!(matches!(fetch_error(ours), FetchError::Damaged(_)));
    }
}

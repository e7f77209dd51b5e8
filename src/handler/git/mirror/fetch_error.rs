//! Why a fetch failed, told by what git said.
//!
//! Lines that begin with `remote:` are the other side's. They may tell that the source is damaged, but
//! never that the mirror is, nor that a limit of ours was reached. A server says that its repository may
//! be corrupt whenever its packing ends early, whatever the cause: only words about an object that
//! cannot be read count.

use super::error::MirrorError;
use crate::handler::git::complaint::is_of_memory;
use crate::handler::git::oid::ObjectId;

/// Why a fetch failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FetchError {
    /// The source does not have this object, or does not give it.
    Gone(ObjectId),
    /// The source names its objects in the other format.
    OtherFormat(String),
    /// The mirror itself is damaged.
    Damaged(String),
    /// Anything else.
    Other(MirrorError),
}

impl FetchError {
    /// Of what git said before it failed.
    pub(super) fn of(said: &str) -> Self {
        if let Some(id) = gone(said) {
            return Self::Gone(id);
        }
        let lower = said.to_lowercase();
        let detail = said.trim().to_owned();
        if lower.contains("mismatched algorithms") || lower.contains("repository's object format") {
            return Self::OtherFormat(detail);
        }
        match refusal(&lower, detail) {
            MirrorError::Fetch(detail) if is_damage(&lower) => Self::Damaged(detail),
            other => Self::Other(other),
        }
    }

    /// Either the mirror or the source is damaged; a new clone shows which.
    pub(super) fn is_of_damage(&self) -> bool {
        matches!(self, Self::Damaged(_) | Self::Other(MirrorError::Corrupt(_)))
    }
}

impl From<MirrorError> for FetchError {
    fn from(error: MirrorError) -> Self {
        Self::Other(error)
    }
}

impl From<FetchError> for MirrorError {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Damaged(detail) => Self::Corrupt(detail),
            FetchError::Gone(id) => Self::Fetch(format!("{id} is gone")),
            FetchError::OtherFormat(detail) => Self::Unreadable(detail),
            FetchError::Other(error) => error,
        }
    }
}

/// Sign-in and reachability may be mended; the rest of these will not.
const UNREADABLE: [(&str, &str); 5] = [
    ("does not appear to be a git repository", ""),
    ("repository", "not found"),
    ("dubious ownership", ""),
    ("transport", "not allowed"),
    ("unable to update url base from redirection", ""),
];
const SIGN_IN: [&str; 6] = [
    "authentication failed",
    "could not read username",
    "could not read password",
    "permission denied",
    "host key verification failed",
    "requested url returned error: 403",
];
const TOO_LARGE: [&str; 3] = ["signal 25", "file size limit", "file too large"];
const NO_ROOM: [&str; 2] = ["no space left", "disk quota exceeded"];
/// A program that was killed or crashed has seen no damage, whatever the others made of its end.
const DIED: &str = "died of signal";
/// Words about objects, whoever says them; the second is what the same line must hold, too.
const DAMAGE: [(&str, &str); 17] = [
    ("object file", "is empty"),
    ("object file", "could not be read"),
    ("corrupt loose object", ""),
    ("loose object", "is corrupt"),
    ("packed object", "is corrupt"),
    ("packfile", "does not match index"),
    ("non-monotonic index", ""),
    ("unable to unpack", ""),
    ("unable to parse object", ""),
    ("inflate: ", ""),
    ("bad object", ""),
    ("bad tree object", ""),
    ("missing object", ""),
    ("failed to traverse parents", ""),
    ("failed to read delta-pack base object", ""),
    ("unresolved deltas", ""),
    ("pack is corrupted", ""),
];
/// Words about a mirror's own files: of a server's they may tell that it is being repacked.
const DAMAGE_HERE: [(&str, &str); 7] = [
    ("objects/pack/pack-", ""),
    ("multi-pack-index", ""),
    ("commit-graph", ""),
    ("reference broken", ""),
    ("unexpected line in", "packed-refs"),
    ("bad shallow line", ""),
    ("not a git repository: '", ""),
];
/// These are said of other things than objects, too: what follows must be an id.
const UNREAD: [&str; 3] = ["could not read ", "unable to read ", "unable to parse commit "];
/// Lines that hold these speak of the process, and not of what it looked at.
const ENVIRONMENT: [&str; 2] = ["too many open files", "permission denied"];

/// Why a source cannot be read, of what was said in lower case.
fn refusal(lower: &str, detail: String) -> MirrorError {
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    let is_ours = |parts: &[&str]| ours(lower).any(|line| parts.iter().any(|it| line.contains(it)));
    // A source on this disk is packed under our limits, and what packs is as large as anything here.
    if has(&SIGN_IN) || is_of_memory(lower) {
        MirrorError::Fetch(detail)
    } else if is_ours(&NO_ROOM) {
        MirrorError::NoRoom(detail)
    } else if is_ours(&TOO_LARGE) {
        MirrorError::TooLarge(detail)
    } else if lower.contains(DIED) {
        MirrorError::Fetch(detail)
    } else if theirs(lower).any(tells_damage) || has(&["did not send all necessary objects"]) {
        MirrorError::Corrupt(detail)
    } else if lower.lines().any(|line| holds(line, &UNREADABLE)) {
        MirrorError::Unreadable(detail)
    } else {
        MirrorError::Fetch(detail)
    }
}

/// Whether what git said, in lower case, tells that the mirror is damaged.
pub(super) fn is_damage(lower: &str) -> bool {
    let excused = ours(lower).any(|line| is_of_memory(line) || line.contains(DIED));
    let is_complaint = |line: &&str| {
        ["error: ", "fatal: "].iter().any(|first| line.starts_with(first))
            && !ENVIRONMENT.iter().any(|words| line.contains(words))
    };
    let mut complaints = ours(lower).filter(is_complaint);
    !excused && complaints.any(|line| tells_damage(line) || holds(line, &DAMAGE_HERE))
}

fn tells_damage(line: &str) -> bool {
    let is_of_id = |words: &&str| {
        let rest = line.split_once(*words).map(|(_, rest)| rest);
        let word = rest.and_then(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric()).next());
        word.is_some_and(|word| word.parse::<ObjectId>().is_ok())
    };
    holds(line, &DAMAGE) || UNREAD.iter().any(is_of_id)
}

fn holds(line: &str, pairs: &[(&str, &str)]) -> bool {
    pairs.iter().any(|(first, second)| line.contains(first) && line.contains(second))
}

fn ours(said: &str) -> impl Iterator<Item = &str> {
    said.lines().filter(|line| !line.starts_with("remote:"))
}

fn theirs(said: &str) -> impl Iterator<Item = &str> {
    said.lines().filter(|line| line.starts_with("remote:"))
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
    use crate::handler::git::oid::ObjectFormat;

    const ID: &str = ObjectFormat::Sha1.empty_tree();
    /// What git upload-pack says, whatever ended its packing.
    const ABORTED: &str = "error: git upload-pack: git-pack-objects died with error.\n\
         remote: aborting due to possible repository corruption on the remote side.\n\
         fatal: protocol error: bad pack header\n\
         fatal: git upload-pack: aborting due to possible repository corruption on the remote side.";

    fn other(said: &str) -> MirrorError {
        match FetchError::of(said) {
            FetchError::Other(error) => error,
            other => panic!("{said}: {other:?}"),
        }
    }

    #[test]
    fn what_is_gone_or_cannot_be_read_is_told_apart() {
        for said in [
            format!("fatal: remote error: upload-pack: not our ref {ID}\n"),
            format!("error: Server does not allow request for unadvertised object {ID}"),
        ] {
            assert_eq!(FetchError::of(&said), FetchError::Gone(ID.parse().unwrap()));
        }
        for said in [
            "fatal: '/x' does not appear to be a git repository\n\
             fatal: Could not read from remote repository.",
            "fatal: repository 'https://a/b/' not found",
            "fatal: detected dubious ownership in repository at '/x'",
        ] {
            assert!(matches!(other(said), MirrorError::Unreadable(_)), "{said}");
        }
        for said in [
            "bash: git-upload-pack: command not found",
            "fatal: Authentication failed for 'https://a/b/'",
            "ssh: Could not resolve hostname x: Name or service not found\n\
             fatal: Could not read from remote repository.",
            "fatal: could not read Username for 'https://a': terminal prompts disabled",
            "fatal: the remote end hung up unexpectedly",
            "fatal: expected 'packfile', received 'x'",
        ] {
            assert!(matches!(other(said), MirrorError::Fetch(_)), "{said}");
        }
        for said in [
            "fatal: mismatched algorithms: client sha1; server sha256",
            "fatal: Server does not support this repository's object format",
        ] {
            assert!(matches!(FetchError::of(said), FetchError::OtherFormat(_)), "{said}");
        }
    }

    #[test]
    fn only_our_own_limits_count() {
        assert!(matches!(other("error: index-pack died of signal 25"), MirrorError::TooLarge(_)));
        let full = "fatal: write error: No space left on device";
        assert!(matches!(other(full), MirrorError::NoRoom(_)));
        for said in [
            "remote: error: pack-objects died of signal 25",
            "remote: fatal: cannot create a file: No space left on device",
        ] {
            assert!(matches!(other(said), MirrorError::Fetch(_)), "{said}");
        }
    }

    #[test]
    fn a_source_is_damaged_if_an_object_cannot_be_read() {
        for said in [
            "remote: error: corrupt loose object 'ID'",
            "remote: fatal: loose object ID (stored in ./objects/a) is corrupt",
            "remote: fatal: unable to read ID",
            "remote: fatal: bad tree object ID",
            "remote: error: Could not read ID\n\
             remote: fatal: Failed to traverse parents of commit ID",
        ] {
            let said = format!("{}\n{ABORTED}", said.replace("ID", ID));
            assert!(matches!(other(&said), MirrorError::Corrupt(_)), "{said}");
        }
        let incomplete = "error: https://a/b did not send all necessary objects";
        assert!(matches!(other(incomplete), MirrorError::Corrupt(_)));
        assert!(matches!(other(ABORTED), MirrorError::Fetch(_)));
        for said in [
            "remote: fatal: Out of memory, malloc failed (tried to allocate 9 bytes)",
            "error: git-pack-objects died of signal 9",
            "remote: error: packfile ./objects/pack/pack-1.pack cannot be accessed",
            "remote: fatal: unable to create thread: Resource temporarily unavailable",
        ] {
            let said = format!("{said}\n{ABORTED}");
            assert!(matches!(other(&said), MirrorError::Fetch(_)), "{said}");
        }
        // The program that looks whether all came was killed.
        let killed = format!("error: rev-list died of signal 9\n{incomplete}");
        assert!(matches!(other(&killed), MirrorError::Fetch(_)));
    }

    #[test]
    fn a_mirror_is_damaged_if_git_says_so_of_ours() {
        for said in [
            "error: inflate: data stream error (incorrect header check)",
            "error: unable to unpack ID header",
            "fatal: loose object ID (stored in /m/objects/ab/cd) is corrupt",
            "error: object file /m/objects/ab/cd is empty",
            "error: packfile /m/objects/pack/pack-1.pack does not match index",
            "error: Could not read ID",
            "fatal: unresolved deltas left after unpacking",
            "fatal: missing object ID for refs/qw/tags/v1",
            "fatal: unexpected line in /m/packed-refs: x",
        ] {
            let said = said.replace("ID", ID);
            for said in [said.clone(), format!("remote: Enumerating objects: 3, done.\n{said}")] {
                assert!(matches!(FetchError::of(&said), FetchError::Damaged(_)), "{said}");
            }
            let theirs = format!("remote: {said}");
            assert!(!matches!(FetchError::of(&theirs), FetchError::Damaged(_)), "{theirs}");
        }
        for said in [
            "error: object file objects/ab/cd could not be read: Cannot allocate memory",
            "error: unable to open /m/objects/pack/pack-1.idx: Too many open files",
        ] {
            assert!(matches!(other(said), MirrorError::Fetch(_)), "{said}");
        }
    }
}

//! What a git child died of.
//!
//! Git tells in words, and with one exit status for almost everything. The words are those of the C
//! locale; what is not recognised counts as a failure that another attempt may mend.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::handler::git::redact::redacted;

/// What a child died of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Death {
    pub(super) cause: Cause,
    /// For a human.
    pub(super) detail: String,
}

/// Why it died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// It wanted more memory than it may have.
    Memory,
    /// A signal: the kernel because of memory or a broken stack, or somebody.
    Killed,
    /// An object is missing or damaged.
    Corrupt,
    /// Anything else.
    Other,
}

/// Parts of messages about memory.
const MEMORY: [&str; 5] =
    ["out of memory", "malloc failed", "cannot allocate memory", "mmap failed", "data too large"];
/// Parts of messages about damage, in lower case.
const CORRUPT: [&str; 22] = [
    "could not read",
    "unable to read",
    "unable to parse",
    "could not get object info",
    "unable to find",
    "is corrupt",
    "corrupt ",
    "is empty",
    "bad object",
    "bad tree",
    "broken ",
    "disappeared",
    "inflate",
    "packfile",
    "unknown object type",
    "invalid object",
    "malformed mode",
    "too-short tree",
    "truncated",
    "empty filename in tree",
    "garbage at end of",
    "hash mismatch",
];

impl Death {
    /// Judges a status and the end of standard error.
    pub(super) fn of(status: Option<ExitStatus>, said: &[u8]) -> Self {
        let said = redacted(said);
        let lower = said.to_lowercase();
        let signal = status.and_then(|status| status.signal());
        let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
        // SIGKILL is how the kernel ends the largest when memory runs out, SIGSEGV how a stack ends.
        let by_kernel =
            matches!(signal, Some(libc::SIGKILL | libc::SIGSEGV | libc::SIGBUS | libc::SIGABRT));
        let cause = if by_kernel {
            Cause::Killed
        } else if has(&MEMORY) {
            Cause::Memory
        } else if has(&CORRUPT) {
            Cause::Corrupt
        } else {
            Cause::Other
        };
        let status = match (status, signal) {
            (_, Some(signal)) => format!("signal {signal}"),
            (Some(status), None) => format!("exit {}", status.code().unwrap_or_default()),
            (None, None) => "no exit".to_owned(),
        };
        Self { cause, detail: format!("git ended with {status}: {}", said.trim()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_apart() {
        let cause =
            |raw, said: &str| Death::of(Some(ExitStatus::from_raw(raw)), said.as_bytes()).cause;
        let failed = 128 << 8;
        assert_eq!(cause(failed, "fatal: Out of memory, malloc failed (tried 7)"), Cause::Memory);
        assert_eq!(cause(9, ""), Cause::Killed);
        assert_eq!(cause(15, ""), Cause::Other);
        assert_eq!(cause(failed, "fatal: unable to read f719ef"), Cause::Corrupt);
        assert_eq!(cause(failed, "error: object file x is empty\n"), Cause::Corrupt);
        assert_eq!(cause(failed, "fatal: not a git repository"), Cause::Other);
        assert_eq!(Death::of(None, b"").detail, "git ended with no exit: ");
    }
}

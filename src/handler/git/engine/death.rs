//! What a git child died of.
//!
//! Git tells in words, and with one exit status for almost everything. The words are those of the C
//! locale; what is not recognised counts as a failure that another attempt may mend.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::handler::exec::status::name;
use crate::handler::git::complaint::is_of_memory;
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

/// Bytes that are kept of the end of what a child said: two of them fit into a detail.
const SAID_KEPT: usize = 800;
const MIB: u64 = 1024 * 1024;
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

/// What a child had of memory, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    /// The most that it was seen to have resident.
    pub(super) peak: Option<u64>,
    /// What it may have.
    pub(super) limit: u64,
}

impl Death {
    /// Judges how `program` ended, and the end of its standard error.
    pub(super) fn of(
        program: &str,
        status: Option<ExitStatus>,
        said: &[u8],
        memory: Memory,
    ) -> Self {
        let said = redacted(said);
        let lower = said.to_lowercase();
        let signal = status.and_then(|status| status.signal());
        let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
        // SIGKILL is how the kernel ends the largest when memory runs out, SIGSEGV how a stack ends.
        let by_kernel =
            matches!(signal, Some(libc::SIGKILL | libc::SIGSEGV | libc::SIGBUS | libc::SIGABRT));
        let cause = if by_kernel {
            Cause::Killed
        } else if is_of_memory(&lower) {
            Cause::Memory
        } else if has(&CORRUPT) {
            Cause::Corrupt
        } else {
            Cause::Other
        };
        let mut detail = match status {
            Some(status) => format!("git {program} ended with {}", name(status)),
            None => format!("git {program} did not end"),
        };
        match cause {
            Cause::Memory | Cause::Killed => detail.push_str(&memory.described()),
            Cause::Corrupt | Cause::Other => {}
        }
        let said = end(said.trim());
        if !said.is_empty() {
            detail.push_str(": ");
            detail.push_str(said);
        }
        Self { cause, detail }
    }
}

impl Memory {
    fn described(self) -> String {
        let limit = self.limit / MIB;
        match self.peak {
            Some(peak) => {
                let peak = peak.div_ceil(MIB);
                format!(", was seen with {peak} MiB of memory and may have {limit} MiB")
            }
            None => format!(", may have {limit} MiB of memory"),
        }
    }
}

/// The end of a text, as much of it as is kept.
fn end(text: &str) -> &str {
    let from = text.len().saturating_sub(SAID_KEPT);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at));
    from.map_or("", |from| &text[from..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(raw: i32, said: &str) -> Death {
        let memory = Memory { peak: Some(64 * MIB + 1), limit: 128 * MIB };
        Death::of("cat-file", Some(ExitStatus::from_raw(raw)), said.as_bytes(), memory)
    }

    #[test]
    fn causes_are_told_apart() {
        let cause = |raw, said: &str| death(raw, said).cause;
        let failed = 128 << 8;
        assert_eq!(cause(failed, "fatal: Out of memory, malloc failed (tried 7)"), Cause::Memory);
        assert_eq!(cause(9, ""), Cause::Killed);
        assert_eq!(cause(15, ""), Cause::Other);
        assert_eq!(cause(failed, "fatal: unable to read f719ef"), Cause::Corrupt);
        assert_eq!(cause(failed, "error: object file x is empty\n"), Cause::Corrupt);
        assert_eq!(cause(failed, "fatal: not a git repository"), Cause::Other);
    }

    #[test]
    fn a_death_is_told_with_its_evidence() {
        assert_eq!(
            death(9, "").detail,
            "git cat-file ended with signal SIGKILL, was seen with 65 MiB of memory and may have 128 MiB"
        );
        let said = format!("{}é\nfatal: Out of memory, malloc failed\n", "x".repeat(2000));
        let detail = death(128 << 8, &said).detail;
        assert!(detail.starts_with("git cat-file ended with exit 128, was seen with"), "{detail}");
        assert!(detail.ends_with("fatal: Out of memory, malloc failed"), "{detail}");
        assert!(detail.len() < 1000);
        assert_eq!(death(1 << 8, "x\n").detail, "git cat-file ended with exit 1: x");
        let unseen = Memory { peak: None, limit: 64 * MIB };
        assert_eq!(Death::of("diff-tree", None, b"", unseen).detail, "git diff-tree did not end");
    }
}

//! Who wrote or committed, and when, as the commit's header says it.
//!
//! The raw bytes are the truth; everything else is derived and may be missing. A mailmap is not
//! applied here: it changes with the default branch, so it belongs to the reading of results.

/// The latest point that Postgres and a calendar of four-digit years can show, 9999-12-31T23:59:59Z.
const LAST_SHOWN: i64 = 253_402_300_799;
/// The earliest, 0001-01-01T00:00:00Z.
const FIRST_SHOWN: i64 = -62_135_596_800;

/// The content of an `author` or `committer` header.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// The header's bytes after its name and the blank; empty when there is no such header.
    pub raw: Vec<u8>,
    /// The name, decoded; NUL is shown as U+2400.
    pub name: String,
    /// The address between the angle brackets, decoded likewise.
    pub email: String,
    /// The name and address were found in the form that git defines.
    pub well_formed: bool,
    /// When.
    pub when: When,
}

impl Identity {
    /// Bytes of memory that it points to.
    pub(super) fn weight(&self) -> usize {
        self.raw.len() + self.name.len() + self.email.len()
    }
}

/// A date and a zone, each only as far as it could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct When {
    /// Seconds since the Unix epoch; `None` when there is no number or it does not fit.
    pub epoch: Option<i64>,
    /// Minutes east of UTC, also absurd ones (`-3407` is -2047); `None` without a sign and at least
    /// four digits.
    pub zone_minutes: Option<i32>,
}

impl When {
    /// Date and zone could be read, and the date can be shown as a `timestamptz`.
    pub fn is_valid(self) -> bool {
        self.shown().is_some() && self.zone_minutes.is_some()
    }

    /// The date in seconds since the Unix epoch if it lies in the years 1 to 9999.
    pub fn shown(self) -> Option<i64> {
        self.epoch.filter(|epoch| (FIRST_SHOWN..=LAST_SHOWN).contains(epoch))
    }
}

//! What is unusual about a commit, as a set of bits.
//!
//! The bits are stored with the results, so a value never changes its meaning.

/// What is unusual about a commit; a set of bits, whose values never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(u32);

impl Flags {
    /// A date or zone is missing, unreadable or beyond the year 9999.
    pub const DATE_INVALID: Self = Self(1);
    /// An author or committer has not the form `name <address>`, or is missing.
    pub const IDENT_INVALID: Self = Self(1 << 1);
    /// Some text does not stand exactly for its bytes.
    pub const ENCODING_LOSSY: Self = Self(1 << 2);
    /// The message holds a NUL byte.
    pub const NUL_IN_MESSAGE: Self = Self(1 << 3);
    /// So many paths came and went that git did not look for inexact renames.
    pub const RENAME_LIMITED: Self = Self(1 << 4);
    /// Lines were not counted and renames not looked for: the commit was too large for that.
    pub const TRUNCATED: Self = Self(1 << 5);
    /// A blob was larger than the profile allows to look into.
    pub const BIG_FILES_UNREAD: Self = Self(1 << 6);
    /// A path stands twice in the list of changes.
    pub const DUPLICATE_PATHS: Self = Self(1 << 7);
    /// The subject or the body was cut.
    pub const MESSAGE_CUT: Self = Self(1 << 8);
    /// Headers beyond the limits were left out.
    pub const HEADERS_CUT: Self = Self(1 << 9);
    /// The commit object has not the form that git defines; what could be read was.
    pub const MALFORMED: Self = Self(1 << 10);

    /// None.
    pub const fn empty() -> Self {
        Self(0)
    }

    /// The bits, for storage.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The flags of stored bits; unknown ones are kept.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// All of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Sets `other` if `condition` holds.
    pub fn set_if(&mut self, condition: bool, other: Self) {
        if condition {
            self.0 |= other.0;
        }
    }
}

impl std::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

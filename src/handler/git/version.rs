//! The version of the git program, and what it can do.

use std::fmt;

/// A version of git.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GitVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

impl GitVersion {
    /// The oldest that is supported, Debian 12's own.
    pub const MINIMUM: Self = Self::new(2, 39, 0);

    /// Version `major.minor.patch`.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Reads what `git --version` prints: `git version 2.39.5 (Apple Git-154)`,
    /// `git version 2.48.0.rc1`, `git version 2.47.windows.1`.
    pub fn parse(said: &str) -> Option<Self> {
        let number = said.trim().strip_prefix("git version ")?.split(' ').next()?;
        let mut parts = number.split('.');
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next()?.parse().ok()?;
        let patch = parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        Some(Self { major, minor, patch })
    }

    /// `GIT_ATTR_SOURCE` is known: attributes are read from the tree that it names.
    pub(super) fn has_attr_source(self) -> bool {
        self >= Self::new(2, 41, 0)
    }
}

impl fmt::Display for GitVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        for (said, version) in [
            ("git version 2.39.5\n", GitVersion::new(2, 39, 5)),
            ("git version 2.39.3 (Apple Git-146)", GitVersion::new(2, 39, 3)),
            ("git version 2.48.0.rc1", GitVersion::new(2, 48, 0)),
            ("git version 2.47.windows.1", GitVersion::new(2, 47, 0)),
            ("git version 3.0", GitVersion::new(3, 0, 0)),
        ] {
            assert_eq!(GitVersion::parse(said), Some(version), "{said}");
        }
        assert_eq!(GitVersion::parse("hg 6"), None);
        assert!(GitVersion::new(2, 38, 9) < GitVersion::MINIMUM);
        assert!(!GitVersion::new(2, 40, 1).has_attr_source());
    }
}

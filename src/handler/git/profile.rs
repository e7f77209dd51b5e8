//! What pins a result: everything besides the commit itself that could change what is counted.
//!
//! Two analyses of a commit under profiles with one id are equal. The version of git is recorded, but
//! no part of the id: a fleet is upgraded node by node, and nothing is analysed anew for that. The
//! limits are not part of it either: they decide only whether a result is
//! [truncated](super::Flags::TRUNCATED) or refused as too large, and both say so.

use serde_json::json;
use sha2::{Digest, Sha256};

use super::class::CLASS_RULES;
use super::oid::hex;
use super::version::GitVersion;

/// How header and message are read; raised when that changes.
const READING: u32 = 1;

/// What pins a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The git that counts.
    pub git: GitVersion,
    /// From how many percent of likeness on a deletion and an addition are a rename.
    pub rename_percent: u8,
    /// Inexact renames are looked for among at most so many deletions and additions.
    pub rename_limit: u32,
    /// Blobs of more bytes are not looked into.
    pub big_file_threshold: u64,
}

impl Profile {
    /// The usual one: `-M50% -l1000`, blobs up to 16 MiB.
    pub fn new(git: GitVersion) -> Self {
        Self { git, rename_percent: 50, rename_limit: 1000, big_file_threshold: 16 * 1024 * 1024 }
    }

    /// Its id: the same for the same rules, on every node and in every version of this program that
    /// has these rules. 16 hexadecimal digits.
    pub fn id(&self) -> String {
        let digest = Sha256::digest(self.rules().to_string());
        hex(&digest[..8])
    }

    /// The rules and the version of git, for the record.
    pub fn spec(&self) -> serde_json::Value {
        let mut spec = self.rules();
        spec["git_version"] = json!(self.git.to_string());
        spec
    }

    fn rules(&self) -> serde_json::Value {
        json!({
            "engine": "git-cli",
            "diff": "myers",
            "merge": "first-parent",
            "rename_percent": self.rename_percent,
            "rename_limit": self.rename_limit,
            "copies": false,
            "big_file_threshold": self.big_file_threshold,
            "attributes": "none",
            "replace": "off",
            "class_rules": CLASS_RULES,
            "reading": READING,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_that_of_the_rules() {
        let profile = Profile::new(GitVersion::new(2, 47, 3));
        let upgraded = Profile { git: GitVersion::new(2, 50, 0), ..profile.clone() };
        assert_eq!(profile.id(), upgraded.id());
        assert_ne!(profile.spec(), upgraded.spec());
        let other = Profile { rename_limit: 7, ..profile.clone() };
        assert_ne!(profile.id(), other.id());
        assert_eq!(profile.id().len(), 16);
    }

    /// It is stored with the results: a change makes every commit be analysed anew.
    #[test]
    fn the_usual_id_stays() {
        assert_eq!(Profile::new(GitVersion::new(2, 47, 3)).id(), "8e99f312268c2451");
    }
}

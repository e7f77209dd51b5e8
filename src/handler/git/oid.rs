//! Object ids: 20 bytes in a SHA-1 repository, 32 in a SHA-256 one.
//!
//! Only full ids in lowercase hexadecimal are accepted, so that an id is never mistaken for an
//! option, a ref or an abbreviation when it is written to git.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Bytes of the longest id.
const MAX_BYTES: usize = 32;

/// What a repository names its objects by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectFormat {
    /// 20 bytes.
    Sha1,
    /// 32 bytes.
    Sha256,
}

impl ObjectFormat {
    /// Bytes of an id.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// The name that git gives it: `sha1` or `sha256`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    /// The one that this is not.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Sha1 => Self::Sha256,
            Self::Sha256 => Self::Sha1,
        }
    }

    /// The format whose ids have so many bytes.
    pub const fn of_length(bytes: usize) -> Option<Self> {
        match bytes {
            20 => Some(Self::Sha1),
            32 => Some(Self::Sha256),
            _ => None,
        }
    }

    /// The id of the tree that holds nothing; git knows it without having the object.
    pub const fn empty_tree(self) -> &'static str {
        match self {
            Self::Sha1 => "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
            Self::Sha256 => "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
        }
    }
}

/// The id of a commit, a tree, a blob or a tag.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    // Beyond the format's length all zero, so that the derived comparisons hold.
    bytes: [u8; MAX_BYTES],
    long: bool,
}

/// A text that is not a full object id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("not an object id: give all 40 (or 64) lowercase hexadecimal digits")]
pub struct InvalidObjectId;

impl ObjectId {
    /// Reads 40 or 64 lowercase hexadecimal digits.
    pub fn from_hex(hex: &[u8]) -> Option<Self> {
        let format =
            ObjectFormat::of_length(hex.len() / 2).filter(|_| hex.len().is_multiple_of(2))?;
        let mut bytes = [0; MAX_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self { bytes, long: format == ObjectFormat::Sha256 })
    }

    /// Takes 20 or 32 bytes as they are stored.
    pub fn from_bytes(raw: &[u8]) -> Option<Self> {
        let format = ObjectFormat::of_length(raw.len())?;
        let mut bytes = [0; MAX_BYTES];
        bytes[..raw.len()].copy_from_slice(raw);
        Some(Self { bytes, long: format == ObjectFormat::Sha256 })
    }

    /// The 20 or 32 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.format().bytes()]
    }

    /// Which format it belongs to.
    pub const fn format(&self) -> ObjectFormat {
        if self.long { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 }
    }

    /// All bytes are zero: git writes it where there is no object.
    pub fn is_zero(&self) -> bool {
        self.bytes == [0; MAX_BYTES]
    }
}

fn digit(hex: u8) -> Option<u8> {
    match hex {
        b'0'..=b'9' => Some(hex - b'0'),
        b'a'..=b'f' => Some(hex - b'a' + 10),
        _ => None,
    }
}

/// A line for each id: what stands before it, the id, what stands after it.
pub(super) fn lines(before: &str, ids: &[ObjectId], after: &str) -> String {
    ids.iter()
        .flat_map(|id| [before.to_owned(), id.to_string(), after.to_owned(), "\n".into()])
        .collect()
}

/// Lowercase hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    let digits = |byte: &u8| {
        [byte >> 4, byte & 15].map(|half| char::from(b"0123456789abcdef"[usize::from(half)]))
    };
    bytes.iter().flat_map(digits).collect()
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.as_bytes()))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ObjectId {
    type Err = InvalidObjectId;

    fn from_str(text: &str) -> Result<Self, InvalidObjectId> {
        Self::from_hex(text.as_bytes()).ok_or(InvalidObjectId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for hex in [ObjectFormat::Sha1.empty_tree(), ObjectFormat::Sha256.empty_tree()] {
            let id: ObjectId = hex.parse().unwrap();
            assert_eq!(id.to_string(), hex);
            assert_eq!(ObjectId::from_bytes(id.as_bytes()), Some(id));
            assert!(!id.is_zero());
        }
        assert!("0".repeat(40).parse::<ObjectId>().unwrap().is_zero());
        assert_ne!("0".repeat(40).parse::<ObjectId>(), "0".repeat(64).parse());
    }

    #[test]
    fn refuses_everything_else() {
        let upper = "4B825DC642CB6EB9A060E54BF8D69288FBEE4904";
        for text in ["", "HEAD", "--output=x", "4b825dc", upper, &"0".repeat(41), &"g".repeat(40)] {
            assert_eq!(text.parse::<ObjectId>(), Err(InvalidObjectId), "{text}");
        }
    }
}

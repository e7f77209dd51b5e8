//! Sizes in bytes as people write them: `64MiB`, `256KiB`, `512B`.
//!
//! Binary units only; a bare number is refused like a bare duration.

use std::fmt;

use toml::Value;

use super::leaf::{Leaf, Refusal};

/// The units, the largest first, in bytes.
const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// The largest size, so that sums and `usize` on any target hold: 1 TiB.
const MAX_BYTES: u64 = 1 << 40;

const REMEDY: &str = r#"write it like "256KiB" or "64MiB""#;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

impl ByteSize {
    /// A size in KiB.
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// A size in MiB.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// A size in GiB.
    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    /// The number of bytes.
    pub fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// Reads a whole number with one of the units `B`, `KiB`, `MiB`, `GiB`; at most 1 TiB.
    ///
    /// The error is a fragment that says what is wrong with `text` and repeats it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = trimmed.split_at(digits);
        if !number.is_empty() && unit.is_empty() {
            return Err(format!("{text:?} has no unit"));
        }
        let factor = UNITS.iter().find(|(name, _)| *name == unit.trim_start()).map(|(_, n)| *n);
        let (Some(factor), false) = (factor, number.is_empty()) else {
            return Err(format!("{text:?} is not a size"));
        };
        match number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)) {
            Some(bytes) if bytes <= MAX_BYTES => Ok(Self(bytes)),
            _ => Err(format!("{text:?} is more than 1024GiB")),
        }
    }
}

impl fmt::Display for ByteSize {
    /// The largest unit that divides it: what [`ByteSize::parse`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |factor: &u64| self.0 != 0 && self.0.is_multiple_of(*factor);
        let unit = UNITS.iter().find(|(_, factor)| exact(factor));
        let (name, factor) = unit.copied().unwrap_or(("B", 1));
        write!(f, "{}{name}", self.0 / factor)
    }
}

impl Leaf for ByteSize {
    const KIND: &'static str = "a size";
    const EXAMPLE: &'static str = "\"256KiB\"";

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        match value {
            Value::String(text) => {
                Self::parse(text).map_err(|message| Refusal::new(message, REMEDY))
            }
            Value::Integer(number) => {
                let remedy = format!(r#"write "{number}B" for bytes or "{number}KiB""#);
                Err(Refusal::new(format!("{number} has no unit"), remedy))
            }
            other => {
                Err(Refusal { remedy: REMEDY.to_owned(), ..Refusal::wrong_type::<Self>(other) })
            }
        }
    }

    fn from_env(text: &str) -> Result<Self, Refusal> {
        Self::from_value(&Value::String(text.to_owned()))
    }

    fn to_value(&self) -> Option<Value> {
        Some(Value::String(self.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read_and_written_back() {
        for (text, bytes) in
            [("0B", 0), ("512B", 512), ("256KiB", 1 << 18), ("64MiB", 1 << 26), ("2GiB", 1 << 31)]
        {
            let size = ByteSize::parse(text);
            assert_eq!(size, Ok(ByteSize(bytes)));
            assert_eq!(size.map(|s| s.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "KiB", "64", "64MB", "64M", "-1B", "1.5MiB", "2048GiB", "99999999999GiB"] {
            assert!(ByteSize::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn random_sizes_survive_the_round_trip() {
        for _ in 0..10_000 {
            let size = ByteSize(rand::random::<u64>() % (MAX_BYTES + 1));
            assert_eq!(ByteSize::parse(&size.to_string()), Ok(size));
        }
    }
}

//! What git complains of, told by its words: those of the C locale, which is what every child gets.

/// Parts of messages about memory.
const MEMORY: [&str; 5] =
    ["out of memory", "malloc failed", "cannot allocate memory", "mmap failed", "data too large"];

/// Whether a message, in lower case, says that there was not enough memory.
pub(super) fn is_of_memory(lower: &str) -> bool {
    MEMORY.iter().any(|part| lower.contains(part))
}

/// Parts of messages about damage.
const DAMAGE: [&str; 22] = [
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

/// Whether a message, in lower case, says that an object is missing or damaged.
pub(super) fn is_of_damage(lower: &str) -> bool {
    DAMAGE.iter().any(|part| lower.contains(part))
}

//! What git complains of, told by its words: those of the C locale, which is what every child gets.

/// Parts of messages about memory.
const MEMORY: [&str; 5] =
    ["out of memory", "malloc failed", "cannot allocate memory", "mmap failed", "data too large"];

/// Whether a message, in lower case, says that there was not enough memory.
pub(super) fn is_of_memory(lower: &str) -> bool {
    MEMORY.iter().any(|part| lower.contains(part))
}

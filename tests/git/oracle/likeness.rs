//! How much of a file stayed, by git's definition of renames, counted with other means.
//!
//! Both files are cut into chunks, each a line or 64 bytes of a longer one; likeness is the bytes of
//! the chunks that both have, in percent of the larger file. Git knows chunks by a hash, so that two of
//! them may be one to it: its likeness is this one or, seldom, a little more.

use std::collections::HashMap;

use super::second::is_binary;

/// Bytes of the longest chunk.
const CHUNK: usize = 64;
/// From how many percent on a deletion and an addition are a rename.
pub(crate) const RENAME: u8 = 50;
/// Beyond the square of this many pairs of a file that went and one that came, git looks for exact
/// renames only.
pub(crate) const LIMIT: usize = 1000;
/// So many deletions that are most like an addition are candidates for it.
pub(crate) const CANDIDATES: usize = 4;

/// How many percent more chunks with one hash may make of it.
const FLATTERY: u8 = 5;

/// What may be said of the likeness of two files. Before 2.44 git overlooked a last line without a
/// newline, so there are two answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Likeness {
    /// Of all lines.
    pub(crate) whole: u8,
    /// Without a last line that has no newline.
    pub(crate) ended: u8,
}

impl Likeness {
    pub(crate) fn of(old: &[u8], new: &[u8]) -> Self {
        let largest = old.len().max(new.len()).max(1);
        let percent = |is_whole| {
            let new = chunks(new, is_whole);
            let kept =
                |(chunk, bytes): (&Vec<u8>, &usize)| *bytes.min(new.get(chunk).unwrap_or(&0));
            let kept: usize = chunks(old, is_whole).iter().map(kept).sum();
            u8::try_from(kept * 100 / largest).unwrap()
        };
        Self { whole: percent(true), ended: percent(false) }
    }

    /// The least that git may say.
    pub(crate) fn least(self) -> u8 {
        self.whole.min(self.ended)
    }

    /// The most, but for flattery.
    pub(crate) fn most(self) -> u8 {
        self.whole.max(self.ended)
    }

    /// Git may say so.
    pub(crate) fn may_be(self, percent: u8) -> bool {
        (self.least()..=self.most() + FLATTERY).contains(&percent)
    }

    /// Git says just this.
    pub(crate) fn is(self, percent: u8) -> bool {
        percent == self.whole || percent == self.ended
    }
}

/// The bytes of each chunk, all its copies together. The carriage returns at the ends of a text's lines
/// do not count.
fn chunks(content: &[u8], is_whole: bool) -> HashMap<Vec<u8>, usize> {
    let is_text = !is_binary(content);
    let mut chunks = HashMap::new();
    let mut chunk = Vec::new();
    for (at, byte) in content.iter().enumerate() {
        if is_text && *byte == b'\r' && content.get(at + 1) == Some(&b'\n') {
            continue;
        }
        chunk.push(*byte);
        if *byte == b'\n' || chunk.len() == CHUNK {
            let bytes = chunk.len();
            *chunks.entry(std::mem::take(&mut chunk)).or_default() += bytes;
        }
    }
    if is_whole && !chunk.is_empty() {
        let bytes = chunk.len();
        *chunks.entry(chunk).or_default() += bytes;
    }
    chunks
}

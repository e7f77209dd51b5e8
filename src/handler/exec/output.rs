//! What a child says: standard output is the result, standard error goes to the log.
//!
//! Both are read until their end so that the child never blocks on a full pipe, and both are kept
//! only up to a cap: memory does not grow with what the child writes, line ends or not.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::domain::{Fence, Task};

/// Bytes read at a time once a stream turns out to be long: the size of a pipe.
const CHUNK: usize = 64 * 1024;
/// Bytes made room for before anything is known about the stream.
const FIRST_CHUNK: usize = 4 * 1024;
/// A longer line is logged up to here.
const LINE_LIMIT: usize = 8 * 1024;
/// Lines logged per run; the rest is counted.
const LINES_LIMIT: u64 = 1000;

/// A stream of which the first bytes are kept and the rest is thrown away.
pub(super) struct Head {
    cap: usize,
    kept: BytesMut,
    scratch: BytesMut,
    /// The end was reached, or the stream given up.
    pub(super) ended: bool,
}

impl Head {
    pub(super) fn new(cap: usize) -> Self {
        Self { cap, kept: BytesMut::new(), scratch: BytesMut::new(), ended: false }
    }

    /// Reads to the end. May be dropped and called anew.
    pub(super) async fn read(&mut self, source: &mut Option<impl AsyncRead + Unpin>) {
        while !self.ended {
            let room = self.cap - self.kept.len();
            let read = if room > 0 {
                self.kept.reserve(room.min(self.kept.len().clamp(FIRST_CHUNK, CHUNK)));
                read_some(source, &mut self.kept).await
            } else {
                self.scratch.clear();
                self.scratch.reserve(CHUNK);
                read_some(source, &mut self.scratch).await
            };
            self.kept.truncate(self.cap);
            self.ended = read == 0;
        }
    }

    /// The bytes kept; `None` when there were none.
    pub(super) fn into_bytes(self) -> Option<Bytes> {
        (!self.kept.is_empty()).then(|| self.kept.freeze())
    }
}

/// Whose lines are logged.
pub(super) struct Origin {
    pub(super) task: Arc<Task>,
    pub(super) fence: Fence,
    pub(super) attempt: u32,
}

/// A stream that is logged line by line, and of which the last bytes are kept.
pub(super) struct Log {
    origin: Origin,
    scratch: BytesMut,
    tail: Tail,
    lines: Lines,
    /// The end was reached, or the stream given up.
    pub(super) ended: bool,
}

impl Log {
    pub(super) fn new(origin: Origin, tail_cap: usize) -> Self {
        Self {
            origin,
            scratch: BytesMut::new(),
            tail: Tail { cap: tail_cap, kept: VecDeque::new() },
            lines: Lines::default(),
            ended: false,
        }
    }

    /// Reads to the end. May be dropped and called anew.
    pub(super) async fn read(&mut self, source: &mut Option<impl AsyncRead + Unpin>) {
        while !self.ended {
            let long = self.scratch.len() >= FIRST_CHUNK;
            self.scratch.clear();
            self.scratch.reserve(if long { CHUNK } else { FIRST_CHUNK });
            self.ended = read_some(source, &mut self.scratch).await == 0;
            self.tail.push(&self.scratch);
            let origin = &self.origin;
            self.lines.push(&self.scratch, |line| origin.log(line));
        }
    }

    /// Logs what is left of the last line and how much was left out; gives the tail back.
    pub(super) fn finish(mut self) -> Bytes {
        let origin = &self.origin;
        self.lines.end_of_line(|line| origin.log(line));
        if self.lines.count > LINES_LIMIT {
            origin.log(&format!("{} more lines were not logged", self.lines.count - LINES_LIMIT));
        }
        Bytes::from(Vec::from(self.tail.kept))
    }
}

impl Origin {
    fn log(&self, line: &str) {
        tracing::info!(
            target: "task",
            TASK_ID = %self.task.id,
            QUEUE = %self.task.queue,
            KIND = %self.task.kind,
            FENCE = self.fence.0,
            ATTEMPT = self.attempt,
            "{line}"
        );
    }
}

/// The last bytes of a stream.
struct Tail {
    cap: usize,
    kept: VecDeque<u8>,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.cap)..];
        let over = (self.kept.len() + bytes.len()).saturating_sub(self.cap);
        self.kept.drain(..over);
        self.kept.extend(bytes);
    }
}

/// Cuts a stream into lines of bounded length and number.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    /// The line went on beyond the limit.
    cut: bool,
    /// Lines that ended, logged or not.
    count: u64,
}

impl Lines {
    fn push(&mut self, bytes: &[u8], mut log: impl FnMut(&str)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            let room = LINE_LIMIT - self.line.len();
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            self.cut |= text.len() > room;
            if text.len() < part.len() {
                self.end_of_line(&mut log);
            }
        }
    }

    fn end_of_line(&mut self, mut log: impl FnMut(&str)) {
        if self.line.is_empty() {
            return;
        }
        self.count += 1;
        if self.count <= LINES_LIMIT {
            let text = String::from_utf8_lossy(&self.line);
            let text = text.trim_end_matches('\r');
            if self.cut { log(&format!("{text} … (cut)")) } else { log(text) }
        }
        self.line.clear();
        self.cut = false;
    }
}

/// Reads once into the spare room of `buffer`; 0 at the end. An error is an end: the far side of a
/// pipe has nothing more to say then.
async fn read_some(source: &mut Option<impl AsyncRead + Unpin>, buffer: &mut BytesMut) -> usize {
    let read: io::Result<usize> = match source {
        Some(source) => source.read_buf(buffer).await,
        None => Ok(0),
    };
    read.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(chunks: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut logged = Vec::new();
        for chunk in chunks {
            lines.push(chunk, |line| logged.push(line.to_owned()));
        }
        lines.end_of_line(|line| logged.push(line.to_owned()));
        logged
    }

    #[test]
    fn lines_are_put_together_across_chunks() {
        assert_eq!(lines_of(&[b"on", b"e\r\n\ntw", b"o\nthree"]), ["one", "two", "three"]);
        assert_eq!(lines_of(&[b"\xff\n"]), ["\u{fffd}"]);
    }

    #[test]
    fn a_long_line_is_cut_and_the_next_one_is_whole() {
        let long = vec![b'x'; LINE_LIMIT + 1];
        let logged = lines_of(&[&long, &long, b"\nnext\n"]);
        assert_eq!(logged[0], format!("{} … (cut)", "x".repeat(LINE_LIMIT)));
        assert_eq!(logged[1..], ["next"]);
    }

    #[test]
    fn only_so_many_lines_are_logged() {
        let many = b"line\n".repeat(1500);
        assert_eq!(lines_of(&[&many]).len(), 1000);
    }

    #[test]
    fn the_tail_is_what_came_last() {
        let mut tail = Tail { cap: 4, kept: VecDeque::new() };
        tail.push(b"ab");
        tail.push(b"cde");
        assert_eq!(Vec::from(tail.kept.clone()), b"bcde");
        tail.push(b"0123456789");
        assert_eq!(Vec::from(tail.kept), b"6789");
    }

    #[tokio::test]
    async fn the_head_is_what_came_first() {
        let mut head = Head::new(10_000);
        let input = vec![7u8; 300_000];
        head.read(&mut Some(&input[..])).await;
        assert_eq!(head.into_bytes().unwrap(), vec![7u8; 10_000]);
        let mut empty = Head::new(10);
        empty.read(&mut Some(&b""[..])).await;
        assert_eq!(empty.into_bytes(), None);
    }
}

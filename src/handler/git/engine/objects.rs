//! `git cat-file --batch-command`: kinds, sizes and contents of objects.
//!
//! Requests go out in groups that end with `flush`, and git reads a whole group before it answers, so
//! neither side ever waits for the other to read. Ids are full hexadecimal ids and nothing else.

use std::io;

use tokio::process::Command;
use tokio::time::{Instant, timeout_at};

use super::child::Child;
use super::death::{Cause, Death};
use crate::handler::git::oid::{ObjectId, lines};

/// Requests between two flushes; git keeps them in memory.
const GROUP: usize = 1000;
/// Bytes of an answer's first line.
const MAX_LINE: usize = 256;

/// The arguments of the program.
pub(super) fn arguments(command: &mut Command) {
    command.args(["--batch-command", "--buffer"]);
}

/// What is asked about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// Kind and size.
    Info,
    /// Also the content, up to so many bytes.
    Content(usize),
}

/// What an id names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Object {
    /// Nothing that this repository has.
    Missing,
    /// An object.
    Found {
        /// `commit`, `tree`, `blob` or `tag`.
        kind: String,
        /// Its bytes.
        size: u64,
        /// Its content or the beginning of it, if that was asked for.
        content: Vec<u8>,
    },
}

impl Object {
    /// Its bytes, if it is there.
    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Self::Missing => None,
            Self::Found { size, .. } => Some(*size),
        }
    }
}

/// The child.
pub(super) struct Objects {
    pub(super) child: Child,
}

impl Objects {
    pub(super) fn new(child: Child) -> Self {
        Self { child }
    }

    /// Asks about `ids` and hands each answer to `read`, in their order, so that no more than one
    /// content is held at a time; fewer than were asked for if the child died then.
    pub(super) async fn ask<T>(
        &mut self,
        question: Question,
        ids: &[ObjectId],
        until: Instant,
        read: &impl Fn(&ObjectId, Object) -> T,
    ) -> Answers<T> {
        let mut answers = Answers { read: Vec::with_capacity(ids.len()), end: None };
        let verb = match question {
            Question::Info => "info ",
            Question::Content(_) => "contents ",
        };
        for group in ids.chunks(GROUP) {
            let mut requests = lines(verb, group, "");
            requests.push_str("flush\n");
            let talk = async {
                self.child.write(requests.as_bytes()).await?;
                for id in group {
                    let object = self.answer(id, question).await?;
                    answers.read.push(read(id, object));
                    self.child.count_answer();
                }
                Ok::<_, io::Error>(())
            };
            match timeout_at(until, talk).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => answers.end = Some(End::Died),
                Err(_) => answers.end = Some(End::Late),
            }
            if answers.end.is_some() {
                break;
            }
        }
        answers
    }

    async fn answer(&mut self, id: &ObjectId, question: Question) -> io::Result<Object> {
        let line = self.line().await?;
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split(' ');
        if words.next() != Some(&id.to_string()) {
            return Err(unexpected(&line));
        }
        let kind = words.next().unwrap_or_default();
        if kind == "missing" {
            return Ok(Object::Missing);
        }
        let size = words.next().and_then(|size| size.parse::<u64>().ok());
        let size = size.ok_or_else(|| unexpected(&line))?;
        let content = match question {
            Question::Info => Vec::new(),
            Question::Content(most) => self.content(size, most).await?,
        };
        Ok(Object::Found { kind: kind.to_owned(), size, content })
    }

    async fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let unread = self.child.unread();
            if let Some(end) = memchr::memchr(b'\n', unread) {
                let line = unread[..end].to_vec();
                self.child.take(end + 1);
                return Ok(line);
            }
            if unread.len() > MAX_LINE {
                return Err(unexpected("a line without an end"));
            }
            self.more().await?;
        }
    }

    /// Reads `size` bytes and the newline after them, keeping the first `most`.
    async fn content(&mut self, size: u64, most: usize) -> io::Result<Vec<u8>> {
        let mut kept = Vec::new();
        let mut left = size.saturating_add(1);
        while left > 0 {
            if self.child.unread().is_empty() {
                self.more().await?;
            }
            let unread = self.child.unread();
            let here = usize::try_from(left).unwrap_or(usize::MAX).min(unread.len());
            let room = most.saturating_sub(kept.len()).min(here);
            kept.extend_from_slice(&unread[..room]);
            self.child.take(here);
            left -= here as u64;
        }
        kept.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        Ok(kept)
    }

    async fn more(&mut self) -> io::Result<()> {
        if self.child.read().await? { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

fn unexpected(line: &str) -> io::Error {
    io::Error::other(format!("git answered {line:?}"))
}

/// Answers as far as they came.
#[derive(Debug)]
pub(super) struct Answers<T> {
    /// What was read from each.
    pub(super) read: Vec<T>,
    /// Why they are not all there.
    pub(super) end: Option<End>,
}

/// Why a child answers no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It closed its output, or answered something else.
    Died,
    /// It did not answer in time.
    Late,
}

impl End {
    /// What that means, for the child that it happened to.
    pub(super) async fn death(self, objects: Objects) -> Death {
        match self {
            Self::Died => objects.child.death().await,
            Self::Late => {
                objects.child.kill().await;
                Death { cause: Cause::Other, detail: "git did not answer in time".to_owned() }
            }
        }
    }
}

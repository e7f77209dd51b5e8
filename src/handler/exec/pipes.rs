//! The pipes between us and a child.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::process::Stdio;

use bytes::{Buf, Bytes};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::process::{ChildStderr, ChildStdout};

use super::output::{Head, Log};

/// The three standard streams of a child.
pub(super) struct Pipes {
    pub(super) feed: Feed,
    pub(super) stdout: Option<ChildStdout>,
    pub(super) stderr: Option<ChildStderr>,
    pub(super) result: Head,
    pub(super) log: Log,
}

impl Pipes {
    pub(super) fn ended(&self) -> bool {
        self.feed.ended() && self.result.ended && self.log.ended
    }

    /// Moves bytes on all three until they have ended. May be dropped and called anew.
    pub(super) async fn pump(&mut self) {
        let Self { feed, stdout, stderr, result, log } = self;
        tokio::join!(feed.write(), result.read(stdout), log.read(stderr));
    }

    /// Reads both outputs to the end; nobody reads the input any more.
    pub(super) async fn drain(&mut self) {
        self.feed = Feed::default();
        self.pump().await;
    }
}

/// The payload on its way to the child.
#[derive(Default)]
pub(super) struct Feed {
    rest: Bytes,
    writer: Option<pipe::Sender>,
}

impl Feed {
    /// A pipe that is filled before the child exists: most payloads fit, and then there is nothing
    /// left to be done. Returns the child's end and what is left.
    pub(super) fn new(mut payload: Bytes) -> io::Result<(Stdio, Self)> {
        let (reader, mut writer) = io::pipe()?;
        let flags = rustix::fs::fcntl_getfl(&writer)?;
        rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK)?;
        while payload.has_remaining() {
            match writer.write(&payload) {
                Ok(written) => payload.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let writer = if payload.is_empty() {
            None
        } else {
            Some(pipe::Sender::from_owned_fd(OwnedFd::from(writer))?)
        };
        Ok((reader.into(), Self { rest: payload, writer }))
    }

    fn ended(&self) -> bool {
        self.writer.is_none()
    }

    /// Writes the rest and closes the pipe. A child that does not read its input, or not all of it,
    /// is in its right: then the rest is thrown away.
    async fn write(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        // write_all_buf keeps what was written across a drop of this future.
        let _ = writer.write_all_buf(&mut self.rest).await;
        self.writer = None;
        self.rest = Bytes::new();
    }
}

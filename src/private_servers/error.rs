//! Why a private server could not be started or used.
//!
//! Every message names the server or the path and says what to do; a server that ended on its own
//! is quoted with the end of its log.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A private server could not be started, or did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum PrivateServerError {
    /// The program is not installed, or not where it is looked for.
    #[error(
        "no {program} found; install it (Debian and Ubuntu: apt-get install {package}; \
         NixOS: nix develop) or put its folder into PATH"
    )]
    ProgramMissing {
        /// The program that was looked for.
        program: &'static str,
        /// The Debian package that holds it.
        package: &'static str,
    },
    /// Running as root, and there is no other user that Postgres could run as.
    #[error(
        "postgres refuses to run as root, and neither the user postgres nor nobody exists; \
         run this as an ordinary user"
    )]
    NoAccount,
    /// The user that Postgres runs as cannot reach the folder.
    #[error(
        "the user {account}, as whom postgres runs, cannot enter {}; \
         choose a folder elsewhere (for example below /var/tmp) or run as an ordinary user",
        .path.display()
    )]
    FolderClosed {
        /// The folder that does not let the user in.
        path: PathBuf,
        /// The user's name.
        account: String,
    },
    /// A file or a folder could not be prepared.
    #[error("{action} {}: {source}", .path.display())]
    File {
        /// What was attempted, for example `create`.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No free port was found.
    #[error("no free loopback port for {server}: {source}")]
    Port {
        /// Which server.
        server: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A program could not be executed at all.
    #[error("execute {program}: {source}")]
    Execute {
        /// Which program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// A preparing program such as `initdb` failed.
    #[error("{program} failed: {output}")]
    Failed {
        /// Which program.
        program: String,
        /// What it printed.
        output: String,
    },
    /// The server ended while it was starting.
    #[error("{server} ended while starting ({status}); the end of its log:\n{log}")]
    Exited {
        /// Which server.
        server: &'static str,
        /// How it ended.
        status: String,
        /// The last lines of its log.
        log: String,
    },
    /// The server runs but does not answer.
    #[error("{server} was not ready within {after:?}; the end of its log:\n{log}")]
    NotReady {
        /// Which server.
        server: &'static str,
        /// How long was waited.
        after: Duration,
        /// The last lines of its log.
        log: String,
    },
    /// A statement on the private Postgres failed.
    #[error("{action}: {source}")]
    Database {
        /// What was attempted, for example `create database x`.
        action: String,
        /// What Postgres said.
        source: sqlx::Error,
    },
}

impl PrivateServerError {
    /// Wraps a file error, to be used in `map_err`.
    pub(super) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { action, path, source }
    }

    /// Whether the server ended because somebody else had taken its port.
    pub(super) fn is_lost_port(&self) -> bool {
        matches!(self, Self::Exited { log, .. } if log.contains("Address already in use"))
    }
}

//! Secrets: a text that no log, error or debug output shows, and the reading of secret files.
//!
//! Files are read when a connection is made, not when the configuration is loaded: a secret that
//! is not there yet leaves the worker alive and not ready, and rotating one needs no restart.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use toml::Value;

use super::leaf::{Leaf, Refusal};

/// The longest secret file, in bytes: a key, not a disk that was mounted there by mistake.
const MAX_SECRET_BYTES: u64 = 64 << 10;

/// A text that is shown only on request.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one call that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Reads a file; one newline at its end does not belong to the secret.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let failed = |source| SecretError::Unreadable { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_SECRET_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_SECRET_BYTES {
            return Err(SecretError::TooLong { path: path.to_owned(), max: MAX_SECRET_BYTES });
        }
        let text =
            String::from_utf8(bytes).map_err(|_| SecretError::NotUtf8 { path: path.to_owned() })?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        if text.is_empty() {
            return Err(SecretError::Empty { path: path.to_owned() });
        }
        Ok(Self::new(text))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A secret's file gave no secret. None of these ends the process: try again at the next connect.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file is missing or may not be read.
    #[error("read the secret file {path:?}: {source}; create it, readable for this user")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is nothing in it.
    #[error("the secret file {path:?} is empty; write the secret into it")]
    Empty {
        /// Which file.
        path: PathBuf,
    },
    /// It holds something that is not text.
    #[error("the secret file {path:?} is not UTF-8; write the secret into it as text")]
    NotUtf8 {
        /// Which file.
        path: PathBuf,
    },
    /// It is no secret, by its size.
    #[error(
        "the secret file {path:?} has more than {max} bytes; name a file with the secret alone"
    )]
    TooLong {
        /// Which file.
        path: PathBuf,
        /// The limit in bytes.
        max: u64,
    },
}

/// The environment only: what stands in the file ends up in a store or a repository.
impl Leaf for Secret {
    const KIND: &'static str = "a secret (environment only)";
    const EXAMPLE: &'static str = "\"…\"";

    fn from_value(_: &Value) -> Result<Self, Refusal> {
        Err(Refusal::new(
            "secrets do not belong in this file",
            "set password_file to a file that holds the password, or give it in the environment",
        ))
    }

    fn from_env(text: &str) -> Result<Self, Refusal> {
        Ok(Self::new(text))
    }

    fn to_value(&self) -> Option<Value> {
        None
    }
}

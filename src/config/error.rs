//! What is wrong with a configuration: every problem, with its place and its remedy.
//!
//! No problem ever shows a secret; the types that can hold one do not repeat their value.

use std::fmt;
use std::path::PathBuf;

/// One thing that is wrong.
///
/// Shown as `config/qw.toml:12: lease.heartbeat: "soon" is not a duration; write it like …`, or
/// with the variable's name where the file and line would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, if it stands there.
    pub file: Option<PathBuf>,
    /// The line in the file, from 1.
    pub line: Option<usize>,
    /// The column in the line, in characters, from 1.
    pub column: Option<usize>,
    /// The environment variable, if it stands there.
    pub variable: Option<String>,
    /// The key, with dots; empty where the file as a whole is meant.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(variable) = &self.variable {
            write!(f, "{variable}: ")?;
        } else if let Some(file) = &self.file {
            write!(f, "{}", file.display())?;
            if let Some(line) = self.line {
                write!(f, ":{line}")?;
            }
            f.write_str(": ")?;
        }
        if !self.key.is_empty() {
            // A quoted key may hold anything, and must not forge a line.
            let escape = |c: char| {
                if c.is_control() { c.escape_default().to_string() } else { c.to_string() }
            };
            write!(f, "{}: ", self.key.chars().map(escape).collect::<String>())?;
        }
        write!(f, "{}; {}", self.message, self.remedy)
    }
}

/// A configuration that cannot be used; the caller ends the process with exit code 78.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// All that was found, never empty, in the order of the reading.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    /// One problem a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

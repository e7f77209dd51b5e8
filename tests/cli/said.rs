//! What a command said and how it ended.

use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::common::Scene;

/// The end of a command.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Said {
    /// Standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.out.clone()).expect("standard output is text")
    }

    /// Standard output as one JSON value.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Standard output as one JSON value a line.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        let line = |line: &str| serde_json::from_str(line).expect("a JSON line");
        self.text().lines().map(line).collect()
    }

    /// The same, after an exit with 0.
    #[track_caller]
    pub(crate) fn good(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: output.stdout,
            err: String::from_utf8(output.stderr).expect("standard error is text"),
        }
    }
}

/// Runs a command with the scene's configuration.
pub(crate) async fn say(scene: &Scene, arguments: &[&str]) -> Said {
    scene.command(arguments.iter().copied()).output().await.expect("run the command").into()
}

/// The same with standard input.
pub(crate) async fn say_to(scene: &Scene, arguments: &[&str], input: &[u8]) -> Said {
    let mut command = scene.command(arguments.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("start the command");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input).await.expect("write to the command");
    drop(stdin);
    child.wait_with_output().await.expect("wait for the command").into()
}

/// Runs a command without any servers.
pub(crate) async fn say_alone(arguments: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_queue-worker"));
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command.output().await.expect("run the command").into()
}

//! `queue-worker completions`: what a shell needs to complete our commands, generated from clap.

use std::io::{self, Write};
use std::process::ExitCode;

use clap_complete::Shell;

/// Print completions for a shell
///
/// For bash, for example: source <(queue-worker completions bash)
#[derive(Debug, clap::Args)]
pub(super) struct Completions {
    /// Which shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        // Into memory first: the generator panics when the reader of a pipe goes away.
        let mut script = Vec::new();
        let mut tree = super::command_tree();
        clap_complete::generate(self.shell, &mut tree, "queue-worker", &mut script);
        io::stdout().write_all(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}

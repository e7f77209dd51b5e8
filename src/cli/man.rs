//! `queue-worker man`: the manual pages, generated from clap: one on standard output, or all as
//! files for a package.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

/// Print a manual page, or write all of them into a folder
///
/// To read one: queue-worker man enqueue | man -l -
#[derive(Debug, clap::Args)]
pub(super) struct Man {
    /// The command that the page is about; without one, the program
    command: Option<String>,
    /// Write every page into this folder, which is made if missing
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(dir) = self.dir {
            let action = || format!("write manual pages to {}", dir.display());
            fs::create_dir_all(&dir).with_context(action)?;
            clap_mangen::generate_to(super::command_tree(), &dir).with_context(action)?;
            return Ok(ExitCode::SUCCESS);
        }
        io::stdout().write_all(&page(self.command.as_deref())?)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn page(command: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let mut tree = super::command_tree().disable_help_subcommand(true);
    tree.build();
    let subject = match command {
        None => tree,
        Some(name) => tree.find_subcommand(name).cloned().with_context(|| {
            format!("no command is called {name}; `queue-worker help` lists them")
        })?,
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(subject).render(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page() {
        let text = String::from_utf8(page(None).unwrap()).unwrap();
        assert!(text.contains("queue\\-worker"), "{text}");
        for command in super::super::command_tree().get_subcommands() {
            let text = String::from_utf8(page(Some(command.get_name())).unwrap()).unwrap();
            assert!(text.contains(".SH SYNOPSIS"), "{text}");
        }
        assert!(page(Some("nonsense")).is_err());
    }
}

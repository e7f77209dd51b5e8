//! `queue-worker man`: the manual pages, generated from clap: one on standard output, or all as
//! files for a package.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

/// Print a manual page, or write all of them into a folder
///
/// To read one: queue-worker man dead requeue | man -l -
#[derive(Debug, clap::Args)]
pub(super) struct Man {
    /// The command that the page is about; without one, the program
    command: Vec<String>,
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
        io::stdout().write_all(&page(&self.command)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The page of a command, named by its words; without any, of the program.
fn page(words: &[String]) -> anyhow::Result<Vec<u8>> {
    let mut tree = super::command_tree().disable_help_subcommand(true);
    tree.build();
    let subject = words.iter().try_fold(&tree, |command, word| command.find_subcommand(word));
    let subject = subject.with_context(|| {
        format!("no command is called {}; `queue-worker help` lists them", words.join(" "))
    })?;
    let mut page = Vec::new();
    clap_mangen::Man::new(subject.clone()).render(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page() {
        let page = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            page(&words).map(|page| String::from_utf8(page).unwrap())
        };
        assert!(page(&[]).unwrap().contains("queue\\-worker"));
        for command in super::super::command_tree().get_subcommands() {
            assert!(page(&[command.get_name()]).unwrap().contains(".SH SYNOPSIS"));
            for inner in command.get_subcommands() {
                let text = page(&[command.get_name(), inner.get_name()]).unwrap();
                assert!(text.contains(".SH SYNOPSIS"), "{text}");
            }
        }
        assert!(page(&["nonsense"]).is_err());
        assert!(page(&["dead", "nonsense"]).is_err());
    }
}

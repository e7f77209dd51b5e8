//! Rank 7: the command line: one file for each command, and the tree that clap derives from them.
//!
//! A command reads its options, calls the library and says how it ended; nothing below this module
//! knows that there is a terminal. Errors are shown with their causes on standard error, and the
//! exit code tells systemd and scripts what happened: 0 done, 1 failed, 2 wrong usage, 78 a broken
//! configuration.

mod bench;
mod check_config;
mod completions;
mod dead;
mod demo;
mod dev;
mod doctor;
mod drill;
mod enqueue;
mod git;
mod invented;
mod man;
mod migrate;
mod run;
mod status;
mod stores;
mod table;
mod tasks;
mod text;
mod trial;

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::config::ConfigError;
use crate::supervisor::run_to_end;
use clap::{CommandFactory, Parser, Subcommand};

/// A queue worker that loses nothing and does nothing twice.
///
/// Takes tasks from Redis Streams, holds a heartbeat lease on each, records claim and outcome in
/// Postgres, and finishes or gives back what runs when it is told to stop.
#[derive(Debug, Parser)]
#[command(name = "queue-worker", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    command: Command,
}

/// Where the configuration is unless somebody says otherwise.
const DEFAULT_CONFIG: &str = "/etc/queue-worker/queue-worker.toml";

/// What every command knows.
#[derive(Debug, clap::Args)]
struct GlobalOptions {
    /// The configuration file.
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "QUEUE_WORKER_CONFIG",
        default_value = DEFAULT_CONFIG,
        display_order = 900
    )]
    config: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    CheckConfig(check_config::CheckConfig),
    Migrate(migrate::Migrate),
    Enqueue(enqueue::Enqueue),
    Status(status::Status),
    Tasks(tasks::Tasks),
    Dead(dead::Dead),
    Git(git::Git),
    Doctor(doctor::Doctor),
    Dev(dev::Dev),
    Demo(demo::Demo),
    Drill(drill::Drill),
    Bench(bench::Bench),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Command {
    fn run(self, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
        match self {
            Self::Run(_) => run::run(global),
            Self::CheckConfig(_) => check_config::run(global),
            Self::Migrate(migrate) => block_on(migrate.run(global)),
            Self::Enqueue(enqueue) => block_on(enqueue.run(global)),
            Self::Status(status) => block_on(status.run(global)),
            Self::Tasks(tasks) => block_on(tasks.run(global)),
            Self::Dead(dead) => block_on(dead.run(global)),
            Self::Git(git) => block_on(git.run(global)),
            Self::Doctor(doctor) => block_on(doctor.run(global)),
            Self::Dev(dev) => block_on(dev.run()),
            Self::Demo(demo) => demo.run(),
            Self::Drill(drill) => drill.run(),
            Self::Bench(bench) => bench.run(),
            Self::Completions(completions) => completions.run(),
            Self::Man(man) => man.run(),
        }
    }
}

/// sysexits.h: EX_CONFIG. systemd shows it as `CONFIG`.
const BROKEN_CONFIGURATION: u8 = 78;

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    match command.run(&global) {
        Ok(code) => code,
        // Whoever reads our output, such as `head`, has had enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("queue-worker: {error:#}");
            if error.is::<ConfigError>() { BROKEN_CONFIGURATION.into() } else { ExitCode::FAILURE }
        }
    }
}

/// The whole tree, for completions and manual pages.
fn command_tree() -> clap::Command {
    Cli::command()
}

/// Runs a command that needs few threads on the calling one.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    run_to_end(tokio::runtime::Builder::new_current_thread().enable_all().build()?, work)
}

/// This program, to be started once more.
fn own_program() -> anyhow::Result<PathBuf> {
    use anyhow::Context as _;
    std::env::current_exe().context("find this program's own file")
}

/// A path as one word of a shell command that can be copied from the terminal.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_sound() {
        command_tree().debug_assert();
    }

    #[test]
    fn every_command_and_option_is_explained() {
        fn explained(command: &clap::Command) {
            let name = command.get_name();
            let about = command.get_about().expect(name).to_string();
            assert!(!about.ends_with('.'), "{name}: a summary has no full stop: {about}");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{name}: {} has no help", argument.get_id());
            }
            command.get_subcommands().for_each(explained);
        }
        command_tree().get_subcommands().for_each(explained);
    }

    #[test]
    fn the_configuration_can_be_named_after_the_command() {
        let cli = Cli::try_parse_from(["queue-worker", "man", "--config", "x.toml"]).unwrap();
        assert_eq!(cli.global.config, Path::new("x.toml"));
    }

    #[test]
    fn a_path_is_quoted_only_where_a_shell_needs_it() {
        assert_eq!(shell_word(Path::new("/a/.b-c_d")), "/a/.b-c_d");
        assert_eq!(shell_word(Path::new("/it's here")), r"'/it'\''s here'");
    }
}

//! `queue-worker dead`: the dead letters: a list, one in full, and back to work.

mod list;
mod purge;
mod requeue;
mod selection;
mod show;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;

use super::{GlobalOptions, stores};
use crate::config::{Config, Environment};

/// Look at dead letters, and put them back to work
///
/// A dead letter is what can never run (an entry that is malformed, oversized, or refused because
/// its id is another task's) or will not run again unless it is requeued (a task that failed for
/// good, crashed its workers too often, or has a kind that nobody knows).
#[derive(Debug, clap::Args)]
pub(super) struct Dead {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(list::List),
    Show(show::Show),
    Requeue(requeue::Requeue),
    Purge(purge::Purge),
}

impl Dead {
    pub(super) async fn run(self, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
        let config = Config::load(&global.config, &Environment::of_process())?;
        let ledger = stores::ledger(&config).await?;
        let mut out = io::stdout().lock();
        let code = match self.command {
            Command::List(list) => list.run(&ledger, &mut out).await?,
            Command::Show(show) => show.run(&ledger, &mut out).await?,
            Command::Requeue(requeue) => requeue.run(&ledger, &mut out).await?,
            Command::Purge(purge) => purge.run(&ledger, &mut out).await?,
        };
        out.flush()?;
        Ok(code)
    }
}

/// The reasons that the ledger writes.
fn reasons() -> PossibleValuesParser {
    ["malformed", "oversized", "refused", "failed", "crashed", "unknown_kind"].into()
}

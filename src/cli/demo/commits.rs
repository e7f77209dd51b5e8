//! A git history, analysed by a worker: the one of the folder where the demo is run, or an invented one.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail};
use tokio::process::Command;

use super::report::History;
use super::stage::Stage;
use crate::cli::{invented, own_program};

/// A longer history would take longer than a demo may.
const MOST: u64 = 5_000;
/// Commits of an invented one.
const INVENTED: usize = 500;

/// Analyses a history; `None` where there is no git.
pub(super) async fn analyse(stage: &Stage, say: &impl Fn(&str)) -> anyhow::Result<Option<History>> {
    let Some((path, commits)) = history(stage.folder(), say)? else { return Ok(None) };
    say(&format!("analysing {commits} commits of {} …", path.display()));
    let output = Command::new(own_program()?)
        .args(["git", "analyse", "--json", "--config"])
        .arg(stage.config())
        .arg(&path)
        .stderr(Stdio::inherit())
        .output()
        .await?;
    if !output.status.success() {
        bail!("queue-worker git analyse ended with {}", output.status);
    }
    let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let number = |name: &str| said[name].as_u64().with_context(|| format!("no {name} in {said}"));
    Ok(Some(History {
        commits,
        analysed: number("analysed")?,
        refused: number("refused")?,
        seconds: said["seconds"].as_f64().unwrap_or_default(),
    }))
}

/// Where a history is, and how long it is.
fn history(folder: &Path, say: &impl Fn(&str)) -> anyhow::Result<Option<(PathBuf, u64)>> {
    if invented::command(None).arg("--version").stdout(Stdio::null()).status().is_err() {
        say("SKIPPED: the analysis of commits needs git, and there is none");
        return Ok(None);
    }
    let here = std::env::current_dir()?;
    match invented::commits(&here).filter(|_| here.join(".git").exists()) {
        Some(commits @ 1..=MOST) => return Ok(Some((here, commits))),
        Some(commits) => say(&format!("{commits} commits here are not for a demo: inventing some")),
        None => say("SKIPPED: no git repository here to analyse; an invented one takes its place"),
    }
    let git_dir = folder.join("invented.git");
    invented::repository(&git_dir, INVENTED)?;
    Ok(Some((git_dir, INVENTED as u64)))
}

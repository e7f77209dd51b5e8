//! A repository with an invented history, for the demo and the bench: some authors, code, tests and
//! documents, edits that are small beside their files, now and then a rename and a merge.
//!
//! The same for the same number of commits. Made by `git fast-import`, in some seconds for thousands.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Files that are there at a time.
const FILES: usize = 400;
/// Lines of a new file.
const LINES: usize = 120;
/// The number that everything follows from.
const SEED: u64 = 20;
/// Who writes.
const AUTHORS: [&str; 5] = ["Ada", "Grace", "Edsger", "Barbara", "Donald"];

/// Makes a bare repository with so many commits on `main`.
pub(super) fn repository(git_dir: &Path, commits: usize) -> anyhow::Result<()> {
    git(None, &["init", "--quiet", "--bare", "-b", "main", "--template="], Some(git_dir))?;
    let mut child = command(Some(git_dir))
        .args(["fast-import", "--quiet"])
        .stdin(Stdio::piped())
        .spawn()
        .context("start git fast-import")?;
    let mut input = child.stdin.take().context("git fast-import has no input")?;
    let mut history = History::new();
    for _ in 0..commits {
        input.write_all(&history.commit())?;
    }
    drop(input);
    let status = child.wait()?;
    if !status.success() {
        bail!("git fast-import ended with {status}");
    }
    Ok(())
}

/// How many commits branches and tags of a repository reach; `None` if there is none, or no git.
pub(super) fn commits(folder: &Path) -> Option<u64> {
    let mut counting = command(None);
    counting.current_dir(folder).args(["rev-list", "--count", "--branches", "--tags"]);
    let output = counting.stderr(Stdio::null()).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// A git command that nothing on this machine influences.
pub(super) fn command(git_dir: Option<&Path>) -> Command {
    let mut command = Command::new("git");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GIT_") {
            command.env_remove(name);
        }
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    if let Some(git_dir) = git_dir {
        command.arg("--git-dir").arg(git_dir);
    }
    command.stdin(Stdio::null());
    command
}

fn git(git_dir: Option<&Path>, arguments: &[&str], last: Option<&Path>) -> anyhow::Result<()> {
    let status = command(git_dir).args(arguments).args(last).status().context("start git")?;
    if !status.success() {
        bail!("git {} ended with {status}", arguments.join(" "));
    }
    Ok(())
}

struct File {
    path: String,
    lines: Vec<u32>,
}

struct History {
    rng: StdRng,
    files: Vec<File>,
    mark: usize,
}

impl History {
    fn new() -> Self {
        Self { rng: StdRng::seed_from_u64(SEED), files: Vec::new(), mark: 0 }
    }

    fn below(&mut self, end: usize) -> usize {
        self.rng.random_range(0..end.max(1))
    }

    /// The next commit, as `git fast-import` reads it.
    fn commit(&mut self) -> Vec<u8> {
        self.mark += 1;
        let (mark, who) = (self.mark, AUTHORS[self.below(AUTHORS.len())]);
        let date = 1_600_000_000 + mark * 3_600;
        let message = format!("change {mark}\n\nWhy it had to be.\n");
        let mut out = format!(
            "commit refs/heads/main\nmark :{mark}\n\
             author {who} <{}@example.org> {date} +0200\n\
             committer {who} <{}@example.org> {date} +0200\ndata {}\n{message}",
            who.to_lowercase(),
            who.to_lowercase(),
            message.len(),
        )
        .into_bytes();
        if mark > 40 && mark.is_multiple_of(20) {
            out.extend(format!("from :{}\nmerge :{}\n", mark - 1, mark - 7).into_bytes());
            return out;
        }
        if self.files.len() < FILES {
            self.add(&mut out);
        }
        for _ in 0..=self.below(3) {
            self.edit(&mut out);
        }
        if mark.is_multiple_of(50) {
            self.rename(&mut out);
        }
        out
    }

    fn add(&mut self, out: &mut Vec<u8>) {
        let number = self.mark;
        let path = match self.below(10) {
            0..6 => format!("src/part{}/file{number}.rs", self.below(12)),
            6..9 => format!("tests/test{number}.rs"),
            _ => format!("docs/page{number}.md"),
        };
        let lines = (0..LINES).map(|_| self.rng.random_range(0..1_000_000)).collect();
        let file = File { path, lines };
        write(out, &file);
        self.files.push(file);
    }

    fn edit(&mut self, out: &mut Vec<u8>) {
        let at = self.below(self.files.len());
        let from = self.below(LINES);
        for line in from..(from + 1 + self.below(6)).min(LINES) {
            self.files[at].lines[line] = self.rng.random_range(0..1_000_000);
        }
        write(out, &self.files[at]);
    }

    fn rename(&mut self, out: &mut Vec<u8>) {
        let at = self.below(self.files.len());
        let file = &mut self.files[at];
        out.extend(format!("D {}\n", file.path).into_bytes());
        file.path = format!("src/moved/file{}.rs", self.mark);
        write(out, file);
    }
}

fn write(out: &mut Vec<u8>, file: &File) {
    let mut content = Vec::with_capacity(file.lines.len() * 32);
    for line in &file.lines {
        content.extend_from_slice(format!("    let value = compute({line});\n").as_bytes());
    }
    let head = format!("M 100644 inline {}\ndata {}\n", file.path, content.len());
    out.extend(head.into_bytes());
    out.extend(content);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_is_what_git_takes() {
        let folder = tempfile::tempdir().unwrap();
        let git_dir = folder.path().join("r.git");
        repository(&git_dir, 120).unwrap();
        assert_eq!(commits(&git_dir), Some(120));
        assert_eq!(commits(folder.path()), None);
    }
}

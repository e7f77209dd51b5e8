//! What `git log` says of a history: the yardstick for the engine, read by a reader of its own.

use std::collections::HashMap;
use std::path::Path;

use crate::repository::git;

/// One changed path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Row {
    pub(crate) modes: String,
    pub(crate) oids: String,
    pub(crate) status: String,
    pub(crate) path: Vec<u8>,
    pub(crate) old_path: Option<Vec<u8>>,
    /// `12` or `-`.
    pub(crate) added: String,
    pub(crate) deleted: String,
}

/// The header and message of a commit, as fields: see [`FORMAT`].
pub(crate) type Header = Vec<String>;

const FORMAT: &str = "%H%x00%T%x00%P%x00%an%x00%ae%x00%at%x00%cn%x00%ce%x00%ct%x00%s%x00%b%x00\
                      %(trailers:only,unfold)%x00%x01";

fn log(git_dir: &Path, arguments: &[&str]) -> Vec<u8> {
    let mut command = git(Path::new("/"));
    command.arg("--git-dir").arg(git_dir).args(["-c", "core.bare=true", "--no-replace-objects"]);
    command.env("GIT_ATTR_SOURCE", "4b825dc642cb6eb9a060e54bf8d69288fbee4904");
    command.args(["log", "--all", "--encoding=UTF-8"]).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The rows of every commit against its first parent.
pub(crate) fn rows(git_dir: &Path) -> HashMap<String, Vec<Row>> {
    let options = ["--raw", "--numstat", "-z", "--no-abbrev", "-M50%", "-l1000", "--no-textconv"];
    let more = ["--diff-merges=first-parent", "--no-ext-diff", "--root", "--format=%x01%H"];
    let output = log(git_dir, &[options.as_slice(), &more].concat());
    let mut tokens = output.split(|byte| *byte == 0);
    let mut commits = HashMap::new();
    let mut commit = String::new();
    let mut rows: Vec<Row> = Vec::new();
    let mut counted = 0;
    while let Some(token) = tokens.next() {
        let token = token.strip_prefix(b"\n").unwrap_or(token);
        match token.first() {
            None => {}
            Some(1) => {
                commits.insert(std::mem::take(&mut commit), std::mem::take(&mut rows));
                commit = String::from_utf8(token[1..].to_vec()).unwrap();
                counted = 0;
            }
            Some(b':') => {
                let text = String::from_utf8(token[1..].to_vec()).unwrap();
                let words: Vec<&str> = text.split(' ').collect();
                let mut row = Row {
                    modes: words[..2].join(" "),
                    oids: words[2..4].join(" "),
                    status: words[4].to_owned(),
                    path: tokens.next().unwrap().to_vec(),
                    ..Row::default()
                };
                if row.status.starts_with('R') {
                    row.old_path =
                        Some(std::mem::replace(&mut row.path, tokens.next().unwrap().to_vec()));
                }
                rows.push(row);
            }
            Some(_) => {
                let mut parts = token.splitn(3, |byte| *byte == b'\t');
                let mut number = || String::from_utf8(parts.next().unwrap().to_vec()).unwrap();
                let (added, deleted) = (number(), number());
                let mut path = parts.next().unwrap();
                if path.is_empty() {
                    assert_eq!(tokens.next(), rows[counted].old_path.as_deref());
                    path = tokens.next().unwrap();
                }
                assert_eq!(path, rows[counted].path);
                (rows[counted].added, rows[counted].deleted) = (added, deleted);
                counted += 1;
            }
        }
    }
    commits.insert(commit, rows);
    commits.remove("");
    commits
}

/// Header and message of every commit.
pub(crate) fn headers(git_dir: &Path) -> HashMap<String, Header> {
    let output = log(git_dir, &["--no-patch", &format!("--format={FORMAT}")]);
    let text = String::from_utf8(output).unwrap();
    text.split("\0\u{1}")
        .map(|commit| commit.trim_start_matches('\n'))
        .filter(|commit| !commit.is_empty())
        .map(|commit| {
            let fields: Header = commit.split('\0').map(str::to_owned).collect();
            (fields[0].clone(), fields)
        })
        .collect()
}

/// For each merge, how many paths differ from all of its parents.
pub(crate) fn combined(git_dir: &Path) -> HashMap<String, u32> {
    let options = ["--merges", "-c", "--name-only", "-z", "--no-renames", "--format=%x01%H"];
    let output = log(git_dir, &options);
    let mut merges = HashMap::new();
    let mut merge = String::new();
    for token in output.split(|byte| *byte == 0) {
        let token = token.strip_prefix(b"\n").unwrap_or(token);
        match token.split_first() {
            None => {}
            Some((1, id)) => {
                merge = String::from_utf8(id.to_vec()).unwrap();
                merges.insert(merge.clone(), 0);
            }
            Some(_) => *merges.get_mut(&merge).unwrap() += 1,
        }
    }
    merges
}

//! Commits that are larger than anything that reads them, and the children that read them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use queue_worker::handler::git::ObjectId;

use crate::repository::{git, line};

/// A commit whose tree has `10^depth` paths, all the same.
pub(crate) fn tree_bomb(folder: &Path, depth: u32) -> ObjectId {
    let blob = said_with(folder, &["hash-object", "-w", "--stdin"], "x\n");
    let mut entry = format!("100644 blob {blob}");
    for _ in 0..depth {
        let mut tree = String::new();
        for name in 0..10 {
            writeln!(tree, "{entry}\t{name}").unwrap();
        }
        entry = format!("040000 tree {}", said_with(folder, &["mktree"], &tree));
    }
    let tree = entry.rsplit(' ').next().unwrap().to_owned();
    line(folder, &["commit-tree", &tree, "-m", "bomb"]).parse().unwrap()
}

/// What git answers to an input.
pub(crate) fn said_with(folder: &Path, arguments: &[&str], input: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut child = git(folder)
        .args(arguments)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(child.wait().unwrap().success());
    output.trim_end().to_owned()
}

/// The git children of a process that work in `folder`: their ids, command lines and peaks of memory
/// in bytes. Those that have ended and are not yet reaped have no command line.
pub(crate) fn children(parent: u32, folder: &Path) -> Vec<(i32, String, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        if field("PPid:") != Some(u64::from(parent)) {
            continue;
        }
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains(folder.to_str().unwrap()) {
            found.push((pid, command, field("VmHWM:").unwrap_or(0) * 1024));
        }
    }
    found
}

//! The configuration file of a mirror, written anew before each change of it.
//!
//! Whatever stood there is gone: a mirror has no filter, no hook and no alias, and its one remote has
//! the URL of the source. The way to a password is a file that a helper reads; neither password nor
//! URL is ever part of an argument list.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::source::Source;
use super::transfer::helper;
use crate::handler::git::oid::ObjectFormat;
use crate::handler::git::options::{Access, SourcePolicy};

/// Only the owner may read it.
const PRIVATE: u32 = 0o600;

/// Writes the configuration of the mirror at `git_dir`.
pub(super) fn write(
    git_dir: &Path,
    source: &Source,
    format: ObjectFormat,
    access: &Access,
) -> io::Result<()> {
    replace(&git_dir.join("config"), &text(source, format, access))
}

/// Writes what a source on this disk is served with: whose repositories may be read. Git means the
/// repository in a work tree, the operator may mean the tree.
pub(super) fn write_global(path: &Path, policy: &SourcePolicy) -> io::Result<()> {
    let mut text = String::new();
    for trusted in &policy.trusted_paths {
        for path in [trusted.join(".git"), trusted.clone()] {
            let _ = writeln!(text, "[safe]\n\tdirectory = {}", quoted(&path.to_string_lossy()));
        }
    }
    replace(path, &text)
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write as _;
    let new = path.with_extension(format!("new-{}", uuid::Uuid::new_v4().simple()));
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(PRIVATE).open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&new, path)
}

fn text(source: &Source, format: ObjectFormat, access: &Access) -> String {
    let mut text = String::new();
    let version = match format {
        ObjectFormat::Sha1 => 0,
        ObjectFormat::Sha256 => 1,
    };
    let _ = writeln!(text, "[core]\n\trepositoryformatversion = {version}\n\tbare = true");
    text.push_str("\tfilemode = true\n\tlogAllRefUpdates = false\n");
    if format == ObjectFormat::Sha256 {
        text.push_str("[extensions]\n\tobjectformat = sha256\n");
    }
    let _ = writeln!(text, "[remote \"origin\"]\n\turl = {}", quoted(source.url()));
    // A slow server is given up by its speed, and by the time for the whole.
    text.push_str(
        "[http]\n\tfollowRedirects = false\n\tlowSpeedLimit = 1000\n\tlowSpeedTime = 60\n",
    );
    text.push_str("[transfer]\n\tbundleURI = false\n\tfsckObjects = false\n");
    text.push_str("[fetch]\n\trecurseSubmodules = false\n\twriteCommitGraph = false\n");
    text.push_str("[gc]\n\tauto = 0\n\tautoDetach = false\n[maintenance]\n\tauto = false\n");
    text.push_str("[pack]\n\tthreads = 1\n\twindowMemory = 32m\n[index]\n\tthreads = false\n");
    let file = source.host().and_then(|host| access.credentials.get(host));
    if let Some((origin, file)) = source.origin().zip(file) {
        let helper = helper(&file.to_string_lossy());
        // Whatever else git may come to talk to is not told the secret.
        let _ = writeln!(text, "[credential {}]", section(&origin));
        let _ = writeln!(text, "\thelper = {}", quoted(&helper));
    }
    text
}

/// A value between quotes, as git-config(1) reads it.
fn quoted(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 2);
    text.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            _ => text.push(c),
        }
    }
    text.push('"');
    text
}

/// The name of a subsection; hosts hold nothing that would have to be escaped but a quote or backslash.
fn section(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

/// One word for sh(1).
pub(super) fn shell(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted() {
        assert_eq!(quoted("a\"b\\c\nd"), "\"a\\\"b\\\\c\\nd\"");
        assert_eq!(shell("it's"), "'it'\\''s'");
    }

    #[test]
    fn git_reads_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let policy = SourcePolicy {
            protocols: vec!["file".to_owned(), "https".to_owned()],
            trusted_paths: vec!["/srv/a \"b\"".into()],
            ..SourcePolicy::default()
        };
        let source = Source::new("r", "https://example.com/a\"b", &policy).unwrap();
        let access = Access {
            credentials: [("example.com".to_owned(), "/run/it's \"here\"".into())].into(),
            ..Access::default()
        };
        write(folder.path(), &source, ObjectFormat::Sha256, &access).unwrap();
        let get = |key: &str| {
            let file = folder.path().join("config");
            let output = std::process::Command::new("git")
                .args(["config", "--file"])
                .arg(&file)
                .args(["--get", key])
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
        };
        assert_eq!(get("remote.origin.url"), source.url());
        assert_eq!(get("extensions.objectformat"), "sha256");
        assert_eq!(
            get("credential.https://example.com.helper"),
            "!f() { test \"$1\" = get && cat -- '/run/it'\\''s \"here\"'; }; f"
        );
        for other in ["http://example.com/a", "https://example.com:8443/a", "https://example.org/a"]
        {
            let output = std::process::Command::new("git")
                .args(["config", "--file"])
                .arg(folder.path().join("config"))
                .args(["--get-urlmatch", "credential.helper", other])
                .output();
            assert_eq!(output.unwrap().stdout, b"", "{other}");
        }
        write_global(&folder.path().join("config"), &policy).unwrap();
        assert_eq!(get("safe.directory"), "/srv/a \"b\"");
    }
}

//! The keys of `type = "git-analysis"`, and the rules about them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use super::duration::format_duration as show;
use super::handlers::HandlerCommon;
use super::section::section;
use super::size::ByteSize;
use super::validate::{DEFAULT_PATH, Rules, on_path};

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// The default of `timeout` here: a first clone takes longer than most tasks.
pub(super) const TIMEOUT: Duration = secs(30 * 60);

/// Transports that git can be told to use.
const PROTOCOLS: [&str; 5] = ["https", "ssh", "http", "git", "file"];
/// The most commits of a task (handler::git::MAX_COMMITS).
const MAX_BATCH: usize = 256;
/// A git child of less cannot hold its packs' windows.
const LEAST_MEMORY: ByteSize = ByteSize::mib(64);
/// What a small repository takes.
const LEAST_DISK: ByteSize = ByteSize::mib(1);

section! {
    /// Analyses commits of git repositories (docs/git.md). Here timeout is 30m if it is not set: it
    /// has to be long enough for the first clone of the largest repository.
    GitSettings {
        ..
        /// Where this machine's mirrors are, on a local disk; default: `git` in worker.state_dir.
        /// Workers of one machine and one user may share it.
        mirrors: Option<PathBuf> = None,
        /// The git program, version 2.39 or later: an absolute path, or a name on PATH.
        program: PathBuf = PathBuf::from("git"),
        /// Transports that a task's URL may have, of "https", "ssh", "http", "git" and "file" (local
        /// paths).
        protocols: Vec<String> = strings(&["https", "ssh"]),
        /// Hosts that a task's URL may name; one that begins with a dot stands for all below it.
        /// Default: any.
        hosts: Option<Vec<String>> = None,
        /// Local repositories of other users that may be read all the same; "/FOLDER/*" for all below a
        /// folder, "*" for all.
        trusted_paths: Vec<String> = Vec::new(),
        /// By host a file with the lines username=… and password=…, read at each fetch. Secrets never
        /// stand in a URL or an argument.
        credential_files: BTreeMap<String, String> = BTreeMap::new(),
        /// The command for ssh; the default asks nothing and trusts only known hosts.
        ssh_command: Option<String> = None,
        /// Variables for the programs that fetch: a proxy, certificates, an agent's socket. Not for
        /// secrets.
        environment: BTreeMap<String, String> = BTreeMap::new(),
        /// Commits of each task that a range or a whole repository is cut into, 1 to 256.
        batch: usize = 64,
        /// How long git may work on one commit; what takes longer is tried once more with less
        /// detail, and then refused as TOO_LARGE.
        commit_timeout: Duration = secs(30),
        /// The most memory of one git process that analyses.
        memory_max: ByteSize = ByteSize::mib(128),
        /// The most bytes of a commit's raw result.
        output_max: ByteSize = ByteSize::mib(64),
        /// The most changed paths of a commit.
        files_max: u32 = 100_000,
        /// The most memory of each program of a fetch.
        fetch_memory_max: ByteSize = ByteSize::gib(4),
        /// The most bytes of one file that a fetch writes, so of what one clone or fetch brings. A
        /// mirror may become larger by fetches and repacks.
        repository_max: ByteSize = ByteSize::gib(16),
        /// The most bytes of all mirrors, with clones under way, before a clone or a fetch begins and
        /// after a clone; those used longest ago make room. Those in use stay, and one alone may have
        /// more.
        mirrors_max: ByteSize = ByteSize::gib(64),
        /// Bytes that stay free on the disk.
        disk_free: ByteSize = ByteSize::gib(1),
        /// How long commits that a force push took away are kept for tasks that still name them.
        pin_for: Duration = secs(30 * 24 * 3_600),
    }
}

impl Rules<'_> {
    /// Notes what is wrong with a handler of commits.
    pub(super) fn git(
        &mut self,
        key: &str,
        common: &HandlerCommon,
        git: &GitSettings,
        path: Option<&OsStr>,
    ) {
        let name = |name: &str| format!("{key}.{name}");
        self.range(&name("batch"), git.batch, 1, MAX_BATCH);
        self.git_paths(key, git, path.unwrap_or(OsStr::new(DEFAULT_PATH)));
        self.git_sources(key, git);
        if git.commit_timeout > common.timeout {
            self.broken(
                &[&name("commit_timeout"), &name("timeout")],
                format!(
                    "the time for one commit {} is longer than the one for the task {}",
                    show(git.commit_timeout),
                    show(common.timeout)
                ),
                "lower commit_timeout, or raise timeout",
            );
        }
        for (key, size, least) in [
            ("memory_max", git.memory_max, LEAST_MEMORY),
            ("fetch_memory_max", git.fetch_memory_max, LEAST_MEMORY),
            ("output_max", git.output_max, LEAST_DISK),
            ("repository_max", git.repository_max, LEAST_DISK),
            ("mirrors_max", git.mirrors_max, LEAST_DISK),
        ] {
            if size < least {
                let message = format!("{size} is too little for any repository");
                self.broken(&[&name(key)], message, format!("raise it to at least \"{least}\""));
            }
        }
        if git.repository_max > git.mirrors_max {
            self.broken(
                &[&name("repository_max"), &name("mirrors_max")],
                format!("one mirror may have {}, and all {}", git.repository_max, git.mirrors_max),
                "lower repository_max, or raise mirrors_max",
            );
        }
        if git.files_max == 0 {
            self.broken(&[&name("files_max")], "is 0", "allow for at least one path");
        }
    }

    fn git_paths(&mut self, key: &str, git: &GitSettings, path: &OsStr) {
        if let Some(mirrors) = git.mirrors.as_ref().filter(|mirrors| mirrors.is_relative()) {
            let message = format!("{} is not an absolute path", mirrors.display());
            self.broken(&[&format!("{key}.mirrors")], message, "write it from the root");
        }
        let program = git.program.to_string_lossy();
        let at = format!("{key}.program");
        if program.contains('/') {
            if git.program.is_relative() {
                let remedy = "write it from the root, or only its name if it is on PATH";
                self.broken(&[&at], format!("{program:?} is a relative path"), remedy);
            }
        } else if !on_path(&program, path) {
            let remedy = "install git, or write its absolute path";
            self.broken(&[&at], format!("{program:?} is not on PATH"), remedy);
        }
    }

    fn git_sources(&mut self, key: &str, git: &GitSettings) {
        let protocols = format!("{key}.protocols");
        if git.protocols.is_empty() {
            self.broken(&[&protocols], "allows nothing", "name at least one, such as \"https\"");
        }
        let unknown = |name: &&String| !PROTOCOLS.contains(&name.as_str());
        if let Some(name) = git.protocols.iter().find(unknown) {
            let remedy = format!("use some of: {}", PROTOCOLS.join(", "));
            self.broken(&[&protocols], format!("{name:?} is no transport of git's"), remedy);
        }
        let bad = |host: &&String| {
            host.is_empty()
                || !host.chars().all(|c| c.is_ascii_alphanumeric() || "._-:[]".contains(c))
        };
        let hosts = git.hosts.iter().flatten();
        for (name, host) in [
            ("hosts", hosts.clone().find(bad)),
            ("credential_files", git.credential_files.keys().find(bad)),
        ] {
            if let Some(host) = host {
                let message = format!("{host:?} is not the name of a host");
                let remedy = "write it like \"example.org\", without scheme, user and path";
                self.broken(&[&format!("{key}.{name}")], message, remedy);
            }
        }
        if git.hosts.as_ref().is_some_and(Vec::is_empty) {
            self.broken(&[&format!("{key}.hosts")], "allows nothing", "name a host, or remove it");
        }
        let relative = |path: &&String| *path != "*" && !path.starts_with('/');
        if let Some(path) = git.trusted_paths.iter().find(relative) {
            let message = format!("{path:?} is not an absolute path");
            self.broken(&[&format!("{key}.trusted_paths")], message, "write it from the root");
        }
        if git.ssh_command.as_ref().is_some_and(|command| command.trim().is_empty()) {
            self.broken(
                &[&format!("{key}.ssh_command")],
                "is empty",
                "name a program, or remove it",
            );
        }
        let bad_name = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = git.environment.keys().find(bad_name) {
            let message = format!("{name:?} is not the name of a variable");
            self.broken(&[&format!("{key}.environment")], message, "write NAME = \"value\"");
        }
    }
}

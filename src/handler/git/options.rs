//! What the operator decides about git: the program, where mirrors live, which sources are allowed,
//! and the limits.
//!
//! Plain values; nothing here reads a configuration or the environment.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

/// What is needed to make an engine and mirrors.
#[derive(Debug, Clone)]
pub struct GitOptions {
    /// The git program: an absolute path, or a name that is looked for in `PATH`.
    pub program: PathBuf,
    /// Where the mirrors of this node live; on a local disk, since file locks guard them.
    pub root: PathBuf,
    /// Which repositories may be read.
    pub sources: SourcePolicy,
    /// How to sign in and get out.
    pub access: Access,
    /// What an analysis may use.
    pub engine: EngineLimits,
    /// What mirrors may use.
    pub mirrors: MirrorLimits,
}

impl GitOptions {
    /// The defaults, with mirrors below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            program: "git".into(),
            root: root.into(),
            sources: SourcePolicy::default(),
            access: Access::default(),
            engine: EngineLimits::default(),
            mirrors: MirrorLimits::default(),
        }
    }
}

/// Which repositories may be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePolicy {
    /// Transports, by git's names: `https`, `ssh`, `http`, `git`; `file` for local paths.
    pub protocols: Vec<String>,
    /// Hosts; a name that begins with a dot stands for all below it. None means any host.
    pub hosts: Option<Vec<String>>,
    /// Local repositories of other users that may be read all the same; `*` for all.
    pub trusted_paths: Vec<PathBuf>,
}

impl Default for SourcePolicy {
    fn default() -> Self {
        Self {
            protocols: vec!["https".to_owned(), "ssh".to_owned()],
            hosts: None,
            trusted_paths: Vec::new(),
        }
    }
}

/// How to sign in and get out. Nothing of it is ever part of an argument list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// By host: a file with the lines `username=…` and `password=…` of gitcredentials(7), read at each
    /// use.
    pub credentials: BTreeMap<String, PathBuf>,
    /// The ssh command line; the default asks nothing and trusts only known hosts.
    pub ssh_command: Option<String>,
    /// Variables for the programs that talk to a server: a proxy, certificates, an agent's socket.
    pub environment: BTreeMap<String, String>,
}

/// What an analysis may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineLimits {
    /// Memory of one child in bytes: what it allocates and the windows of the packs that it maps.
    pub memory: u64,
    /// Time for one commit and one attempt; a second and last attempt does less.
    pub commit_time: Duration,
    /// Bytes of a commit's raw result.
    pub output: u64,
    /// Changed paths of a commit.
    pub files: u32,
    /// Children that wait for more of the same mirror, in pairs.
    pub idle_pairs: usize,
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            memory: 128 * MIB,
            commit_time: Duration::from_secs(30),
            output: 64 * MIB,
            files: 100_000,
            idle_pairs: 8,
        }
    }
}

/// What mirrors may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MirrorLimits {
    /// Address space of each program of a fetch, in bytes.
    pub fetch_memory: u64,
    /// Time for one fetch or clone.
    pub fetch_time: Duration,
    /// Time to wait for others who use the mirror.
    pub lock_time: Duration,
    /// Bytes of one file that a fetch writes, and so of what one clone or fetch brings.
    pub repository: u64,
    /// Bytes of all mirrors together, with clones under way; those used longest ago make room. Looked
    /// at before each clone and fetch and after each clone.
    pub total: u64,
    /// Bytes that stay free on the disk.
    pub free: u64,
    /// A pinned commit is kept so long.
    pub pin_time: Duration,
}

impl Default for MirrorLimits {
    fn default() -> Self {
        Self {
            fetch_memory: 4 * GIB,
            fetch_time: Duration::from_secs(30 * 60),
            lock_time: Duration::from_secs(10 * 60),
            repository: 16 * GIB,
            total: 64 * GIB,
            free: GIB,
            pin_time: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

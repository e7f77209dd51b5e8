//! The engine that asks git itself.

use std::fmt;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::batch::Batch;
use super::lookup::Lookup;
use super::merges::Merges;
use super::pool::{Key, Pair, Pool};
use super::spawner::Spawner;
use super::{Analysed, Engine};
use crate::handler::git::mirror::Mirror;
use crate::handler::git::oid::ObjectId;
use crate::handler::git::options::{EngineLimits, GitOptions};
use crate::handler::git::profile::Profile;
use crate::handler::git::program::{Program, ProgramError};

/// Analyses commits with git's plumbing in child processes.
///
/// A batch has two children, `git diff-tree` and `git cat-file`, and a third if there are merges. They
/// wait for the next batch of the same mirror afterwards. Any number of batches may run at once, each
/// with children of its own.
pub struct GitEngine {
    spawner: Spawner,
    pool: Pool,
}

impl fmt::Debug for GitEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GitEngine").field(&self.spawner).finish()
    }
}

impl GitEngine {
    /// Looks for git and takes the usual profile of its version.
    pub async fn new(options: &GitOptions) -> Result<Self, ProgramError> {
        let program = Program::detect(&options.program).await?;
        let profile = Profile::new(program.version());
        Ok(Self::make(program, profile, options.engine))
    }

    /// The same with rules of one's own; the version in `profile` is replaced by the one found.
    pub async fn with_profile(
        options: &GitOptions,
        profile: Profile,
    ) -> Result<Self, ProgramError> {
        let program = Program::detect(&options.program).await?;
        let profile = Profile { git: program.version(), ..profile };
        Ok(Self::make(program, profile, options.engine))
    }

    fn make(program: Program, profile: Profile, limits: EngineLimits) -> Self {
        Self { spawner: Spawner { program, profile, limits }, pool: Pool::default() }
    }

    /// The most memory that a child had resident when a batch of it ended well, in bytes.
    pub fn peak_memory(&self) -> u64 {
        self.pool.peak()
    }

    /// Ends the children that wait for more.
    pub async fn close_idle(&self) {
        self.pool.clear().await;
    }
}

#[async_trait]
impl Engine for GitEngine {
    fn profile(&self) -> &Profile {
        &self.spawner.profile
    }

    async fn analyse(
        &self,
        mirror: &Mirror,
        commits: &[ObjectId],
        results: &mpsc::Sender<Analysed>,
    ) {
        let key = Key::of(mirror);
        let Pair { objects, differ, merges } = self.pool.take(&key).await;
        let lookup = Lookup { spawner: &self.spawner, mirror, child: objects };
        let merges = Merges { spawner: &self.spawner, mirror, child: merges };
        let mut batch = Batch { spawner: &self.spawner, mirror, results, lookup, differ, merges };
        let done = batch.run(commits).await;
        let Batch { lookup, differ, merges, .. } = batch;
        let pair = Pair { objects: lookup.child, differ, merges: merges.child };
        if done.is_ok() {
            self.pool.put(key, pair, self.spawner.limits.idle_pairs).await;
        } else {
            // Some request may still be under way in them.
            drop(pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::handler::git::change::FileKind;
    use crate::handler::git::oid::ObjectFormat;
    use crate::handler::git::version::GitVersion;

    fn git(folder: &Path, arguments: &[&str]) -> String {
        let identity = ["-c", "user.name=A", "-c", "user.email=a@x"];
        let output = Command::new("git")
            .current_dir(folder)
            .args(identity)
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// Old versions read no attributes in a bare repository, new ones are told to read them from the
    /// empty tree: either way a commit cannot say how it is to be counted, nor can HEAD.
    #[tokio::test]
    async fn attributes_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        git(path, &["init", "-q", "-b", "main", "."]);
        std::fs::write(path.join(".gitattributes"), "*.c binary\n*.c diff=x\n").unwrap();
        std::fs::write(path.join("a.c"), "1\n2\n").unwrap();
        git(path, &["add", "."]);
        git(path, &["commit", "-q", "-m", "x"]);
        let bare = path.join("bare.git");
        git(path, &["clone", "-q", "--bare", ".", bare.to_str().unwrap()]);
        let commit: ObjectId = git(path, &["rev-parse", "HEAD"]).parse().unwrap();
        let program = Program::detect(Path::new("git")).await.unwrap();
        for version in [GitVersion::MINIMUM, program.version()] {
            let program = program.clone().with_version(version);
            let limits = EngineLimits::default();
            let engine = GitEngine::make(program, Profile::new(version), limits);
            let mirror = Mirror::unlocked(&bare, ObjectFormat::Sha1);
            let (sender, mut receiver) = mpsc::channel(1);
            engine.analyse(&mirror, &[commit], &sender).await;
            let outcome = receiver.recv().await.unwrap().outcome;
            let change = outcome.analysis().unwrap().changes.iter().find(|it| it.path == b"a.c");
            let change = change.unwrap();
            assert_eq!((change.kind, change.added), (FileKind::Text, Some(2)), "{version}");
            engine.close_idle().await;
        }
    }
}

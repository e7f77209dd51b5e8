//! Starts the children of one engine.

use std::io;

use super::child::{Child, memory_config};
use super::differ::{self, Depth, Differ};
use super::objects::{self, Objects};
use crate::handler::git::mirror::Mirror;
use crate::handler::git::options::EngineLimits;
use crate::handler::git::profile::Profile;
use crate::handler::git::program::Program;

/// What is needed to start children.
#[derive(Debug)]
pub(super) struct Spawner {
    pub(super) program: Program,
    pub(super) profile: Profile,
    pub(super) limits: EngineLimits,
}

impl Spawner {
    pub(super) fn objects(&self, mirror: &Mirror) -> io::Result<Objects> {
        let mut command = self.program.command(mirror.git_dir(), mirror.format(), &self.config());
        objects::arguments(&mut command);
        Ok(Objects::new(Child::spawn("cat-file", command, self.limits.memory)?))
    }

    pub(super) fn differ(&self, mirror: &Mirror, depth: Depth) -> io::Result<Differ> {
        let mut command = self.program.command(mirror.git_dir(), mirror.format(), &self.config());
        differ::arguments(&mut command, depth, &self.profile);
        Ok(Differ::new(Child::spawn("diff-tree", command, self.limits.memory)?))
    }

    fn config(&self) -> Vec<(&'static str, String)> {
        let mut config = memory_config();
        config.push(("core.bigFileThreshold", self.profile.big_file_threshold.to_string()));
        config
    }
}

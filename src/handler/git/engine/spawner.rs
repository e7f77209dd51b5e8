//! Starts the children of one engine.

use std::io;

use tokio::process::Command;

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
        self.child("cat-file", mirror, objects::arguments).map(Objects::new)
    }

    pub(super) fn differ(&self, mirror: &Mirror, depth: Depth) -> io::Result<Differ> {
        let arguments = |command: &mut Command| differ::arguments(command, depth, &self.profile);
        self.child("diff-tree", mirror, arguments).map(Differ::new)
    }

    fn child(
        &self,
        program: &'static str,
        mirror: &Mirror,
        arguments: impl FnOnce(&mut Command),
    ) -> io::Result<Child> {
        let mut command = self.program.command(mirror.git_dir(), mirror.format(), &self.config());
        command.arg(program);
        arguments(&mut command);
        Child::spawn(program, command, self.limits.memory)
    }

    fn config(&self) -> Vec<(&'static str, String)> {
        let mut config = memory_config();
        config.push(("core.bigFileThreshold", self.profile.big_file_threshold.to_string()));
        config
    }
}

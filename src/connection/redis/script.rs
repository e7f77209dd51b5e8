//! A Lua script, called by its digest.
//!
//! `EVALSHA` first; a server that does not know the script yet (a new one, or after `SCRIPT FLUSH`)
//! answers `NOSCRIPT` and gets the text with `EVAL`, which also makes it known.

use redis::Cmd;

/// A script of this program. Each lives in a `*.lua` file beside the code that calls it.
#[derive(Debug)]
pub struct LuaScript {
    name: &'static str,
    body: &'static str,
    sha: String,
}

impl LuaScript {
    /// The script with this name (shown in errors) and text.
    pub fn new(name: &'static str, body: &'static str) -> Self {
        Self { name, body, sha: redis::Script::new(body).get_hash().to_owned() }
    }

    /// What errors call it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// `EVALSHA` with what `fill` appends: the number of keys, the keys, the arguments.
    pub(super) fn by_digest(&self, fill: impl FnOnce(&mut Cmd)) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.sha);
        fill(&mut cmd);
        cmd
    }

    /// `EVAL` with what `fill` appends.
    pub(super) fn by_text(&self, fill: impl FnOnce(&mut Cmd)) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(self.body);
        fill(&mut cmd);
        cmd
    }
}

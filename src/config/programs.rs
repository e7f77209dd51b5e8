//! Programs that the handlers name and that are not there: a warning, never a broken configuration.
//!
//! A file is often checked on another machine than the one that runs it, and a deploy may bring the
//! program later. Names without a path are looked for on PATH when the configuration is checked.

use std::fmt;
use std::path::{Path, PathBuf};

use super::handlers::HandlerAction;
use super::tree::Config;
use super::validate::is_program;

/// A program with an absolute path that cannot be run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentProgram {
    /// The key that names it.
    pub key: String,
    /// Where it should be.
    pub path: PathBuf,
}

impl fmt::Display for AbsentProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} is no program that can be run", self.key, self.path.display())
    }
}

impl Config {
    /// The programs of handlers that cannot be run on this machine, as this user sees it.
    pub fn absent_programs(&self) -> Vec<AbsentProgram> {
        let named = self.handlers.iter().filter_map(|(kind, handler)| match &handler.action {
            HandlerAction::Exec(exec) => {
                let program = Path::new(exec.command.first()?);
                Some((format!("handler.{kind}.command"), program))
            }
            HandlerAction::Git(git) => Some((format!("handler.{kind}.program"), &*git.program)),
            HandlerAction::Sql(_) | HandlerAction::Http(_) => None,
        });
        named
            .filter(|(_, path)| path.is_absolute() && !is_program(path))
            .map(|(key, path)| AbsentProgram { key, path: path.to_owned() })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Environment;

    #[test]
    fn only_absolute_paths_that_lead_nowhere_are_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        std::fs::write(&data, "").expect("written");
        let text = format!(
            "[[queue]]\nname = \"q\"\n\
             [handler.good]\ntype = \"exec\"\ncommand = [\"/bin/sh\"]\n\
             [handler.gone]\ntype = \"exec\"\ncommand = [\"/nonexistent/x\", \"y\"]\n\
             [handler.data]\ntype = \"exec\"\ncommand = [{data:?}]\n\
             [handler.git]\ntype = \"git-analysis\"\nprogram = \"/nonexistent/git\"\n"
        );
        let config = Config::parse(&text, Path::new("f"), &Environment::default());
        let told: Vec<String> = config
            .expect("a good file")
            .absent_programs()
            .iter()
            .map(|absent| absent.key.clone())
            .collect();
        assert_eq!(told, ["handler.data.command", "handler.git.program", "handler.gone.command"]);
    }
}

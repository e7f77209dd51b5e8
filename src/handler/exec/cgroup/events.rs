//! What the kernel noted about the limits of a run: the reason why it ended as it did.

use std::path::Path;

/// What happened at the limits of a run, descendants included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Evidence {
    /// Processes that were killed for want of memory.
    pub(crate) oom_kills: u64,
    /// How often the run's own limit on memory could not be kept otherwise; where it is 0 and
    /// something was killed, a larger cgroup or the machine ran out.
    pub(crate) own_limit: u64,
    /// Forks that a limit on processes refused: the run's own, or that of a cgroup around it, which
    /// older kernels count where the fork was tried.
    pub(crate) refused_forks: u64,
}

impl Evidence {
    /// Reads the files of a cgroup; what is not there counts as nothing.
    pub(super) fn read(dir: &Path) -> Self {
        let text = |name| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        Self::parse(&text("memory.events"), &text("pids.events"))
    }

    fn parse(memory: &str, pids: &str) -> Self {
        Self {
            oom_kills: count(memory, "oom_kill"),
            own_limit: count(memory, "oom"),
            refused_forks: count(pids, "max"),
        }
    }
}

/// The number of a line `name number`.
fn count(text: &str, name: &str) -> u64 {
    let numbers = text.lines().filter_map(|line| line.split_once(' '));
    let found = numbers.into_iter().find(|(key, _)| *key == name);
    found.and_then(|(_, number)| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_apart_by_their_whole_names() {
        let memory = "low 0\nhigh 0\nmax 7\noom 1\noom_kill 3\noom_group_kill 1\n";
        let evidence = Evidence::parse(memory, "max 5\n");
        assert_eq!(evidence, Evidence { oom_kills: 3, own_limit: 1, refused_forks: 5 });
        assert_eq!(Evidence::parse("", "nonsense"), Evidence::default());
    }

    #[test]
    fn missing_files_say_nothing() {
        assert_eq!(Evidence::read(Path::new("/nowhere")), Evidence::default());
    }
}

//! What a program may use, which controllers of the kernel hold it to that, and what is missing.

use std::fmt;

/// A controller of cgroup v2 that limits need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Memory, and the killing of whoever reaches the limit.
    Memory,
    /// The number of processes and threads.
    Pids,
    /// Shares of the processors.
    Cpu,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    /// Its name in the kernel's files and in `Delegate=`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }

    /// Those that a file such as `cgroup.controllers` lists.
    pub(super) fn listed(text: &str) -> Vec<Self> {
        let has = |it: &Self| text.split_ascii_whitespace().any(|word| word == it.name());
        Self::ALL.into_iter().filter(has).collect()
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What one run of a program may use, all of its descendants included. Absent: no limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Bytes of memory; whoever needs more is killed, with all that belongs to the run. Swap cannot be
    /// used in its place.
    pub memory_max: Option<u64>,
    /// Processes and threads at one time; a fork beyond that fails.
    pub pids_max: Option<u32>,
    /// Its share of the processors where there are not enough, 1 to 10000; others have 100.
    pub cpu_weight: Option<u32>,
}

impl Limits {
    /// Whether there is any.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// The limits that these controllers do not enforce.
    pub fn unenforced(&self, available: &[Controller]) -> Vec<Unenforced> {
        let asked = [
            self.memory_max.map(|_| ("memory_max", Controller::Memory)),
            self.pids_max.map(|_| ("pids_max", Controller::Pids)),
            self.cpu_weight.map(|_| ("cpu_weight", Controller::Cpu)),
        ];
        let missing = asked.into_iter().flatten().filter(|(_, needs)| !available.contains(needs));
        missing.map(|(limit, needs)| Unenforced { limit, needs }).collect()
    }
}

/// A limit that was asked for and is not enforced here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unenforced {
    /// The key of the limit.
    pub limit: &'static str,
    /// What it would need.
    pub needs: Controller,
}

/// A number of bytes with the largest unit that divides it: `512 MiB`.
pub fn readable_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let exact = UNITS.into_iter().find(|(_, bits)| bytes > 0 && bytes.is_multiple_of(1 << bits));
    exact.map_or_else(
        || format!("{bytes} bytes"),
        |(unit, bits)| format!("{} {unit}", bytes >> bits),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_controller_enforces_is_named() {
        let limits = Limits { memory_max: Some(1), pids_max: None, cpu_weight: Some(50) };
        let named = |available: &[Controller]| {
            limits.unenforced(available).into_iter().map(|it| it.limit).collect::<Vec<_>>()
        };
        assert_eq!(named(&[]), ["memory_max", "cpu_weight"]);
        assert_eq!(named(&[Controller::Memory]), ["cpu_weight"]);
        assert!(named(&Controller::ALL).is_empty());
        assert!(limits.any() && !Limits::default().any());
    }

    #[test]
    fn controllers_are_known_by_their_whole_names() {
        assert_eq!(
            Controller::listed("cpuset cpu io memory\n"),
            [Controller::Memory, Controller::Cpu]
        );
        assert!(Controller::listed("").is_empty());
    }

    #[test]
    fn bytes_are_readable() {
        for (bytes, text) in [
            (512 << 20, "512 MiB"),
            (3 << 30, "3 GiB"),
            (1536, "1536 bytes"),
            (2048, "2 KiB"),
            (0, "0 bytes"),
        ] {
            assert_eq!(readable_bytes(bytes), text);
        }
    }
}

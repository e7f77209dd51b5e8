//! The units under test: the committed ones (`nix/units`, and the one for other distributions), with the
//! places of this machine instead of those in a Nix store, and a case's name instead of the
//! instance's.

/// A committed unit: those of the module, and the one for other distributions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Committed {
    Default,
    Exec,
    Background,
    Container,
    Local,
    Other,
}

impl Committed {
    pub(crate) const ALL: [Self; 6] =
        [Self::Default, Self::Exec, Self::Background, Self::Container, Self::Local, Self::Other];

    /// The instance that it was made for.
    pub(crate) fn instance(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Exec => "exec",
            Self::Background => "background",
            Self::Container => "container",
            Self::Local => "local",
            Self::Other => "other",
        }
    }

    fn committed_text(self) -> &'static str {
        match self {
            Self::Default => include_str!("../../nix/units/queue-worker-default.service"),
            Self::Exec => include_str!("../../nix/units/queue-worker-exec.service"),
            Self::Background => include_str!("../../nix/units/queue-worker-background.service"),
            Self::Container => include_str!("../../nix/units/queue-worker-container.service"),
            Self::Local => include_str!("../../nix/units/queue-worker-local.service"),
            Self::Other => include_str!("../../config/queue-worker.service"),
        }
    }

    fn committed_migration(self) -> &'static str {
        match self {
            // It migrates by itself, and wants no other unit.
            Self::Other => "",
            Self::Default => include_str!("../../nix/units/queue-worker-default-migrate.service"),
            Self::Exec => include_str!("../../nix/units/queue-worker-exec-migrate.service"),
            Self::Background => {
                include_str!("../../nix/units/queue-worker-background-migrate.service")
            }
            Self::Container => {
                include_str!("../../nix/units/queue-worker-container-migrate.service")
            }
            Self::Local => include_str!("../../nix/units/queue-worker-local-migrate.service"),
        }
    }

    /// The most that `systemd-analyze security` may find, in tenths: programs of tasks need more
    /// freedom than statements.
    pub(crate) fn most_exposure(self) -> u32 {
        match self {
            Self::Default | Self::Local => 16,
            Self::Exec | Self::Background | Self::Container | Self::Other => 30,
        }
    }

    /// The text for an instance of this name that runs `program`.
    pub(crate) fn text(self, name: &str, program: &str) -> String {
        self.renamed(self.committed_text(), name, program)
    }

    /// The unit that migrates before it, likewise.
    pub(crate) fn migration_text(self, name: &str, program: &str) -> String {
        self.renamed(self.committed_migration(), name, program)
    }

    fn renamed(self, text: &str, name: &str, program: &str) -> String {
        if self == Self::Other {
            return single_instance(text, name, program);
        }
        let old = self.instance();
        places(text, program)
            .replace(&format!("queue-worker/{old}"), &format!("queue-worker/{name}"))
            .replace(&format!("queue-worker-{old}"), &format!("queue-worker-{name}"))
    }
}

/// The drop-in of the container's unit, by its name, and its text.
pub(crate) const CONTAINER_DROP_IN: (&str, &str) = (
    "zzzz-queue-worker.conf",
    include_str!("../../nix/units/queue-worker-container.service.d/zzzz-queue-worker.conf"),
);

/// The script that is the command line of the container's instance, for an instance of this name.
pub(crate) fn command_text(name: &str, program: &str) -> String {
    let text = include_str!("../../nix/units/queue-worker-container");
    Committed::Container.renamed(text, name, program)
}

/// What the units are called that this script makes, for `systemctl list-units`.
pub(crate) fn command_pattern(instance: &str) -> String {
    format!("run-queue-worker-{instance}@*.service")
}

/// Where a drop-in for them is.
pub(crate) fn command_drop_in(instance: &str, file: &str) -> String {
    format!("/etc/systemd/system/run-queue-worker-{instance}@.service.d/{file}")
}

/// The name of an instance's unit.
pub(crate) fn name(instance: &str) -> String {
    format!("queue-worker-{instance}.service")
}

/// The name of the unit that migrates before it.
pub(crate) fn migration_name(instance: &str) -> String {
    format!("queue-worker-{instance}-migrate.service")
}

/// The unit for other distributions, which knows one instance, for an instance of this name.
fn single_instance(text: &str, name: &str, program: &str) -> String {
    let config = format!("--config /etc/queue-worker/{name}.toml");
    let mut text = text
        .replace("/usr/local/bin/queue-worker", program)
        .replace("StateDirectory=queue-worker", &format!("StateDirectory=queue-worker/{name}"))
        .replace("/var/lib/queue-worker", &format!("/var/lib/queue-worker/{name}"));
    for command in ["migrate", "run", "check-config"] {
        let bare = format!("{program} {command}\n");
        text = text.replace(&bare, &format!("{program} {command} {config}\n"));
    }
    text
}

/// Puts real programs where the text has placeholders: `program` for the worker's, and the folders
/// of this machine for those of packages.
fn places(text: &str, program: &str) -> String {
    const STORE: &str = "/nix/store/";
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(STORE) {
        out.push_str(before);
        let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || "-_./".contains(c)));
        let (path, tail) = after.split_at(end.unwrap_or(after.len()));
        let (package, inside) = path.split_once('/').unwrap_or((path, ""));
        if inside == "bin/queue-worker" && package.ends_with("-queue-worker") {
            out.push_str(program);
        } else {
            out.push_str("/usr/");
            out.push_str(inside);
        }
        rest = tail;
    }
    out + rest
}

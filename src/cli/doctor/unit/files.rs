//! The files that the unit is made of, and those that it brings: overrides, credentials, the
//! configuration.

use std::path::Path;

use super::super::finding::Findings;
use crate::config::{Config, HandlerAction};
use crate::supervisor::unit::ServiceUnit;

/// What Incus and LXC generate for every service of a container.
pub(super) const LXC_DROP_IN: &str = "zzz-lxc-service.conf";

pub(super) fn credentials(findings: &mut Findings, unit: &ServiceUnit, config: &Config) {
    const CHECK: &str = "unit.credentials";
    let is_lxc = unit.drop_ins.iter().any(|path| path.ends_with(LXC_DROP_IN));
    let missing: Vec<String> = needed_credentials(config)
        .into_iter()
        .filter(|name| !unit.credentials.contains(name))
        .collect();
    if !missing.is_empty() {
        let names = missing.join(", ");
        let remedy = if is_lxc {
            format!(
                "this container's {LXC_DROP_IN} erases LoadCredential=: set it again in a drop-in \
                 that is read later (zzzz-credentials.conf), or give passwords in an EnvironmentFile="
            )
        } else {
            format!(
                "add LoadCredential={}:/path/of/the/secret, or name an absolute path",
                missing[0]
            )
        };
        findings.error(
            CHECK,
            format!("the unit has no credential {names}"),
            "password files with a relative path are looked up in the unit's credentials: the \
             worker cannot log in",
            remedy,
        );
    } else if is_lxc {
        findings.note(
            CHECK,
            format!("overridden by {LXC_DROP_IN}"),
            "in Incus and LXC it erases LoadCredential= and several hardening settings",
            "set what you need again in a drop-in that is read later, such as zzzz-local.conf",
        );
    } else {
        findings.ok(CHECK, "every credential that the configuration names is there");
    }
}

/// The names of files that are looked up in the unit's credentials.
fn needed_credentials(config: &Config) -> Vec<String> {
    let mut paths = vec![
        config.redis.password_file.as_deref(),
        config.postgres.password_file.as_deref(),
        config.lease.password_file.as_deref(),
    ];
    for handler in config.handlers.values() {
        if let HandlerAction::Http(http) = &handler.action {
            paths.push(http.bearer_file.as_deref());
            paths.extend(http.header_files.values().map(|path| Some(Path::new(path))));
        }
    }
    let relative = paths.into_iter().flatten().filter(|path| path.is_relative());
    relative.map(|path| path.display().to_string()).collect()
}

pub(super) fn files(findings: &mut Findings, unit: &ServiceUnit, path: &Path) {
    const LOADED: &str = "unit.loaded";
    const OVERRIDES: &str = "unit.overrides";
    const CONFIG: &str = "unit.config";
    if unit.needs_reload {
        findings.warning(
            LOADED,
            "its files have changed since systemd read them",
            "what is checked here is what systemd has loaded, not what the files say",
            "run systemctl daemon-reload",
        );
    } else {
        findings.ok(LOADED, format!("{}, {}", unit.file.display(), unit.active_state));
    }
    if unit.drop_ins.is_empty() {
        findings.ok(OVERRIDES, "nothing overrides it");
    } else {
        let names: Vec<String> =
            unit.drop_ins.iter().map(|path| path.display().to_string()).collect();
        findings.note(
            OVERRIDES,
            format!("overridden by {}", names.join(", ")),
            "the last one wins",
            format!("read them with systemctl cat {}", unit.name),
        );
    }
    match named_config(unit) {
        Some(other) if Path::new(other) != path => findings.warning(
            CONFIG,
            format!("it reads {other}, and {} was checked", path.display()),
            "the findings are those of another configuration",
            format!("run queue-worker doctor --config {other}"),
        ),
        _ => findings.ok(CONFIG, format!("{} was checked", path.display())),
    }
}

/// The file that the unit's command names.
pub(in super::super) fn named_config(unit: &ServiceUnit) -> Option<&str> {
    let option = unit.command.iter().position(|word| word == "--config");
    let value = option.and_then(|at| unit.command.get(at + 1)).map(String::as_str);
    value.or_else(|| unit.command.iter().find_map(|word| word.strip_prefix("--config=")))
}

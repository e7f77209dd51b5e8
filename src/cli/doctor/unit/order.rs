//! Stores of the same machine: a stop of everything must not stop them before the worker.
//!
//! With `After=` alone a switch may still stop the store first; `Requires=` makes its stop a stop of
//! the worker as well, in order. A crash of the store does not stop a worker that requires it, unless
//! systemd restarts the store without `RestartMode=direct`: then it restarts the worker too.

use super::super::finding::Findings;
use crate::config::{Config, ServerUrl};
use crate::supervisor::unit::ServiceUnit;

/// A store, and how its units begin.
const STORES: [(&str, &[&str]); 2] =
    [("redis", &["redis", "valkey"]), ("postgres", &["postgresql"])];

/// The units of stores that may be on this machine.
pub(super) const PATTERNS: [&str; 3] = ["redis*.service", "valkey*.service", "postgresql*.service"];

/// `loaded` are the units that match [`PATTERNS`].
pub(super) fn order(
    findings: &mut Findings,
    unit: &ServiceUnit,
    config: &Config,
    loaded: &[String],
) {
    const CHECK: &str = "unit.order";
    let urls: [&ServerUrl; 2] = [&config.redis.url, &config.postgres.url];
    for ((store, beginnings), url) in STORES.into_iter().zip(urls) {
        let is_its = |name: &&String| beginnings.iter().any(|start| name.starts_with(start));
        let units: Vec<&String> = loaded.iter().filter(is_its).collect();
        if !url.is_local() || units.is_empty() {
            continue;
        }
        let waits = |name: &&&String| unit.after.contains(name) && unit.requires.contains(name);
        match units.iter().find(waits) {
            Some(name) => findings.ok(CHECK, format!("it stops before {name}")),
            None => findings.warning(
                CHECK,
                format!("{store} is of this machine, and the unit does not require {}", units[0]),
                "a switch or a shutdown may stop it before the drain has ended: what tasks have \
                 done is not recorded, and they run again",
                format!("set Requires={0} and After={0}", units[0]),
            ),
        }
    }
}

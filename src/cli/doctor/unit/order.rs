//! Stores of the same machine: a stop of everything must not stop them before the worker.
//!
//! With `After=` a shutdown keeps the order, and what stops the store alone does not; `Requires=` makes
//! each stop of the store a stop of the worker as well, in order. A crash of the store does not stop a
//! worker that requires it, unless systemd restarts the store without `RestartMode=direct` (254): then it
//! restarts the worker too, and the store waits for the drain of a worker that waits for the store.

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
        let after = |name: &&&String| unit.after.contains(name);
        let required = |name: &&&String| after(name) && unit.requires.contains(name);
        if let Some(name) = units.iter().find(required) {
            findings.ok(CHECK, format!("it stops before {name}"));
        } else if let Some(name) = units.iter().find(after) {
            findings.note(
                CHECK,
                format!("a shutdown stops it before {name}; it does not require {name}"),
                "who stops or restarts the store alone does not wait for the drain",
                format!(
                    "from systemd 254 on, set Requires={name}, and RestartMode=direct in {name}"
                ),
            );
        } else {
            findings.warning(
                CHECK,
                format!(
                    "{store} is of this machine, and the unit is not ordered after {}",
                    units[0]
                ),
                "a shutdown may stop it before the drain has ended: what tasks have done is not \
                 recorded, and they run again",
                format!("set Wants={0} and After={0}", units[0]),
            );
        }
    }
}

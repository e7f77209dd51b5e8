//! The unit as systemd has loaded it: its limits, its signals, and what overrides it.

mod files;
mod order;
mod start;
mod stop;

use std::path::{Path, PathBuf};

use super::finding::Findings;
use super::one;
use crate::config::Config;
use crate::supervisor::unit::{ServiceUnit, UnitError, names, services};

/// What other checks want to know of the units.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// The smallest limit of open files.
    pub(super) open_files: Option<u64>,
    /// The state directory, where systemd makes it.
    pub(super) state_dir: Option<PathBuf>,
    /// The worker, where one runs.
    pub(super) main_pid: Option<u32>,
}

/// Looks at the units that match and read this configuration; at all that match if none does.
pub(super) async fn look(pattern: &str, config: &Config, path: &Path) -> (Vec<Findings>, Known) {
    let asked = tokio::join!(workers(pattern), names(&order::PATTERNS));
    let (units, stores) = match asked {
        (Ok(units), stores) if !units.is_empty() => (units, stores.unwrap_or_default()),
        (Ok(_), _) => {
            let none = nothing_known(
                format!("no unit {pattern} that runs a worker is loaded"),
                "name the unit with --unit, or start it",
            );
            return (one(none), Known::default());
        }
        (Err(error), _) => {
            let none = nothing_known(
                error.to_string(),
                "run it where systemd runs, with access to the system bus",
            );
            return (one(none), Known::default());
        }
    };
    let units = of_this_configuration(units, path);
    let known = Known {
        open_files: units.iter().filter_map(|unit| unit.open_files).min(),
        state_dir: units.iter().find_map(|unit| unit.state_directories.first()).map(state_dir),
        main_pid: units.iter().map(|unit| unit.main_pid).find(|pid| *pid != 0),
    };
    (units.iter().map(|unit| judge(unit, config, path, &stores)).collect(), known)
}

/// The configuration that the units name, if they name one.
pub(super) async fn configuration(pattern: &str) -> Option<PathBuf> {
    let units = workers(pattern).await.ok()?;
    let mut named: Vec<&str> = units.iter().filter_map(files::named_config).collect();
    named.dedup();
    match named[..] {
        [one] => Some(one.into()),
        _ => None,
    }
}

/// The workers among the units that match: one that migrates beside them follows other rules. A unit
/// that is named without a wildcard may start its worker in any way.
async fn workers(pattern: &str) -> Result<Vec<ServiceUnit>, UnitError> {
    let mut units = services(pattern).await?;
    if pattern.contains(['*', '?', '[']) {
        units.retain(|unit| unit.command.iter().any(|word| word == "run"));
    }
    Ok(units)
}

fn nothing_known(found: String, remedy: &str) -> Findings {
    let mut findings = Findings::about("systemd");
    findings.note("unit.reach", found, "the limits of the unit were not checked", remedy);
    findings
}

/// Of several instances each has a configuration of its own.
fn of_this_configuration(units: Vec<ServiceUnit>, path: &Path) -> Vec<ServiceUnit> {
    let reads_it = |unit: &ServiceUnit| {
        files::named_config(unit).is_some_and(|named| Path::new(named) == path)
    };
    if units.iter().any(reads_it) { units.into_iter().filter(reads_it).collect() } else { units }
}

/// systemd.exec(5): relative to /var/lib.
fn state_dir(name: &String) -> PathBuf {
    Path::new("/var/lib").join(name)
}

/// What the unit has wrong.
fn judge(unit: &ServiceUnit, config: &Config, path: &Path, stores: &[String]) -> Findings {
    let mut findings = Findings::about(&unit.name);
    stop::stop_timeout(&mut findings, unit, config);
    stop::signals(&mut findings, unit, config);
    start::restart(&mut findings, unit);
    start::watchdog(&mut findings, unit);
    stop::children(&mut findings, unit, config);
    order::order(&mut findings, unit, config, stores);
    files::credentials(&mut findings, unit, config);
    files::files(&mut findings, unit, path);
    findings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::finding::{Finding, Level};
    use super::files::LXC_DROP_IN;
    use super::stop::SIGTERM;
    use super::*;
    use crate::config::Environment;
    use crate::supervisor::unit::Span;

    const PATH: &str = "/etc/queue-worker/queue-worker.toml";

    fn config(more: &str) -> Config {
        let text = format!("[[queue]]\nname = \"q\"\n{more}");
        Config::parse(&text, Path::new(PATH), &Environment::default()).expect("a good file")
    }

    fn exec() -> Config {
        config("[handler.k]\ntype = \"exec\"\ncommand = [\"/bin/true\"]\n")
    }

    fn secs(count: u64) -> Span {
        Span::Of(Duration::from_secs(count))
    }

    /// As it should be.
    fn good() -> ServiceUnit {
        ServiceUnit {
            name: "queue-worker.service".to_owned(),
            active_state: "active".to_owned(),
            stop_timeout: Some(secs(45)),
            service_type: "notify".to_owned(),
            kill_mode: "mixed".to_owned(),
            kill_signal: SIGTERM,
            send_sigkill: true,
            restart: "always".to_owned(),
            restart_prevent: vec![78],
            watchdog: Some(secs(30)),
            start_limit_interval: Some(secs(0)),
            restart_delay: Some(secs(1)),
            oom_policy: "continue".to_owned(),
            command: ["queue-worker", "run", "--config", PATH].map(str::to_owned).to_vec(),
            file: "/etc/systemd/system/queue-worker.service".into(),
            ..ServiceUnit::default()
        }
    }

    #[test]
    fn a_good_unit_has_no_trouble() {
        let findings = judge(&good(), &exec(), Path::new(PATH), &[]);
        assert_eq!(findings.trouble(), []);
        assert!(findings.all.iter().all(|finding| finding.level == Level::Ok), "{findings:#?}");
    }

    type Wrong = (&'static str, Level, fn(&mut ServiceUnit));

    #[test]
    fn each_wrong_setting_is_found_and_nothing_else() {
        let wrong: [Wrong; 22] = [
            ("unit.stop_timeout", Level::Error, |unit| unit.stop_timeout = Some(secs(34))),
            ("unit.stop_timeout", Level::Ok, |unit| unit.stop_timeout = Some(secs(35))),
            ("unit.stop_timeout", Level::Ok, |unit| unit.stop_timeout = Some(Span::Endless)),
            ("unit.stop_timeout", Level::Note, |unit| unit.stop_timeout = None),
            ("unit.kill_mode", Level::Error, |unit| unit.kill_mode = "control-group".to_owned()),
            ("unit.kill_mode", Level::Error, |unit| unit.kill_mode = "process".to_owned()),
            ("unit.kill_mode", Level::Error, |unit| unit.kill_mode = "none".to_owned()),
            ("unit.kill_signal", Level::Error, |unit| unit.kill_signal = 1),
            ("unit.kill_signal", Level::Ok, |unit| unit.kill_signal = 2),
            ("unit.send_sigkill", Level::Warning, |unit| unit.send_sigkill = false),
            ("unit.restart", Level::Warning, |unit| unit.restart = "on-failure".to_owned()),
            ("unit.restart", Level::Error, |unit| unit.restart = "no".to_owned()),
            ("unit.restart_prevent", Level::Warning, |unit| unit.restart_prevent.clear()),
            ("unit.start_limit", Level::Warning, |unit| {
                unit.start_limit_interval = Some(secs(10));
                unit.start_limit_burst = 5;
            }),
            ("unit.type", Level::Warning, |unit| unit.service_type = "exec".to_owned()),
            ("unit.watchdog", Level::Note, |unit| unit.watchdog = Some(secs(0))),
            ("unit.watchdog", Level::Warning, |unit| unit.watchdog = Some(secs(2))),
            ("unit.oom_policy", Level::Warning, |unit| unit.oom_policy = "stop".to_owned()),
            ("unit.loaded", Level::Warning, |unit| unit.needs_reload = true),
            ("unit.overrides", Level::Note, |unit| unit.drop_ins = vec!["/x/10-own.conf".into()]),
            ("unit.config", Level::Warning, |unit| unit.command[3] = "/else.toml".to_owned()),
            ("unit.config", Level::Warning, |unit| {
                unit.command = vec!["queue-worker".to_owned(), "--config=/else.toml".to_owned()];
            }),
        ];
        for (check, level, change) in wrong {
            let mut unit = good();
            change(&mut unit);
            let findings = judge(&unit, &exec(), Path::new(PATH), &[]);
            assert_eq!(findings.level(check), Some(level), "{check}: {findings:#?}");
            let others = findings.trouble().into_iter().filter(|(other, _)| *other != check);
            assert_eq!(others.count(), 0, "{findings:#?}");
            let told = |finding: &Finding| {
                (finding.level == Level::Ok) == (finding.remedy.is_none() && finding.why.is_none())
            };
            assert!(findings.all.iter().all(told), "{findings:#?}");
        }
    }

    #[test]
    fn a_stop_timeout_that_promises_too_much_is_a_warning() {
        let config = config("[drain]\nstop_timeout = \"60s\"\n");
        let findings = judge(&good(), &config, Path::new(PATH), &[]);
        assert_eq!(findings.trouble(), [("unit.stop_timeout", Level::Warning)]);
    }

    #[test]
    fn without_programs_their_settings_matter_less() {
        let unit = ServiceUnit {
            kill_mode: "control-group".to_owned(),
            oom_policy: "stop".to_owned(),
            ..good()
        };
        assert_eq!(judge(&unit, &config(""), Path::new(PATH), &[]).trouble(), []);
    }

    #[test]
    fn a_container_that_erases_credentials_is_named() {
        let config = config("[redis]\npassword_file = \"redis\"\n");
        let with = |drop_in: Option<&str>, credential: Option<&str>| {
            let drop_ins =
                drop_in.map(|name| PathBuf::from("/run/systemd/system/service.d").join(name));
            let unit = ServiceUnit {
                drop_ins: drop_ins.into_iter().collect(),
                credentials: credential.map(str::to_owned).into_iter().collect(),
                ..good()
            };
            judge(&unit, &config, Path::new(PATH), &[])
        };
        let erased = with(Some(LXC_DROP_IN), None);
        assert_eq!(erased.trouble(), [("unit.credentials", Level::Error)]);
        let remedy = &erased.all.iter().find(|one| one.check == "unit.credentials").expect("found");
        assert!(remedy.remedy.as_ref().expect("a remedy").contains("zzzz-"), "{remedy:?}");
        assert_eq!(with(None, None).trouble(), [("unit.credentials", Level::Error)]);
        assert_eq!(with(None, Some("postgres")).trouble(), [("unit.credentials", Level::Error)]);
        let survives = with(Some(LXC_DROP_IN), Some("redis"));
        assert_eq!(survives.level("unit.credentials"), Some(Level::Note));
        assert_eq!(with(None, Some("redis")).level("unit.credentials"), Some(Level::Ok));
    }

    #[test]
    fn a_store_of_this_machine_has_to_stop_after_the_worker() {
        let local = config("");
        let far =
            "[redis]\nurl = \"redis://10.0.0.1\"\n[postgres]\nurl = \"postgres://me@10.0.0.1/x\"\n";
        let stores = ["redis-qw.service", "postgresql.service"].map(str::to_owned);
        let level = |unit: &ServiceUnit, config: &Config, stores: &[String]| {
            judge(unit, config, Path::new(PATH), stores).level("unit.order")
        };
        assert_eq!(level(&good(), &local, &stores), Some(Level::Warning));
        assert_eq!(level(&good(), &local, &stores[..1]), Some(Level::Warning));
        assert_eq!(level(&good(), &local, &[]), None);
        assert_eq!(level(&good(), &config(far), &stores), None);
        let after = ServiceUnit { after: stores.to_vec(), ..good() };
        assert_eq!(level(&after, &local, &stores), Some(Level::Note));
        let both = ServiceUnit { requires: stores.to_vec(), ..after };
        assert_eq!(level(&both, &local, &stores), Some(Level::Ok));
    }

    #[test]
    fn of_several_instances_the_one_with_this_configuration_is_looked_at() {
        let other = ServiceUnit { command: vec!["--config=/b.toml".to_owned()], ..good() };
        let all = || vec![other.clone(), good()];
        assert_eq!(of_this_configuration(all(), Path::new(PATH)), [good()]);
        assert_eq!(of_this_configuration(all(), Path::new("/c.toml")), all());
    }
}

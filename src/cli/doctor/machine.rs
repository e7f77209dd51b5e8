//! This machine: open files, the state directory, and what limits programs.

use std::path::Path;

use super::finding::Findings;
use super::unit::Known;
use super::{analyses_commits, one, postgres_sessions};
use crate::config::{Config, HandlerAction, WorkerSettings};
use crate::handler::exec::cgroup::{Controller, Unavailable, controllers_of};
use crate::supervisor::unenforced_limits;

/// Files that a worker has open besides connections and programs: logs, timers, signals, libraries.
const BASE_FILES: u64 = 64;

/// Pipes and handles of one program that runs.
const FILES_OF_A_PROGRAM: u64 = 8;

/// Connections of one queue, to Redis.
const FILES_OF_A_QUEUE: u64 = 4;

/// `unit` is what is known of the unit, where there is one.
pub(super) fn look(config: &Config, unit: &Known) -> Vec<Findings> {
    let mut findings = Findings::about("machine");
    let own = || rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let (limit, whose) = match unit.open_files {
        Some(limit) => (Some(limit), "LimitNOFILE of the unit"),
        None => (own(), "the limit of this shell"),
    };
    files(&mut findings, needed_files(config), limit, whose);
    // systemd tells the worker, and only the worker, where the default is.
    let folder = match &unit.state_dir {
        Some(folder) if config.worker.state_dir == WorkerSettings::new().state_dir => folder,
        _ => &config.worker.state_dir,
    };
    state_dir(&mut findings, folder);
    programs(&mut findings, config);
    // Of a shell nothing follows for the worker.
    if runs_programs(config)
        && let Some(worker) = unit.main_pid
    {
        cgroups(&mut findings, config, controllers_of(Some(worker)).as_deref());
    }
    one(findings)
}

fn runs_programs(config: &Config) -> bool {
    config.handlers.values().any(|handler| matches!(handler.action, HandlerAction::Exec(_)))
}

fn needed_files(config: &Config) -> u64 {
    let runs_programs = runs_programs(config) || analyses_commits(config);
    let running: usize = config.queues.iter().map(|queue| queue.concurrency).sum();
    let running = u64::try_from(running).unwrap_or(u64::MAX);
    // A connection each where no programs run: http.
    let each = if runs_programs { FILES_OF_A_PROGRAM } else { 1 };
    let queues = config.queues.len() as u64 * FILES_OF_A_QUEUE;
    let postgres = u64::from(postgres_sessions(config));
    let nodes = config.lease.nodes.len() as u64 * 2;
    BASE_FILES + running.saturating_mul(each) + queues + postgres + nodes
}

fn files(findings: &mut Findings, needed: u64, limit: Option<u64>, whose: &str) {
    const CHECK: &str = "machine.open_files";
    match limit {
        Some(limit) if limit < needed => findings.error(
            CHECK,
            format!("{whose} is {limit}, and up to {needed} may be open"),
            "connections and programs fail under load, with \"too many open files\"",
            format!("set LimitNOFILE={} in the unit, or lower concurrency", needed * 2),
        ),
        Some(limit) => {
            findings.ok(CHECK, format!("{whose} is {limit}, up to {needed} may be open"));
        }
        None => findings.ok(CHECK, format!("{whose} is infinite")),
    }
}

fn state_dir(findings: &mut Findings, folder: &Path) {
    const CHECK: &str = "machine.state_dir";
    // Made and gone again: permissions alone do not tell of a read-only mount.
    match tempfile::tempfile_in(folder) {
        Ok(_) => findings.ok(CHECK, format!("{} can be written", folder.display())),
        Err(error) => findings.warning(
            CHECK,
            format!("{} cannot be written: {error}", folder.display()),
            "a worker that was killed in a stop is not told of at the next start",
            "set StateDirectory= in the unit, or worker.state_dir; run this as the unit's user",
        ),
    }
}

fn programs(findings: &mut Findings, config: &Config) {
    for absent in config.absent_programs() {
        findings.warning(
            "machine.programs",
            absent.to_string(),
            "the tasks of this kind fail",
            "install it, or correct the path; run this as the unit's user",
        );
    }
}

fn cgroups(
    findings: &mut Findings,
    config: &Config,
    available: Result<&[Controller], &Unavailable>,
) {
    const CHECK: &str = "machine.cgroups";
    for limit in unenforced_limits(config, available) {
        findings.warning(
            CHECK,
            format!("{} is not enforced: {}", limit.key, limit.reason),
            "a program that takes too much takes it from the worker and its other tasks",
            limit.remedy,
        );
    }
    match available {
        Ok(_) => findings.ok(CHECK, "each program has a cgroup of its own"),
        Err(reason) => findings.note(
            CHECK,
            format!("programs have no cgroups of their own: {reason}"),
            "what a program starts is found by a search through /proc, and has no limits",
            reason.remedy(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;
    use crate::config::Environment;

    #[test]
    fn a_limit_that_load_will_meet_is_an_error() {
        let text = "[[queue]]\nname = \"q\"\nconcurrency = 200\n\
                    [handler.k]\ntype = \"exec\"\ncommand = [\"/bin/true\"]\n";
        let config = Config::parse(text, Path::new("f"), &Environment::default()).expect("good");
        let needed = needed_files(&config);
        assert!((1_600..2_000).contains(&needed), "{needed}");
        let level = |limit| {
            let mut findings = Findings::about("machine");
            files(&mut findings, needed, limit, "it");
            findings.level("machine.open_files")
        };
        assert_eq!(level(Some(1_024)), Some(Level::Error));
        assert_eq!((level(Some(needed)), level(None)), (Some(Level::Ok), Some(Level::Ok)));
    }

    #[test]
    fn a_limit_that_nothing_enforces_is_found() {
        let levels = |limit: &str, available: Result<Vec<Controller>, Unavailable>| {
            let text = format!(
                "[[queue]]\nname = \"q\"\n[handler.k]\ntype = \"exec\"\n\
                 command = [\"/bin/true\"]\n{limit}"
            );
            let config = Config::parse(&text, Path::new("f"), &Environment::default());
            let mut findings = Findings::about("machine");
            cgroups(&mut findings, &config.expect("good"), available.as_deref());
            findings.all.iter().map(|finding| finding.level).collect::<Vec<_>>()
        };
        let missing = || Err(Unavailable::NotDelegated("/sys/fs/cgroup/x".into()));
        assert_eq!(levels("", Ok(vec![])), [Level::Ok]);
        assert_eq!(levels("", missing()), [Level::Note]);
        assert_eq!(levels("pids_max = 50", missing()), [Level::Warning, Level::Note]);
        assert_eq!(levels("pids_max = 50", Ok(vec![])), [Level::Warning, Level::Ok]);
        assert_eq!(levels("pids_max = 50", Ok(vec![Controller::Pids])), [Level::Ok]);
    }

    #[test]
    fn a_state_directory_that_cannot_be_written_is_found() {
        let level = |folder: &Path| {
            let mut findings = Findings::about("machine");
            state_dir(&mut findings, folder);
            findings.level("machine.state_dir")
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(level(folder.path()), Some(Level::Ok));
        assert_eq!(level(&folder.path().join("none")), Some(Level::Warning));
        // Not even root may write there.
        assert_eq!(level(Path::new("/proc/self")), Some(Level::Warning));
    }
}

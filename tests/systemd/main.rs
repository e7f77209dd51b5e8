//! The worker's unit under a real systemd: `make test-systemd`, as root.
//!
//! One line per case: pass, FAIL or SKIP, seconds, and a figure where it tells something. Without
//! `--run` nothing is done, so that a run of all tests needs neither root nor a machine to boot.

#[path = "../common/mod.rs"]
mod common;

mod command;
mod crash;
mod deploy;
mod drain;
mod exec;
mod guest;
mod observe;
mod secrets;
mod service;
mod start;
mod unit;

use std::process::ExitCode;
use std::rc::Rc;

use common::{Asked, Case, Ground, Tally, asked, case, skip_all};
use guest::Guest;

const CASES: &[Case<Machine>] = &[
    case!("start", 60, start::says_ready),
    case!("start-sql-only", 60, start::sql_only),
    case!("start-other-distribution", 60, start::other_distribution),
    case!("start-without-redis", 60, start::without_redis),
    case!("start-migrates", 60, start::migrates),
    case!("stop-right-after-start", 60, start::stopped_at_once),
    case!("broken-configuration", 60, start::broken_configuration),
    case!("drain", 60, drain::in_the_middle),
    case!("drain-gives-back", 60, drain::gives_back),
    case!("drain-cut-off", 60, drain::cut_off),
    case!("drain-shortened", 60, drain::shortened),
    case!("drain-extended", 60, drain::extended),
    case!("local-servers", 60, drain::local_servers),
    case!("power-off", 60, drain::power_off),
    case!("restart-new-binary", 60, deploy::restart),
    case!("background-drain", 60, deploy::background),
    case!("reload", 60, deploy::reload),
    case!("switch", 120, deploy::switch),
    case!("watchdog", 60, crash::watchdog),
    case!("killed", 60, crash::killed),
    case!("exec-children", 60, exec::children),
    case!("exec-cgroups", 60, exec::cgroups),
    case!("journal-fields", 60, observe::journal),
    case!("security", 60, observe::security),
    case!("doctor", 60, observe::doctor),
    case!("credentials-in-lxc", 60, secrets::in_lxc),
    case!("command-line", 60, command::on_nixos),
    case!("command-line-other-distribution", 60, command::on_another_distribution),
];

/// What the cases share: one booted machine.
pub(crate) struct Machine {
    guest: Rc<Guest>,
}

impl Ground for Machine {
    fn explain(&self, _: &str) -> String {
        let journal = [
            "journalctl",
            "--no-pager",
            "--output=short-monotonic",
            "--lines=80",
            "--unit=queue-worker*",
        ];
        let log = self.guest.run_blocking(&journal);
        // Keys of the units that an older systemd does not know.
        let lines = log.lines().filter(|line| !line.contains("Unknown key"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn main() -> ExitCode {
    let Asked::Run(names) = asked() else { return ExitCode::SUCCESS };
    if let Some(reason) = guest::obstacle() {
        return skip_all("the unit under a real systemd", &reason);
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("start a runtime").block_on(async {
        let machine = Rc::new(Machine { guest: Rc::new(Guest::boot("cases").await) });
        let mut tally = Tally::default();
        tally.run(CASES, &names, &machine).await;
        tally.end()
    })
}

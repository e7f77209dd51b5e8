//! How the unit is started again, and watched.

use std::time::Duration;

use super::super::finding::Findings;
use crate::config::format_duration as show;
use crate::supervisor::unit::{ServiceUnit, Span};

/// sysexits.h: EX_CONFIG, the exit code of a broken configuration.
const BROKEN_CONFIGURATION: i32 = 78;

/// A watchdog that is shorter than this may bite on a machine that is only busy.
const SHORT_WATCHDOG: Duration = Duration::from_secs(5);

pub(super) fn restart(findings: &mut Findings, unit: &ServiceUnit) {
    const RESTART: &str = "unit.restart";
    const PREVENT: &str = "unit.restart_prevent";
    const LIMIT: &str = "unit.start_limit";
    let found = format!("Restart is {}", unit.restart);
    match unit.restart.as_str() {
        "always" => findings.ok(RESTART, found),
        "no" => findings.error(
            RESTART,
            found,
            "after a crash, or a drain in the background, nobody works here until somebody looks",
            "set Restart=always",
        ),
        _ => findings.warning(
            RESTART,
            found,
            "a worker that has drained in the background exits with 0 and is not started again",
            "set Restart=always",
        ),
    }
    if unit.restart_prevent.contains(&BROKEN_CONFIGURATION) {
        findings.ok(PREVENT, "a broken configuration (78) is not started again");
    } else {
        findings.warning(
            PREVENT,
            "RestartPreventExitStatus lacks 78",
            "a worker whose configuration is broken is started over and over, up to the start limit",
            "set RestartPreventExitStatus=78",
        );
    }
    let (Some(Span::Of(interval)), Some(Span::Of(delay))) =
        (unit.start_limit_interval, unit.restart_delay)
    else {
        return findings.ok(LIMIT, "failed starts are tried again for ever");
    };
    if interval.is_zero() || delay * unit.start_limit_burst >= interval {
        findings.ok(LIMIT, "failed starts are tried again for ever");
    } else {
        findings.warning(
            LIMIT,
            format!(
                "RestartSec is {}, and {} starts within {} are the limit",
                show(delay),
                unit.start_limit_burst,
                show(interval)
            ),
            "a worker that fails a few times in a row stays dead until somebody looks",
            "set StartLimitIntervalSec=0 and RestartSec=1s, or let RestartSec grow",
        );
    }
}

pub(super) fn watchdog(findings: &mut Findings, unit: &ServiceUnit) {
    const TYPE: &str = "unit.type";
    const WATCHDOG: &str = "unit.watchdog";
    if unit.service_type.starts_with("notify") {
        findings.ok(TYPE, format!("Type is {}", unit.service_type));
    } else {
        findings.warning(
            TYPE,
            format!("Type is {}", unit.service_type),
            "systemd neither knows when the worker has started nor shows what it does",
            "set Type=notify",
        );
    }
    match unit.watchdog {
        Some(Span::Of(limit)) if limit >= SHORT_WATCHDOG => {
            findings.ok(WATCHDOG, format!("WatchdogSec is {}", show(limit)));
        }
        Some(Span::Of(limit)) if !limit.is_zero() => findings.warning(
            WATCHDOG,
            format!("WatchdogSec is {}", show(limit)),
            "a machine that is only busy looks like one that hangs, and the worker is killed",
            "set WatchdogSec=30s",
        ),
        _ => findings.note(
            WATCHDOG,
            "there is no WatchdogSec",
            "a worker that hangs is not restarted",
            "set WatchdogSec=30s",
        ),
    }
}

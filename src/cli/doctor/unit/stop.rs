//! How the unit is stopped, and what becomes of the programs of tasks.

use super::super::finding::Findings;
use crate::config::{Config, HandlerAction, HandlerSettings, format_duration as show};
use crate::supervisor::unit::{ServiceUnit, Span};

/// signal(7)
const SIGINT: i32 = 2;
/// signal(7)
pub(super) const SIGTERM: i32 = 15;

pub(super) fn stop_timeout(findings: &mut Findings, unit: &ServiceUnit, config: &Config) {
    const CHECK: &str = "unit.stop_timeout";
    let drain = &config.drain;
    let needed = drain.timeout + drain.kill_after + drain.margin;
    let limit = match unit.stop_timeout {
        Some(Span::Of(limit)) => limit,
        Some(Span::Endless) => {
            return findings.ok(CHECK, "TimeoutStopSec is infinity, every drain fits");
        }
        None => {
            return findings.note(
                CHECK,
                "systemd did not tell TimeoutStopSec",
                "a drain that does not fit is cut off",
                "set drain.stop_timeout to what the unit says",
            );
        }
    };
    let (limit_text, needed_text) = (show(limit), show(needed));
    if needed > limit {
        findings.error(
            CHECK,
            format!("TimeoutStopSec is {limit_text}, and a drain may take {needed_text}"),
            "the worker shortens its drain, so tasks are interrupted earlier than configured; a \
             process that is not gone in time is killed, and its tasks count as crashed",
            format!("set TimeoutStopSec={needed_text}, or lower drain.timeout"),
        );
    } else if let Some(said) = drain.stop_timeout.filter(|said| *said > limit) {
        findings.warning(
            CHECK,
            format!("TimeoutStopSec is {limit_text}, and drain.stop_timeout says {}", show(said)),
            "the next change of the drain is checked against a limit that does not exist",
            format!("set drain.stop_timeout = \"{limit_text}\""),
        );
    } else {
        findings
            .ok(CHECK, format!("TimeoutStopSec is {limit_text}, a drain may take {needed_text}"));
    }
}

pub(super) fn signals(findings: &mut Findings, unit: &ServiceUnit, config: &Config) {
    const MODE: &str = "unit.kill_mode";
    const SIGNAL: &str = "unit.kill_signal";
    const KILL: &str = "unit.send_sigkill";
    let mode = format!("KillMode is {}", unit.kill_mode);
    match unit.kill_mode.as_str() {
        "mixed" => findings.ok(MODE, mode),
        "control-group" if runs_programs(config) => findings.error(
            MODE,
            mode,
            "a stop sends SIGTERM to the programs of tasks as well: they die at once and the drain \
             has nothing to wait for",
            "set KillMode=mixed",
        ),
        "control-group" => findings.note(
            MODE,
            mode,
            "with exec handlers a stop would end the programs of tasks at once",
            "set KillMode=mixed",
        ),
        _ => findings.error(
            MODE,
            mode,
            "processes of tasks that are left over run on after a stop, and again beside the next \
             attempt",
            "set KillMode=mixed",
        ),
    }
    match unit.kill_signal {
        SIGTERM | SIGINT => findings.ok(SIGNAL, format!("KillSignal is {}", unit.kill_signal)),
        other => findings.error(
            SIGNAL,
            format!("KillSignal is {other}"),
            "the worker drains on SIGTERM and SIGINT only; anything else kills it or is ignored",
            "set KillSignal=SIGTERM",
        ),
    }
    if unit.send_sigkill {
        findings.ok(KILL, "SendSIGKILL is yes");
    } else {
        findings.warning(
            KILL,
            "SendSIGKILL is no",
            "a process that hangs is never ended, and a stop or a shutdown with it",
            "set SendSIGKILL=yes",
        );
    }
}

pub(super) fn children(findings: &mut Findings, unit: &ServiceUnit, config: &Config) {
    const CHECK: &str = "unit.oom_policy";
    if unit.oom_policy == "continue" || !runs_programs(config) {
        findings.ok(CHECK, format!("OOMPolicy is {}", unit.oom_policy));
    } else {
        findings.warning(
            CHECK,
            format!("OOMPolicy is {}", unit.oom_policy),
            "when the program of one task is killed for its memory, systemd stops the whole worker",
            "set OOMPolicy=continue",
        );
    }
}

fn runs_programs(config: &Config) -> bool {
    let runs = |handler: &HandlerSettings| {
        matches!(handler.action, HandlerAction::Exec(_) | HandlerAction::Git(_))
    };
    config.handlers.values().any(runs)
}

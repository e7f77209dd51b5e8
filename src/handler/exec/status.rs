//! What an exit status means for the task.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::cgroup::{Evidence, Limits, readable_bytes};
use crate::domain::{Failure, FailureClass};

/// EX_DATAERR of sysexits.h: the input is wrong, and will be wrong again.
const FOR_GOOD: i32 = 65;

/// The failure that an exit status other than 0 stands for.
pub(super) fn failure(program: &str, status: ExitStatus) -> Failure {
    let name = name(status);
    let message = match status.signal() {
        Some(_) => format!("`{program}` was killed by {name}"),
        None => format!("`{program}` ended with {name}"),
    };
    let failure = if status.code() == Some(FOR_GOOD) {
        Failure::for_good(message)
    } else {
        Failure::retry(message)
    };
    failure.with_status(name)
}

/// The failure with what the limits of its cgroup had to do with it.
///
/// A program that the kernel killed for want of memory is worth another attempt, whatever its exit
/// status says: the next may meet a smaller input or an emptier machine.
pub(super) fn explain(
    mut failure: Failure,
    evidence: &Evidence,
    limits: &Limits,
    kind: &str,
) -> Failure {
    if evidence.refused_forks > 0 {
        let limit = match limits.pids_max {
            Some(max) => format!("pids_max {max} of [handler.{kind}], or a limit around it,"),
            None => "the unit's TasksMax or the machine's limit".to_owned(),
        };
        let _ = write!(failure.message, "; reached {limit} {} times", evidence.refused_forks);
    }
    if evidence.oom_kills == 0 {
        return failure;
    }
    let reason = match limits.memory_max.filter(|_| evidence.own_limit > 0) {
        Some(bytes) => {
            format!("reached memory_max {} of [handler.{kind}]", readable_bytes(bytes))
        }
        None => "the unit or the machine had no memory left".to_owned(),
    };
    failure.message = format!("out of memory: {reason}; {}", failure.message);
    failure.class = FailureClass::Retry { after: None };
    failure.with_status("oom")
}

/// `exit 75` or `signal SIGKILL`.
pub(in crate::handler) fn name(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {}", signal_name(signal)),
        (None, None) => "an unknown status".to_owned(),
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGVTALRM => "SIGVTALRM",
        libc::SIGPROF => "SIGPROF",
        libc::SIGIO => "SIGIO",
        libc::SIGPWR => "SIGPWR",
        libc::SIGSYS => "SIGSYS",
        other => return other.to_string(),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::FailureClass;

    #[test]
    fn exit_statuses_decide_on_another_attempt() {
        let of = |raw| failure("job", ExitStatus::from_raw(raw));
        assert_eq!(of(65 << 8).class, FailureClass::ForGood);
        for code in [1, 75, 126, 127, 255] {
            let failure = of(code << 8);
            assert_eq!(failure.class, FailureClass::Retry { after: None });
            assert_eq!(failure.status, Some(format!("exit {code}")));
        }
    }

    const LIMITS: Limits =
        Limits { memory_max: Some(512 << 20), pids_max: Some(64), cpu_weight: None };

    fn explained(raw: i32, evidence: Evidence) -> Failure {
        let failure = failure("job", ExitStatus::from_raw(raw));
        explain(failure, &evidence, &LIMITS, "resize")
    }

    #[test]
    fn want_of_memory_is_told_with_the_limit_that_was_reached() {
        let evidence = Evidence { oom_kills: 2, own_limit: 1, refused_forks: 0 };
        // Killed itself, or the parent of what was killed.
        for raw in [libc::SIGKILL, 137 << 8, 65 << 8] {
            let failure = explained(raw, evidence);
            assert_eq!(failure.status.as_deref(), Some("oom"));
            assert_eq!(failure.class, FailureClass::Retry { after: None });
            let expected = "out of memory: reached memory_max 512 MiB of [handler.resize]; `job` ";
            assert!(failure.message.starts_with(expected), "{}", failure.message);
        }
        let failure = explained(libc::SIGKILL, Evidence { own_limit: 0, ..evidence });
        assert!(failure.message.contains("the unit or the machine"), "{}", failure.message);
    }

    #[test]
    fn refused_forks_are_evidence_and_no_verdict() {
        let failure = explained(65 << 8, Evidence { refused_forks: 3, ..Evidence::default() });
        assert_eq!(failure.class, FailureClass::ForGood);
        assert_eq!(failure.status.as_deref(), Some("exit 65"));
        let expected = "`job` ended with exit 65; reached pids_max 64 of [handler.resize], or a \
                        limit around it, 3 times";
        assert_eq!(failure.message, expected);
        let plain = explained(1 << 8, Evidence::default());
        assert_eq!(plain.message, "`job` ended with exit 1");
    }

    #[test]
    fn refused_forks_without_a_limit_of_its_own_are_the_units_or_the_machines() {
        let evidence = Evidence { refused_forks: 3, ..Evidence::default() };
        let none = Limits { pids_max: None, ..LIMITS };
        let failure = failure("job", ExitStatus::from_raw(1 << 8));
        let failure = explain(failure, &evidence, &none, "resize");
        let expected = "`job` ended with exit 1; reached the unit's TasksMax or the machine's limit \
                        3 times";
        assert_eq!(failure.message, expected);
    }

    #[test]
    fn signals_are_named() {
        let failure = failure("job", ExitStatus::from_raw(libc::SIGKILL));
        assert_eq!(failure.status.as_deref(), Some("signal SIGKILL"));
        assert_eq!(failure.message, "`job` was killed by signal SIGKILL");
        assert_eq!(name(ExitStatus::from_raw(40)), "signal 40");
    }
}

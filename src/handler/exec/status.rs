//! What an exit status means for the task.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::domain::Failure;

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

/// `exit 75` or `signal SIGKILL`.
pub(super) fn name(status: ExitStatus) -> String {
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

    #[test]
    fn signals_are_named() {
        let failure = failure("job", ExitStatus::from_raw(libc::SIGKILL));
        assert_eq!(failure.status.as_deref(), Some("signal SIGKILL"));
        assert_eq!(failure.message, "`job` was killed by signal SIGKILL");
        assert_eq!(name(ExitStatus::from_raw(40)), "signal 40");
    }
}

//! What systemd is told: READY, STATUS, STOPPING, RELOADING, WATCHDOG and EXTEND_TIMEOUT_USEC, over
//! `$NOTIFY_SOCKET`.
//!
//! Without a socket everything here does nothing. STOPPING is sent only for a stop that systemd
//! asked for: sent outside a stop job it arms TimeoutStopSec and ends in a SIGKILL. See sd_notify(3).

use std::time::Duration;

use sd_notify::NotifyState;

use crate::telemetry::escaped;

/// The side of a service that talks to systemd.
#[derive(Debug)]
pub(super) struct Notifier {
    status: String,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Looks for what systemd has told this process.
    pub(super) fn new() -> Self {
        // As sd_watchdog_enabled(3): none if it is another process's (WATCHDOG_PID), or zero.
        let watchdog = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero());
        Self { status: String::new(), watchdog }
    }

    /// Whether anybody listens.
    pub(super) fn is_heard() -> bool {
        std::env::var_os("NOTIFY_SOCKET").is_some()
    }

    /// Whether systemd has started this process: it wants to be told of it, or names its pid
    /// (systemd.exec(5), `$SYSTEMD_EXEC_PID`). Either may be inherited by somebody else, so this is
    /// no proof.
    pub(super) fn is_of_a_unit() -> bool {
        let pid = std::env::var("SYSTEMD_EXEC_PID").ok().and_then(|pid| pid.parse().ok());
        pid == Some(std::process::id()) || Self::is_heard()
    }

    /// The service has started.
    pub(super) fn ready() {
        send(&[NotifyState::Ready]);
    }

    /// The service stops, since systemd asked for it.
    pub(super) fn stopping() {
        send(&[NotifyState::Stopping]);
    }

    /// The service needs this long from now. systemd never shortens its limit for it.
    pub(super) fn extend(limit: Duration) -> bool {
        // The crate's own message ends at 71 minutes.
        send(&[NotifyState::Custom(&format!("EXTEND_TIMEOUT_USEC={}", limit.as_micros()))])
    }

    /// The service reads its configuration again; [`Notifier::ready`] ends it. systemd wants the
    /// time in the same datagram (systemd.service(5), `notify-reload`).
    pub(super) fn reloading() {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => {
                send(&[NotifyState::Reloading, now]);
            }
            Err(error) => tracing::debug!("no monotonic clock for the reload: {error}"),
        }
    }

    /// One line for `systemctl status`; sent only when it has changed.
    pub(super) fn status(&mut self, status: &str) {
        let status = one_line(status);
        if status != self.status {
            send(&[NotifyState::Status(&status)]);
            self.status = status;
        }
    }

    /// The service is well.
    pub(super) fn watchdog(&self) {
        if self.watchdog.is_some() {
            send(&[NotifyState::Watchdog]);
        }
    }

    /// How often the watchdog wants to hear, if there is one: half of its limit.
    pub(super) fn watchdog_interval(&self) -> Option<Duration> {
        const LEAST: Duration = Duration::from_millis(1);
        self.watchdog.map(|limit| (limit / 2).max(LEAST))
    }
}

/// A message is a list of assignments, one a line: what a store said must not add one.
fn one_line(status: &str) -> String {
    escaped(status)
}

/// Whether it was sent.
fn send(state: &[NotifyState<'_>]) -> bool {
    sd_notify::notify(state)
        .inspect_err(|error| tracing::debug!("systemd was not told: {error}"))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_says_adds_no_assignment() {
        let status = one_line("waiting for postgres: no\nWATCHDOG=trigger\r\nMAINPID=1");
        let message = NotifyState::Status(&status).to_string();
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.starts_with("STATUS=waiting for postgres: no\\nWATCHDOG="), "{message}");
    }
}

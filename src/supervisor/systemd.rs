//! What systemd is told: READY, STATUS, STOPPING, RELOADING, WATCHDOG, over `$NOTIFY_SOCKET`.
//!
//! Without a socket everything here does nothing. STOPPING is sent only for a stop that systemd
//! asked for: sent outside a stop job it arms TimeoutStopSec and ends in a SIGKILL. See sd_notify(3).

use std::time::Duration;

use sd_notify::NotifyState;

/// The side of a service that talks to systemd.
#[derive(Debug, Default)]
pub(super) struct Notifier {
    status: String,
}

impl Notifier {
    /// The service has started.
    pub(super) fn ready() {
        send(&[NotifyState::Ready]);
    }

    /// The service stops, since systemd asked for it.
    pub(super) fn stopping() {
        send(&[NotifyState::Stopping]);
    }

    /// The service reads its configuration again; [`Notifier::ready`] ends it. systemd wants the
    /// time in the same datagram (systemd.service(5), `notify-reload`).
    pub(super) fn reloading() {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => send(&[NotifyState::Reloading, now]),
            Err(error) => tracing::debug!("no monotonic clock for the reload: {error}"),
        }
    }

    /// One line for `systemctl status`; sent only when it has changed.
    pub(super) fn status(&mut self, status: String) {
        if status != self.status {
            send(&[NotifyState::Status(&status)]);
            self.status = status;
        }
    }

    /// The service is well.
    pub(super) fn watchdog() {
        send(&[NotifyState::Watchdog]);
    }

    /// How often the watchdog wants to hear, if there is one: half of its limit.
    pub(super) fn watchdog_interval() -> Option<Duration> {
        sd_notify::watchdog_enabled().map(|limit| limit / 2)
    }
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!("systemd was not told: {error}");
    }
}

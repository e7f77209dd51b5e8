//! OS signals as plain values.

use futures_util::StreamExt;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR2};
use signal_hook_tokio::Signals;

use crate::protocol::drain::Event;

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// A step of the drain's state machine.
    Drain(Event),
    /// SIGHUP: read the configuration again.
    Reload,
}

/// The stream of requests.
pub(super) struct Requests(Signals);

impl Requests {
    /// Takes over the signals of this process.
    pub(super) fn listen() -> std::io::Result<Self> {
        Signals::new([SIGTERM, SIGINT, SIGTSTP, SIGCONT, SIGHUP, SIGUSR2]).map(Self)
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Request {
        loop {
            let Some(signal) = self.0.next().await else { return std::future::pending().await };
            match signal {
                SIGTERM | SIGINT => return Request::Drain(Event::Terminate),
                SIGTSTP => return Request::Drain(Event::Quiet),
                SIGCONT => return Request::Drain(Event::Continue),
                SIGUSR2 => return Request::Drain(Event::DrainInBackground),
                SIGHUP => return Request::Reload,
                _ => {}
            }
        }
    }
}

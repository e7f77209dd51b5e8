//! Until when this process may start an effect.
//!
//! The Postgres lease counts from the moment the database applied the claim or the renewal. This
//! side only knows when it *sent* it, which is earlier, so a deadline counted from the sending is
//! never too late. The clock includes suspend: a worker that slept wakes up past its deadline.

use std::time::Duration;

use crate::clock::BootInstant;

/// The local deadline of one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseClock {
    lease: Duration,
    confirmed: BootInstant,
}

impl LeaseClock {
    /// A claim that was sent at `sent` and has been confirmed.
    pub const fn new(lease: Duration, sent: BootInstant) -> Self {
        Self { lease, confirmed: sent }
    }

    /// A renewal that was sent at `sent` has been confirmed. An older one changes nothing.
    pub fn confirm(&mut self, sent: BootInstant) {
        self.confirmed = self.confirmed.max(sent);
    }

    /// From here on the lease may be another's.
    pub fn deadline(&self) -> BootInstant {
        self.confirmed + self.lease
    }

    /// Whether an effect may start at `now`.
    pub fn may_start(&self, now: BootInstant) -> bool {
        now < self.deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_millis(ms))
    }

    #[test]
    fn counts_from_the_sending_of_the_last_confirmed_renewal() {
        let mut clock = LeaseClock::new(Duration::from_secs(5), at(1_000));
        assert!(clock.may_start(at(5_999)));
        assert!(!clock.may_start(at(6_000)));
        clock.confirm(at(2_500));
        assert!(clock.may_start(at(7_499)));
        assert!(!clock.may_start(at(7_500)));
    }

    #[test]
    fn a_late_confirmation_of_an_early_renewal_does_not_turn_the_clock_back() {
        let mut clock = LeaseClock::new(Duration::from_secs(5), at(3_000));
        clock.confirm(at(1_500));
        assert_eq!(clock.deadline(), at(8_000));
    }
}

//! The clock of this process: CLOCK_BOOTTIME, which keeps counting while the machine is suspended.
//!
//! Every lease deadline is measured on it. `std::time::Instant` stops during suspend, so a worker
//! that slept would believe in a lease that ended long ago. Wall-clock time is only for humans and
//! for `not_before`, and comes from [`Clock::wall_ms`].

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on the clock, as time since boot. Not comparable between machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// The point that lies `since_boot` after the boot.
    pub const fn from_boot(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// How much later `self` is than `earlier`; zero when it is not later.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(rhs))
    }
}

impl Sub<Duration> for BootInstant {
    type Output = Self;

    /// Not before the boot.
    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(rhs))
    }
}

/// The source of time, passed down so that a simulation can use its own.
#[derive(Debug, Clone, Copy)]
pub enum Clock {
    /// The machine's CLOCK_BOOTTIME and CLOCK_REALTIME.
    System,
    /// The tokio runtime's clock, which tests may pause; the origin is both boot and epoch.
    Tokio(tokio::time::Instant),
}

impl Clock {
    /// Now, on the monotonic clock that includes suspend.
    pub fn now(self) -> BootInstant {
        match self {
            Self::System => {
                let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                BootInstant(Duration::new(
                    u64::try_from(t.tv_sec).unwrap_or(0),
                    u32::try_from(t.tv_nsec).unwrap_or(0),
                ))
            }
            Self::Tokio(origin) => {
                BootInstant(tokio::time::Instant::now().saturating_duration_since(origin))
            }
        }
    }

    /// Milliseconds since the Unix epoch, for `not_before_ms` and for humans.
    pub fn wall_ms(self) -> i64 {
        match self {
            Self::System => {
                let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
                t.tv_sec.saturating_mul(1000).saturating_add(t.tv_nsec / 1_000_000)
            }
            Self::Tokio(_) => i64::try_from(self.now().0.as_millis()).unwrap_or(i64::MAX),
        }
    }
}

//! One line when a store goes and one when it comes back, however often it was tried between.
//!
//! [`Outage`] is the pure state machine; [`Health`] gives it the clock and logs what it says. What
//! is tried, and how often, is the caller's business.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::escape::cut;
use super::fields;
use crate::clock::{BootInstant, Clock};

/// How often a lasting outage is told again, and only if the error has changed since.
const REMINDER: Duration = Duration::from_secs(60);

/// The longest error that a line shows, in bytes: peers may say anything.
const MAX_ERROR_BYTES: usize = 500;

/// Whether something is reachable, and what there is to say about it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Outage {
    /// It answers, or nobody has asked yet.
    #[default]
    None,
    /// It does not.
    Since {
        /// When the first attempt failed.
        start: BootInstant,
        /// Attempts that have failed.
        attempts: u64,
        /// The error that was told last.
        told: String,
        /// When it was told.
        told_at: BootInstant,
    },
}

impl Outage {
    /// An attempt failed at `now`. Returns the line to log: for the first failure, and when the
    /// error has become another one, at most once a minute.
    pub fn down(&mut self, name: &str, error: &dyn Display, now: BootInstant) -> Option<String> {
        let error = cut(&error.to_string(), MAX_ERROR_BYTES).to_owned();
        match self {
            Self::None => {
                let line = format!("{name}: unavailable: {error}");
                *self = Self::Since { start: now, attempts: 1, told: error, told_at: now };
                Some(line)
            }
            Self::Since { start, attempts, told, told_at } => {
                *attempts = attempts.saturating_add(1);
                if *told == error || now.saturating_since(*told_at) < REMINDER {
                    return None;
                }
                let lasted = seconds(now.saturating_since(*start));
                let line = format!("{name}: still unavailable after {lasted}: {error}");
                (*told, *told_at) = (error, now);
                Some(line)
            }
        }
    }

    /// An attempt succeeded at `now`. Returns the line to log if there was an outage.
    pub fn up(&mut self, name: &str, now: BootInstant) -> Option<String> {
        match std::mem::take(self) {
            Self::None => None,
            Self::Since { start, attempts, .. } => {
                let lasted = seconds(now.saturating_since(start));
                let noun = if attempts == 1 { "attempt" } else { "attempts" };
                Some(format!("{name}: back after {lasted}, {attempts} {noun}"))
            }
        }
    }

    /// Whether there is an outage.
    pub fn is_down(&self) -> bool {
        matches!(self, Self::Since { .. })
    }
}

/// `0.4 s` below ten seconds, `12 s` above.
fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(10) {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} s", duration.as_secs())
    }
}

/// The health of one store or peer, shared by everybody who talks to it.
#[derive(Debug)]
pub struct Health {
    name: &'static str,
    clock: Clock,
    outage: Mutex<Outage>,
}

impl Health {
    /// Healthy until told otherwise; `name` is what the lines begin with.
    pub const fn new(name: &'static str, clock: Clock) -> Self {
        Self { name, clock, outage: Mutex::new(Outage::None) }
    }

    /// An attempt failed: logs a warning if there is something new to say, and returns it.
    pub fn down(&self, error: &dyn Display) -> Option<String> {
        let line = self.with(|outage| outage.down(self.name, error, self.clock.now()))?;
        tracing::warn!({ fields::STORE } = self.name, "{line}");
        Some(line)
    }

    /// An attempt succeeded: logs that an outage is over, if there was one, and returns the line.
    pub fn up(&self) -> Option<String> {
        let line = self.with(|outage| outage.up(self.name, self.clock.now()))?;
        tracing::info!({ fields::STORE } = self.name, "{line}");
        Some(line)
    }

    /// Whether the last attempt failed.
    pub fn is_down(&self) -> bool {
        self.with(|outage| outage.is_down())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Outage) -> T) -> T {
        act(&mut self.outage.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_millis(ms))
    }

    #[test]
    fn one_line_down_one_line_up() {
        let mut outage = Outage::default();
        assert_eq!(outage.up("redis", at(0)), None);
        let first = outage.down("redis", &"connection refused", at(1_000));
        assert_eq!(first.as_deref(), Some("redis: unavailable: connection refused"));
        for n in 1..240 {
            assert_eq!(outage.down("redis", &"connection refused", at(1_000 + n * 50)), None);
        }
        assert!(outage.is_down());
        let back = outage.up("redis", at(13_400));
        assert_eq!(back.as_deref(), Some("redis: back after 12 s, 240 attempts"));
        assert_eq!(outage.up("redis", at(14_000)), None);
        assert!(!outage.is_down());
    }

    #[test]
    fn a_short_outage_is_told_in_tenths() {
        let mut outage = Outage::default();
        outage.down("postgres", &"x", at(0));
        assert_eq!(
            outage.up("postgres", at(420)).as_deref(),
            Some("postgres: back after 0.4 s, 1 attempt")
        );
    }

    #[test]
    fn another_error_is_told_once_a_minute() {
        let mut outage = Outage::default();
        outage.down("redis", &"refused", at(0));
        assert_eq!(outage.down("redis", &"wrong password", at(59_000)), None);
        assert_eq!(
            outage.down("redis", &"wrong password", at(60_000)).as_deref(),
            Some("redis: still unavailable after 60 s: wrong password")
        );
        assert_eq!(outage.down("redis", &"refused", at(61_000)), None);
        assert_eq!(outage.down("redis", &"wrong password", at(130_000)), None);
    }

    #[test]
    fn long_errors_are_cut_between_characters() {
        let line = Outage::default().down("redis", &"ü".repeat(1_000), at(0)).expect("a line");
        assert!(line.len() < 600);
    }
}

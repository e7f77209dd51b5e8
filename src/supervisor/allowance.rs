//! How long a drain may take here: what the configuration asks for, within what systemd allows.
//!
//! At the end of TimeoutStopSec systemd kills, silently, and what was cut off costs a lease and
//! counts as a crash. So a drain that cannot fit is shortened, with one warning. What nobody knows
//! is not guessed: without an answer the configuration alone decides.

use std::fmt::Write as _;
use std::time::Duration;

use super::systemd::Notifier;
use super::unit::{self, Span};
use crate::config::{DrainSettings, format_duration as show};
use crate::protocol::budget::Parts;
use crate::protocol::drain::Budget;

/// systemd's default of TimeoutStopSec (systemd-system.conf(5), DefaultTimeoutStopSec).
const USUAL_LIMIT: Duration = Duration::from_secs(90);

/// What the unit says of a stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UnitLimit {
    /// Nothing of systemd's was found around this process.
    NoUnit,
    /// TimeoutStopSec=
    Of(Span),
    /// There is a unit, and it could not be asked.
    Unknown(String),
    /// There is a unit, and it is another process's: systemd hears nothing of this one.
    Foreign(String),
}

impl UnitLimit {
    /// Asks systemd, where it has started this process.
    pub(super) async fn ask() -> Self {
        if !Notifier::is_of_a_unit() {
            return Self::NoUnit;
        }
        let unit = match unit::own_service().await {
            Ok(unit) => unit,
            Err(error) => {
                tracing::debug!("TimeoutStopSec is unknown: {error}");
                return Self::Unknown(error.to_string());
            }
        };
        match unit.stop_timeout {
            Some(limit) if unit.main_pid == std::process::id() => {
                tracing::debug!("TimeoutStopSec of {}: {limit:?}", unit.name);
                Self::Of(limit)
            }
            None if unit.main_pid == std::process::id() => {
                Self::Unknown(format!("{} has no TimeoutStopSec", unit.name))
            }
            _ => {
                let why = format!("{:?} is not the service of this process", unit.name);
                tracing::debug!("TimeoutStopSec is unknown: {why}");
                Self::Foreign(why)
            }
        }
    }
}

/// What a drain may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allowance {
    /// Its parts.
    pub(super) parts: Parts,
    /// What is allowed from outside; `None` where there is no limit or it is unknown.
    pub(super) limit: Option<Duration>,
    /// How far progress may move its end.
    pub(super) extension: Duration,
}

impl Allowance {
    /// What holds for this process, and the warning said.
    pub(super) fn of(drain: &DrainSettings, unit: &UnitLimit) -> Self {
        let (allowance, warning) = Self::settle(drain, unit, Notifier::is_heard());
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        allowance
    }

    /// Fits the drain into the limits. Also gives the warning that is due, if any. Nothing is
    /// extended where systemd is not `heard`.
    fn settle(drain: &DrainSettings, unit: &UnitLimit, heard: bool) -> (Self, Option<String>) {
        let wanted =
            Parts { timeout: drain.timeout, kill_after: drain.kill_after, margin: drain.margin };
        let of_the_unit = match unit {
            UnitLimit::Of(Span::Of(limit)) => Some(*limit),
            UnitLimit::Of(Span::Endless)
            | UnitLimit::NoUnit
            | UnitLimit::Unknown(_)
            | UnitLimit::Foreign(_) => None,
        };
        let limit = [drain.stop_timeout, of_the_unit].into_iter().flatten().min();
        let heard = heard && !matches!(unit, UnitLimit::Foreign(_));
        let extension = drain.extend_at_most.filter(|_| heard).unwrap_or_default();
        let parts = limit.map_or(wanted, |limit| wanted.within(limit));
        let warning = match (limit, unit) {
            (Some(limit), _) if wanted.total() > limit => Some(shortened(wanted, parts, limit)),
            (None, UnitLimit::Unknown(why) | UnitLimit::Foreign(why))
                if wanted.total() > USUAL_LIMIT =>
            {
                Some(unknown(wanted, why))
            }
            _ => None,
        };
        (Self { parts, limit, extension }, warning)
    }

    /// The deadlines.
    pub(super) fn budget(&self) -> Budget {
        self.parts.budget(self.extension)
    }

    /// One line for the log of a start.
    pub(super) fn told(&self) -> String {
        let Parts { timeout, kill_after, margin } = self.parts;
        let mut line = format!(
            "a drain may take {}: {} for tasks to end, {} to stop them, {} to give back",
            show(self.parts.total()),
            show(timeout),
            show(kill_after),
            show(margin)
        );
        if let Some(limit) = self.limit {
            let _ = write!(line, "; a stop may take {}", show(limit));
        }
        if !self.extension.is_zero() {
            let _ = write!(line, "; up to {} longer while tasks end", show(self.extension));
        }
        line
    }
}

fn shortened(wanted: Parts, parts: Parts, limit: Duration) -> String {
    let or = match limit.checked_sub(wanted.kill_after + wanted.margin) {
        Some(rest) if !rest.is_zero() => {
            format!(", or lower drain.timeout to \"{}\"", show(rest))
        }
        _ => String::new(),
    };
    format!(
        "a drain may take {} (drain.timeout {} + kill_after {} + margin {}), and the unit's \
         TimeoutStopSec is {}: shortened to {} + {} + {}; set TimeoutStopSec={} in the unit{or}",
        show(wanted.total()),
        show(wanted.timeout),
        show(wanted.kill_after),
        show(wanted.margin),
        show(limit),
        show(parts.timeout),
        show(parts.kill_after),
        show(parts.margin),
        show(wanted.total()),
    )
}

fn unknown(wanted: Parts, why: &str) -> String {
    format!(
        "a drain may take {}, and the unit's TimeoutStopSec is unknown ({why}); by default systemd \
         kills after {}: set drain.stop_timeout to what the unit says",
        show(wanted.total()),
        show(USUAL_LIMIT)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn settled(stop_timeout: Option<u64>, unit: &UnitLimit) -> (Allowance, Option<String>) {
        let drain = DrainSettings {
            stop_timeout: stop_timeout.map(secs),
            extend_at_most: Some(secs(60)),
            ..DrainSettings::new()
        };
        Allowance::settle(&drain, unit, true)
    }

    #[test]
    fn a_drain_that_fits_is_as_configured() {
        let of = |limit| UnitLimit::Of(Span::Of(secs(limit)));
        for (configured, unit, limit) in [
            (None, of(90), Some(90)),
            (None, of(35), Some(35)),
            (Some(45), of(90), Some(45)),
            (Some(90), of(45), Some(45)),
            (None, UnitLimit::Of(Span::Endless), None),
            (Some(45), UnitLimit::Of(Span::Endless), Some(45)),
            (Some(45), UnitLimit::NoUnit, Some(45)),
            (Some(45), UnitLimit::Unknown("no bus".to_owned()), Some(45)),
            (None, UnitLimit::Unknown("no bus".to_owned()), None),
            (None, UnitLimit::NoUnit, None),
        ] {
            let (allowance, warning) = settled(configured, &unit);
            assert_eq!(warning, None, "{configured:?} {unit:?}");
            assert_eq!(allowance.limit, limit.map(secs), "{configured:?} {unit:?}");
            assert_eq!(allowance.parts.total(), secs(35), "{configured:?} {unit:?}");
        }
    }

    #[test]
    fn a_drain_that_does_not_fit_is_shortened_and_both_values_are_named() {
        let (allowance, warning) = settled(None, &UnitLimit::Of(Span::Of(secs(20))));
        let parts = Parts { timeout: secs(10), kill_after: secs(5), margin: secs(5) };
        assert_eq!((allowance.parts, allowance.limit), (parts, Some(secs(20))));
        let warning = warning.expect("a warning");
        for text in
            ["35s", "TimeoutStopSec is 20s", "10s + 5s + 5s", "TimeoutStopSec=35s", "\"10s\""]
        {
            assert!(warning.contains(text), "{text}: {warning}");
        }
        let (_, warning) = settled(Some(90), &UnitLimit::Of(Span::Of(secs(8))));
        let warning = warning.expect("a warning");
        assert!(warning.contains("0s + 3s + 5s") && !warning.contains("or lower"), "{warning}");
    }

    #[test]
    fn a_long_drain_under_an_unknown_limit_is_left_alone_and_warned_of() {
        let drain = DrainSettings { timeout: secs(300), ..DrainSettings::new() };
        let unit = UnitLimit::Unknown("why".to_owned());
        let (allowance, warning) = Allowance::settle(&drain, &unit, true);
        assert_eq!(allowance.parts.total(), secs(310));
        assert!(warning.expect("a warning").contains("drain.stop_timeout"));
    }

    #[test]
    fn nothing_is_extended_where_nobody_hears_of_it() {
        let drain = DrainSettings { extend_at_most: Some(secs(60)), ..DrainSettings::new() };
        let extension = |heard| Allowance::settle(&drain, &UnitLimit::NoUnit, heard).0.extension;
        assert_eq!((extension(true), extension(false)), (secs(60), Duration::ZERO));
        let wrapped = UnitLimit::Foreign("a wrapper is the unit's process".to_owned());
        assert_eq!(Allowance::settle(&drain, &wrapped, true).0.extension, Duration::ZERO);
    }
}

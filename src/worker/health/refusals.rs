//! What a store refuses although it answers: what is said of it, and whether it lasts.
//!
//! A refusal may be one task's affair, so a single one costs nothing but a line. It lasts when
//! refusals have followed each other for [`LASTS`], or when a look has found that all writes are
//! refused: then the worker cannot do its work, and says so where it is asked whether it is ready.

use std::time::Duration;

use super::REMINDER;
use crate::clock::BootInstant;

/// Two different refusals are told at least this far apart.
const BETWEEN_REFUSALS: Duration = Duration::from_secs(10);

/// How long a refusal counts as recent.
const RECENT: Duration = Duration::from_secs(5);

/// Refusals that follow each other for this long are no accident.
const LASTS: Duration = Duration::from_secs(10);

/// What is to be done about a Redis that answers and refuses all writes; for the code that its
/// refusal begins with.
const REMEDIES: [(&str, &str); 3] = [
    ("OOM", "raise `maxmemory`, or let ended tasks make room"),
    ("MISCONF", "it cannot persist: look into its log, and make room on its disk"),
    ("NOREPLICAS", "bring its replicas back, or lower `min-replicas-to-write`"),
];

/// The remedy for what a Redis answered; the client quotes codes that it does not know.
pub(super) fn remedy(answer: &str) -> Option<&'static str> {
    let code = answer.trim_start_matches('"').split(['"', ':', ' ']).next()?;
    REMEDIES.iter().find(|(of, _)| *of == code).map(|(_, remedy)| *remedy)
}

/// What one store refused.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Waits for the probe, which may find that the store is down and say why.
    pub(super) unexplained: Option<String>,
    /// The last one that no probe explained, since when they follow each other, and when it was.
    last: Option<(String, BootInstant, BootInstant)>,
    /// The one that was logged last, and when.
    told: Option<(String, BootInstant)>,
    /// What the last of the looks said that found no writes taken, and when the first of them was.
    no_writes: Option<(String, BootInstant)>,
}

impl Refusals {
    /// The store is up all the same. Returns what is to be logged.
    pub(super) fn remain(&mut self, now: BootInstant) -> Option<String> {
        let message = self.unexplained.take()?;
        let since = match &self.last {
            Some((_, since, at)) if now.saturating_since(*at) < RECENT => *since,
            Some(_) | None => now,
        };
        self.last = Some((message.clone(), since, now));
        let due = self.told.as_ref().is_none_or(|(told, at)| {
            let pause = if *told == message { REMINDER } else { BETWEEN_REFUSALS };
            now.saturating_since(*at) >= pause
        });
        due.then(|| {
            self.told = Some((message.clone(), now));
            message
        })
    }

    /// A look has found whether writes are taken. Returns what is to be logged: why not, as often as
    /// that changes, or for how long they were not.
    pub(super) fn writes(&mut self, found: Result<(), String>, now: BootInstant) -> Option<String> {
        match (found, self.no_writes.take()) {
            (Ok(()), Some((_, since))) => Some(format!("{:.1?}", now.saturating_since(since))),
            (Ok(()), None) => None,
            (Err(message), known) => {
                let is_told = known.as_ref().is_some_and(|(told, _)| *told == message);
                let since = known.map_or(now, |(_, since)| since);
                self.no_writes = Some((message.clone(), since));
                (!is_told).then_some(message)
            }
        }
    }

    /// What was refused in the last seconds.
    pub(super) fn recent(&self, now: BootInstant) -> Option<String> {
        if let Some((message, _)) = &self.no_writes {
            return Some(message.clone());
        }
        let (message, _, at) = self.last.as_ref()?;
        (now.saturating_since(*at) < RECENT).then(|| message.clone())
    }

    /// What is refused all the time.
    pub(super) fn lasting(&self, now: BootInstant) -> Option<String> {
        let recent = self.recent(now)?;
        let since = self.last.as_ref().map(|(_, since, _)| *since);
        let lasts = since.is_some_and(|since| now.saturating_since(since) >= LASTS);
        (self.no_writes.is_some() || lasts).then_some(recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn a_lasting_refusal_is_told_once_a_minute_and_another_one_sooner() {
        let mut refusals = Refusals::default();
        let mut refused = |message: &str, seconds| {
            refusals.unexplained = Some(message.to_owned());
            refusals.remain(at(seconds)).is_some()
        };
        assert!(refused("a", 0));
        assert!(!refused("a", 59) && !refused("b", 9));
        assert!(refused("b", 10) && refused("a", 20));
        assert!(!refused("a", 79) && refused("a", 80));
        assert_eq!(refusals.remain(at(200)), None, "nothing was refused since");
    }

    #[test]
    fn refusals_that_follow_each_other_last() {
        let mut refusals = Refusals::default();
        for seconds in 0..=12 {
            refusals.unexplained = Some("a".to_owned());
            refusals.remain(at(seconds));
            assert_eq!(refusals.lasting(at(seconds)).is_some(), seconds >= 10, "after {seconds} s");
        }
        assert_eq!(refusals.lasting(at(17)), None, "it has stopped");
        refusals.unexplained = Some("a".to_owned());
        refusals.remain(at(18));
        assert_eq!((refusals.lasting(at(18)), refusals.recent(at(18))), (None, Some("a".into())));
    }

    #[test]
    fn refused_writes_last_at_once_and_are_told_once() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.writes(Ok(()), at(0)), None);
        assert_eq!(refusals.writes(Err("full".into()), at(1)).as_deref(), Some("full"));
        assert_eq!(refusals.lasting(at(1)).as_deref(), Some("full"));
        assert_eq!(refusals.writes(Err("full".into()), at(600)), None);
        assert_eq!(refusals.lasting(at(600)).as_deref(), Some("full"));
        assert_eq!(refusals.writes(Ok(()), at(601)).as_deref(), Some("600.0s"));
        assert_eq!(refusals.lasting(at(601)), None);
    }

    #[test]
    fn a_refusal_has_the_remedy_of_the_code_that_it_begins_with() {
        for (code, part) in
            [("OOM", "`maxmemory`"), ("MISCONF", "disk"), ("NOREPLICAS", "`min-replicas-to-write`")]
        {
            let told = redis::make_extension_error(code.into(), Some("no".into())).to_string();
            assert!(remedy(&told).is_some_and(|remedy| remedy.contains(part)), "{told}");
            assert!(remedy(&format!("{code} no")).is_some());
        }
        assert_eq!(remedy("NOGROUP: No such key 'qw:{OOM: }:tasks'"), None);
    }

    #[test]
    fn another_reason_for_refused_writes_is_told_and_the_time_goes_on() {
        let mut refusals = Refusals::default();
        refusals.writes(Err("full".into()), at(1));
        assert_eq!(refusals.writes(Err("no disk".into()), at(5)).as_deref(), Some("no disk"));
        assert_eq!(refusals.lasting(at(5)).as_deref(), Some("no disk"));
        assert_eq!(refusals.writes(Err("no disk".into()), at(9)), None);
        assert_eq!(refusals.writes(Ok(()), at(11)).as_deref(), Some("10.0s"));
    }
}

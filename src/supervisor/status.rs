//! The lines that a person reads: `STATUS=` for `systemctl status`, and the log of the phases.
//!
//! A line says first what the process does, then how much is in its hands and for how long, and
//! last what is wrong.

use std::fmt::Write as _;
use std::time::Duration;

use crate::clock::BootInstant;
use crate::protocol::drain::{Event, Phase};

/// What there is to tell.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// Where the process stands.
    pub(super) phase: Phase,
    /// The time.
    pub(super) now: BootInstant,
    /// Tasks that run.
    pub(super) tasks: usize,
    /// The age of the oldest.
    pub(super) oldest: Option<Duration>,
    /// Tasks that have ended in the last minute.
    pub(super) ended: u64,
    /// Why nothing can be pulled, if it is for a store.
    pub(super) complaint: Option<String>,
    /// For how long a store has been away.
    pub(super) away: Option<Duration>,
    /// What a store refuses although it answers.
    pub(super) refusal: Option<String>,
    /// A loop that does not come round.
    pub(super) stuck: Option<String>,
    /// The keys of the configuration that wait for a restart.
    pub(super) pending: Vec<String>,
}

impl Facts {
    /// What the process does, in one line.
    pub(super) fn line(&self) -> String {
        let census = self.census();
        let mut line = match self.phase {
            Phase::Running => match self.waits() {
                Some(waits) if self.tasks == 0 => format!("not ready: {waits}"),
                Some(waits) => format!("not ready: {waits}; still running: {census}"),
                None if self.tasks == 0 => format!("ready, idle{}", self.pace()),
                None => format!("running: {census}{}", self.pace()),
            },
            Phase::Quiet => format!("quiet: {census}, pulling nothing until SIGCONT"),
            Phase::Background => {
                format!("draining in the background: {census}, no time limit{}", self.pace())
            }
            Phase::Draining { soft, latest, .. } => {
                let left = soft.saturating_since(self.now).as_secs();
                let most = latest.saturating_since(self.now).as_secs();
                let extended = if latest > soft {
                    format!(" ({most} s while tasks end)")
                } else {
                    String::new()
                };
                format!("draining: {census}, {left} s left{extended}")
            }
            Phase::Interrupting { hard } => {
                let left = hard.saturating_since(self.now).as_secs();
                format!("giving back: {census}, {left} s left")
            }
            Phase::Abandoning => format!("stopping, leaving {census}"),
            Phase::Stopped => "stopped".to_owned(),
        };
        // What could not be recorded holds up a drain as well.
        if self.phase.is_leaving()
            && !self.phase.is_over()
            && let Some(waits) = self.waits()
        {
            let _ = write!(line, "; {waits}");
        }
        if let Some(refusal) = &self.refusal {
            let _ = write!(line, "; work fails: {refusal}");
        }
        if let Some(stuck) = &self.stuck {
            let _ = write!(line, "; {stuck}");
        }
        if let [first, more @ ..] = &self.pending[..]
            && !self.phase.is_leaving()
        {
            let more =
                if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            let _ = write!(line, "; {first}{more} to be applied by a restart");
        }
        line
    }

    fn waits(&self) -> Option<String> {
        let complaint = self.complaint.as_ref()?;
        Some(match self.away {
            Some(away) => format!("{complaint} (away for {} s)", away.as_secs()),
            None => complaint.clone(),
        })
    }

    fn census(&self) -> String {
        match (self.tasks, self.oldest) {
            (1, Some(oldest)) => format!("1 task, {} s old", oldest.as_secs()),
            (n, Some(oldest)) => format!("{n} tasks, oldest {} s", oldest.as_secs()),
            (_, None) => "no tasks".to_owned(),
        }
    }

    fn pace(&self) -> String {
        match self.ended {
            0 => String::new(),
            ended => format!("; {ended} ended in the last minute"),
        }
    }
}

/// The log line of a change of phase.
pub(super) fn transition(event: Event, after: Phase, in_flight: usize) -> String {
    match after {
        Phase::Running => "pulling tasks again".to_owned(),
        Phase::Quiet => format!("quiet: pulling nothing, {in_flight} in flight go on"),
        Phase::Background => format!("draining in the background, {in_flight} in flight"),
        Phase::Draining { .. } => format!("draining, {in_flight} in flight"),
        Phase::Interrupting { .. } => {
            let why = if event == Event::Terminate {
                "asked to hurry"
            } else {
                "the time for finishing is over"
            };
            format!("{why}: interrupting and giving back {in_flight} in flight")
        }
        Phase::Abandoning => format!("the drain's budget is spent, {in_flight} in flight"),
        Phase::Stopped => "nothing in flight".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_secs(seconds))
    }

    fn facts(phase: Phase) -> Facts {
        Facts {
            phase,
            now: at(100),
            tasks: 3,
            oldest: Some(Duration::from_secs(12)),
            ended: 0,
            complaint: None,
            away: None,
            refusal: None,
            stuck: None,
            pending: Vec::new(),
        }
    }

    fn away(facts: Facts) -> Facts {
        let complaint = Some("waiting for redis: connection refused".to_owned());
        Facts { complaint, away: Some(Duration::from_secs(7)), ..facts }
    }

    #[test]
    fn every_phase_has_its_line() {
        let draining = Phase::Draining { soft: at(121), hard: at(125), latest: at(121) };
        let longer = Phase::Draining { soft: at(121), hard: at(125), latest: at(190) };
        let none = Facts { tasks: 0, oldest: None, ..facts(Phase::Running) };
        let one = Facts { tasks: 1, ..facts(Phase::Running) };
        for (facts, line) in [
            (none.clone(), "ready, idle"),
            (Facts { ended: 140, ..none.clone() }, "ready, idle; 140 ended in the last minute"),
            (one, "running: 1 task, 12 s old"),
            (
                Facts { ended: 140, ..facts(Phase::Running) },
                "running: 3 tasks, oldest 12 s; 140 ended in the last minute",
            ),
            (
                Facts { refusal: Some("no right".to_owned()), ..facts(Phase::Running) },
                "running: 3 tasks, oldest 12 s; work fails: no right",
            ),
            (
                Facts { stuck: Some("stuck: heartbeat".to_owned()), ..facts(Phase::Running) },
                "running: 3 tasks, oldest 12 s; stuck: heartbeat",
            ),
            (
                Facts { pending: vec!["redis.url".to_owned()], ..none.clone() },
                "ready, idle; redis.url to be applied by a restart",
            ),
            (
                Facts {
                    pending: ["web.listen", "log.format"].map(str::to_owned).into(),
                    ..none.clone()
                },
                "ready, idle; web.listen and 1 more to be applied by a restart",
            ),
            (away(none), "not ready: waiting for redis: connection refused (away for 7 s)"),
            (
                away(facts(Phase::Running)),
                "not ready: waiting for redis: connection refused (away for 7 s); still running: \
                 3 tasks, oldest 12 s",
            ),
            (facts(Phase::Quiet), "quiet: 3 tasks, oldest 12 s, pulling nothing until SIGCONT"),
            (
                facts(Phase::Background),
                "draining in the background: 3 tasks, oldest 12 s, no time limit",
            ),
            (facts(draining), "draining: 3 tasks, oldest 12 s, 21 s left"),
            (
                away(facts(draining)),
                "draining: 3 tasks, oldest 12 s, 21 s left; waiting for redis: connection refused \
                 (away for 7 s)",
            ),
            (facts(longer), "draining: 3 tasks, oldest 12 s, 21 s left (90 s while tasks end)"),
            (
                facts(Phase::Interrupting { hard: at(104) }),
                "giving back: 3 tasks, oldest 12 s, 4 s left",
            ),
            (away(facts(Phase::Abandoning)), "stopping, leaving 3 tasks, oldest 12 s"),
            (facts(Phase::Stopped), "stopped"),
        ] {
            assert_eq!(facts.line(), line);
        }
    }
}

//! From running to stopped, signal by signal.
//!
//! ```text
//!            TSTP                        TERM, INT
//!  Running ───────▶ Quiet ─────────────────┐
//!     ▲ ◀── CONT ─────┘                    ▼            soft deadline,       hard deadline
//!     ├──────────── TERM, INT ────────▶ Draining ──── second TERM ──▶ Interrupting ──▶ Abandoning
//!     └── USR2 ──▶ Background ── TERM ────▶│                               │
//!                      │ nothing in flight │ nothing in flight             │ nothing in flight
//!                      └──────────────────▶└────────▶ Stopped ◀────────────┘
//! ```
//!
//! The budget is one for all queues: the soft deadline is when handlers are asked to stop, the hard
//! one when the process goes in any case. Progress moves both, by the same span and never beyond a
//! cap that was fixed when the drain began; once handlers have been asked to stop, nothing does.
//! CONT ends only a quiet: systemd sends SIGCONT right after SIGTERM, so it must never end a drain.

use std::time::Duration;

use crate::clock::BootInstant;

/// How long a drain may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// From the signal until handlers are asked to stop.
    pub soft: Duration,
    /// From there until the process goes in any case.
    pub grace: Duration,
    /// How far progress may move both deadlines, all in all.
    pub extension: Duration,
}

/// Where the process stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Pulls and runs tasks.
    Running,
    /// Pulls nothing; what runs goes on.
    Quiet,
    /// Pulls nothing and stops when nothing is in flight, however long that takes.
    Background,
    /// Pulls nothing, and stops when nothing is in flight or the budget is spent.
    Draining {
        /// When handlers are asked to stop.
        soft: BootInstant,
        /// When the process goes in any case.
        hard: BootInstant,
        /// How late `soft` may become.
        latest: BootInstant,
    },
    /// Handlers have been asked to stop; what they were doing is given back.
    Interrupting {
        /// When the process goes in any case.
        hard: BootInstant,
    },
    /// The process goes now; what is left is taken over by others when its lease ends.
    Abandoning,
    /// Nothing is in flight: the process ends well.
    Stopped,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// SIGTERM or SIGINT.
    Terminate,
    /// SIGTSTP.
    Quiet,
    /// SIGCONT.
    Continue,
    /// SIGUSR2.
    DrainInBackground,
    /// A task has ended: the drain gets somewhere.
    Progress,
    /// Time has passed.
    Tick,
    /// Nothing is in flight.
    Idle,
}

impl Phase {
    /// Where `event` at `now` leads.
    #[must_use]
    pub fn on(self, event: Event, now: BootInstant, budget: Budget) -> Self {
        match event {
            Event::Terminate => match self {
                Self::Running | Self::Quiet | Self::Background => Self::Draining {
                    soft: now + budget.soft,
                    hard: now + budget.soft + budget.grace,
                    latest: now + budget.soft + budget.extension,
                },
                Self::Draining { hard, .. } => {
                    Self::Interrupting { hard: hard.min(now + budget.grace) }
                }
                Self::Interrupting { .. } | Self::Abandoning | Self::Stopped => self,
            },
            Event::Quiet => match self {
                Self::Running => Self::Quiet,
                Self::Quiet
                | Self::Background
                | Self::Draining { .. }
                | Self::Interrupting { .. }
                | Self::Abandoning
                | Self::Stopped => self,
            },
            Event::Continue => match self {
                Self::Quiet => Self::Running,
                Self::Running
                | Self::Background
                | Self::Draining { .. }
                | Self::Interrupting { .. }
                | Self::Abandoning
                | Self::Stopped => self,
            },
            Event::DrainInBackground => match self {
                Self::Running | Self::Quiet => Self::Background,
                Self::Background
                | Self::Draining { .. }
                | Self::Interrupting { .. }
                | Self::Abandoning
                | Self::Stopped => self,
            },
            Event::Progress => match self {
                Self::Draining { soft, hard, latest } => {
                    let later = soft.max(latest.min(now + budget.soft));
                    Self::Draining {
                        soft: later,
                        hard: hard + later.saturating_since(soft),
                        latest,
                    }
                }
                Self::Running
                | Self::Quiet
                | Self::Background
                | Self::Interrupting { .. }
                | Self::Abandoning
                | Self::Stopped => self,
            },
            Event::Tick => match self {
                Self::Draining { hard, .. } | Self::Interrupting { hard } if now >= hard => {
                    Self::Abandoning
                }
                Self::Draining { soft, hard, .. } if now >= soft => Self::Interrupting { hard },
                Self::Running
                | Self::Quiet
                | Self::Background
                | Self::Draining { .. }
                | Self::Interrupting { .. }
                | Self::Abandoning
                | Self::Stopped => self,
            },
            Event::Idle => match self {
                Self::Background | Self::Draining { .. } | Self::Interrupting { .. } => {
                    Self::Stopped
                }
                Self::Running | Self::Quiet | Self::Abandoning | Self::Stopped => self,
            },
        }
    }

    /// The same drain when its budget was `old` and turns out to be `new`: the deadlines come
    /// nearer, or stay where they are.
    #[must_use]
    pub fn shortened(self, now: BootInstant, old: Budget, new: Budget) -> Self {
        let soft_by = old.soft.saturating_sub(new.soft);
        let hard_by = (old.soft + old.grace).saturating_sub(new.soft + new.grace);
        match self {
            Self::Draining { soft, hard, latest } => Self::Draining {
                soft: soft - soft_by,
                hard: hard - hard_by,
                latest: latest - soft_by,
            },
            // Hurried: that was not counted from the beginning.
            Self::Interrupting { hard } if !hard_by.is_zero() => {
                Self::Interrupting { hard: hard.min(now + new.grace) }
            }
            Self::Running
            | Self::Quiet
            | Self::Background
            | Self::Interrupting { .. }
            | Self::Abandoning
            | Self::Stopped => self,
        }
    }

    /// Whether new tasks are pulled.
    pub const fn pulls(self) -> bool {
        matches!(self, Self::Running)
    }

    /// Whether the process is on its way out: nothing is pulled again, and nothing that has not
    /// started its handler starts it.
    pub const fn is_leaving(self) -> bool {
        match self {
            Self::Running | Self::Quiet => false,
            Self::Background
            | Self::Draining { .. }
            | Self::Interrupting { .. }
            | Self::Abandoning
            | Self::Stopped => true,
        }
    }

    /// Whether handlers must stop.
    pub const fn interrupts(self) -> bool {
        match self {
            Self::Running | Self::Quiet | Self::Background | Self::Draining { .. } => false,
            Self::Interrupting { .. } | Self::Abandoning | Self::Stopped => true,
        }
    }

    /// Whether the way out is over.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Abandoning | Self::Stopped)
    }

    /// When time alone leads on.
    pub const fn next_deadline(self) -> Option<BootInstant> {
        match self {
            Self::Draining { soft, .. } => Some(soft),
            Self::Interrupting { hard } => Some(hard),
            Self::Running | Self::Quiet | Self::Background | Self::Abandoning | Self::Stopped => {
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget {
        soft: Duration::from_secs(20),
        grace: Duration::from_secs(5),
        extension: Duration::from_secs(15),
    };
    const EVENTS: [Event; 7] = [
        Event::Terminate,
        Event::Quiet,
        Event::Continue,
        Event::DrainInBackground,
        Event::Progress,
        Event::Tick,
        Event::Idle,
    ];

    fn at(s: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_secs(s))
    }

    fn states() -> [Phase; 7] {
        [
            Phase::Running,
            Phase::Quiet,
            Phase::Background,
            Phase::Draining { soft: at(20), hard: at(25), latest: at(35) },
            Phase::Interrupting { hard: at(25) },
            Phase::Abandoning,
            Phase::Stopped,
        ]
    }

    #[test]
    fn every_state_with_every_event() {
        use Phase::{Abandoning, Background, Draining, Interrupting, Quiet, Running, Stopped};
        let d = Draining { soft: at(20), hard: at(25), latest: at(35) };
        let d10 = Draining { soft: at(30), hard: at(35), latest: at(45) };
        let later = Draining { soft: at(30), hard: at(35), latest: at(35) };
        let i = Interrupting { hard: at(25) };
        let hurried = Interrupting { hard: at(15) };
        // Rows: states; columns: EVENTS, all at second 10.
        let expected = [
            [d10, Quiet, Running, Background, Running, Running, Running],
            [d10, Quiet, Running, Background, Quiet, Quiet, Quiet],
            [d10, Background, Background, Background, Background, Background, Stopped],
            [hurried, d, d, d, later, d, Stopped],
            [i, i, i, i, i, i, Stopped],
            [Abandoning; 7],
            [Stopped; 7],
        ];
        for (state, row) in states().into_iter().zip(expected) {
            for (event, want) in EVENTS.into_iter().zip(row) {
                assert_eq!(state.on(event, at(10), BUDGET), want, "{state:?} on {event:?}");
            }
        }
    }

    #[test]
    fn time_alone_leads_through_a_drain() {
        let drain = Phase::Running.on(Event::Terminate, at(0), BUDGET);
        let before = drain.on(Event::Tick, at(19), BUDGET);
        assert_eq!(before, drain);
        let cut = before.on(Event::Tick, at(20), BUDGET);
        assert_eq!(cut, Phase::Interrupting { hard: at(25) });
        assert_eq!(cut.on(Event::Tick, at(25), BUDGET), Phase::Abandoning);
        assert_eq!(drain.on(Event::Tick, at(99), BUDGET), Phase::Abandoning, "slept through both");
    }

    #[test]
    fn no_pair_of_events_makes_a_leaving_worker_pull_again() {
        for state in states().into_iter().filter(|s| s.is_leaving()) {
            for a in EVENTS {
                for b in EVENTS {
                    let end = state.on(a, at(10), BUDGET).on(b, at(11), BUDGET);
                    assert!(end.is_leaving() && !end.pulls(), "{state:?} {a:?} {b:?} -> {end:?}");
                }
            }
        }
    }

    #[test]
    fn progress_moves_both_deadlines_and_never_beyond_the_cap() {
        let mut phase = Phase::Running.on(Event::Terminate, at(0), BUDGET);
        for second in 1..=34 {
            phase =
                phase.on(Event::Progress, at(second), BUDGET).on(Event::Tick, at(second), BUDGET);
            let soft = at((second + 20).min(35));
            let hard = soft + BUDGET.grace;
            assert_eq!(phase, Phase::Draining { soft, hard, latest: at(35) }, "{second}");
        }
        let cut = phase.on(Event::Progress, at(35), BUDGET).on(Event::Tick, at(35), BUDGET);
        assert_eq!(cut, Phase::Interrupting { hard: at(40) });
        assert_eq!(cut.on(Event::Progress, at(36), BUDGET), cut, "too late");
    }

    #[test]
    fn a_budget_that_turns_out_to_be_shorter_brings_the_deadlines_nearer() {
        let short = Budget {
            soft: Duration::from_secs(8),
            grace: Duration::from_secs(4),
            extension: Duration::from_secs(15),
        };
        for state in states() {
            let begun = state.on(Event::Terminate, at(10), BUDGET);
            let expected = match state {
                // Hurried: there is still time to give back.
                Phase::Draining { .. } | Phase::Interrupting { .. } => {
                    Phase::Interrupting { hard: at(10 + 4) }
                }
                Phase::Running | Phase::Quiet | Phase::Background => {
                    state.on(Event::Terminate, at(10), short)
                }
                Phase::Abandoning | Phase::Stopped => state,
            };
            assert_eq!(begun.shortened(at(10), BUDGET, short), expected, "{state:?}");
            assert_eq!(begun.shortened(at(10), short, BUDGET), begun, "never later");
        }
    }

    #[test]
    fn without_an_extension_progress_moves_nothing() {
        let budget = Budget { extension: Duration::ZERO, ..BUDGET };
        let drain = Phase::Running.on(Event::Terminate, at(0), budget);
        assert_eq!(drain.on(Event::Progress, at(19), budget), drain);
    }

    #[test]
    fn a_drain_that_gets_nowhere_is_over_within_its_budget() {
        for state in states().into_iter().filter(|s| !matches!(s, Phase::Abandoning)) {
            let drain = state.on(Event::Terminate, at(0), BUDGET);
            let end = drain.on(Event::Tick, at(25), BUDGET);
            assert!(end.is_over(), "{state:?} -> {end:?}");
        }
    }
}

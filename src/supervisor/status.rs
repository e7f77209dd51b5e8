//! The lines that a person reads: `STATUS=` for `systemctl status`, and the log of the phases.

use std::time::Duration;

use crate::clock::Clock;
use crate::protocol::drain::{Event, Phase};
use crate::worker::health::Health;
use crate::worker::heartbeat::Beats;

/// What the process does, in one line.
pub(super) fn line(phase: Phase, beats: &Beats, health: &Health, clock: Clock) -> String {
    let (tasks, oldest) = beats.census();
    let complaint = health.complaint();
    match phase {
        Phase::Running => match complaint {
            Some(complaint) => format!("not ready: {complaint}{}", held(tasks, oldest)),
            None if tasks == 0 => format!("ready, idle{}", refused(health)),
            None => format!("running: {}{}", census(tasks, oldest), refused(health)),
        },
        Phase::Quiet => format!("quiet: {}, pulling nothing until SIGCONT", census(tasks, oldest)),
        Phase::Background => {
            format!("draining in the background: {}", census(tasks, oldest))
        }
        Phase::Draining { soft, .. } => {
            let left = soft.saturating_since(clock.now());
            format!("draining: {}, {} s left", census(tasks, oldest), left.as_secs())
        }
        Phase::Interrupting { hard } => {
            let left = hard.saturating_since(clock.now());
            format!("giving back: {}, {} s left", census(tasks, oldest), left.as_secs())
        }
        Phase::Abandoning => format!("stopping, leaving {}", census(tasks, oldest)),
        Phase::Stopped => "stopped".to_owned(),
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

fn census(tasks: usize, oldest: Option<Duration>) -> String {
    match (tasks, oldest) {
        (1, Some(oldest)) => format!("1 task, {} s old", oldest.as_secs()),
        (n, Some(oldest)) => format!("{n} tasks, oldest {} s", oldest.as_secs()),
        (_, None) => "no tasks".to_owned(),
    }
}

/// A store that answers and refuses the work is not away, and nothing moves all the same.
fn refused(health: &Health) -> String {
    health.refusal().map_or_else(String::new, |refusal| format!("; work fails: {refusal}"))
}

fn held(tasks: usize, oldest: Option<Duration>) -> String {
    if tasks == 0 { String::new() } else { format!("; still running: {}", census(tasks, oldest)) }
}

//! Whether the worker is alive, and whether it is ready: one answer for the watchdog and for HTTP.
//!
//! Alive means that every loop comes round within [`LONGEST_TURN`]; a store that is away does not
//! count against it. Ready means that tasks are pulled: both stores are up and do not refuse the
//! work, and nobody has asked the worker to stop or to be quiet.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::QueueName;
use crate::protocol::drain::Phase;
use crate::worker::health::Health;
use crate::worker::heartbeat::Beats;
use crate::worker::progress::{LONGEST_TURN, Progress};
use crate::worker::watched::Watched;

/// What there is to look at.
#[derive(Debug, Clone)]
pub struct Vitals {
    /// Where the process stands.
    pub phase: Arc<Watched<Phase>>,
    /// Which stores answer.
    pub health: Arc<Health>,
    /// The heartbeat.
    pub beats: Arc<Beats>,
    /// The supervisor's loop.
    pub coordinator: Progress,
    /// The loop of each queue; they end when the worker leaves.
    pub queues: Vec<(QueueName, Progress)>,
}

/// A loop that does not come round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// Which one: `heartbeat`, `coordinator`, `queue mail`.
    pub name: String,
    /// For how long.
    pub silence: Duration,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stuck: {} has not come round for {} s", self.name, self.silence.as_secs())
    }
}

impl Vitals {
    /// The first loop that is stuck; `None` while the worker is alive.
    pub fn stuck(&self) -> Option<Stuck> {
        let own =
            [("heartbeat", self.beats.silence()), ("coordinator", self.coordinator.silence())];
        let own = own.into_iter().map(|(name, silence)| (name.to_owned(), silence));
        let is_leaving = self.phase.get().is_leaving();
        let fetching = self.queues.iter().filter(|_| !is_leaving);
        let fetching =
            fetching.map(|(name, progress)| (format!("queue {name}"), progress.silence()));
        own.chain(fetching)
            .find(|(_, silence)| *silence >= LONGEST_TURN)
            .map(|(name, silence)| Stuck { name, silence })
    }

    /// Why no tasks are pulled, or why pulling them leads nowhere; `None` while all is well.
    pub fn not_ready(&self) -> Option<String> {
        match self.phase.get() {
            Phase::Running => self.health.complaint().or_else(|| {
                self.health.lasting_refusal().map(|refusal| format!("work fails: {refusal}"))
            }),
            Phase::Quiet => Some("quiet: pulling nothing until SIGCONT".to_owned()),
            Phase::Background => Some("draining in the background".to_owned()),
            Phase::Draining { .. } => Some("draining".to_owned()),
            Phase::Interrupting { .. } => Some("draining: giving back what is left".to_owned()),
            Phase::Abandoning | Phase::Stopped => Some("stopped".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{BootInstant, Clock};
    use crate::worker::dice::Dice;

    struct Scene {
        phase: Arc<Watched<Phase>>,
        vitals: Vitals,
    }

    fn scene() -> Scene {
        let clock = Clock::Tokio(tokio::time::Instant::now());
        let phase = Arc::new(Watched::new(Phase::Running));
        let vitals = Vitals {
            phase: Arc::clone(&phase),
            health: Health::new(clock, &Dice::Thread),
            beats: Beats::new(clock),
            coordinator: Progress::new(clock),
            queues: vec![(QueueName::new("mail").expect("a name"), Progress::new(clock))],
        };
        Scene { phase, vitals }
    }

    #[tokio::test(start_paused = true)]
    async fn the_loop_that_is_stuck_is_named() {
        let Scene { phase, vitals } = scene();
        assert_eq!(vitals.stuck(), None);
        tokio::time::advance(LONGEST_TURN / 2).await;
        vitals.coordinator.came_round();
        tokio::time::advance(LONGEST_TURN / 2).await;
        let stuck = vitals.stuck().expect("nobody has beaten");
        assert_eq!(stuck.to_string(), "stuck: heartbeat has not come round for 10 s");
        drop(phase);
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_is_stuck_is_named_unless_its_loop_has_ended() {
        let Scene { phase, mut vitals } = scene();
        tokio::time::advance(LONGEST_TURN).await;
        vitals.beats = Beats::new(Clock::Tokio(tokio::time::Instant::now()));
        vitals.coordinator.came_round();
        assert_eq!(vitals.stuck().expect("the queue is stuck").name, "queue mail");
        phase.replace(Phase::Background);
        assert_eq!(vitals.stuck(), None);
    }

    #[tokio::test]
    async fn every_phase_but_running_is_not_ready_and_says_why() {
        let Scene { phase, vitals } = scene();
        assert_eq!(vitals.not_ready().as_deref(), Some("connecting to postgres"));
        let end = BootInstant::from_boot(Duration::ZERO);
        for (phase_now, reason) in [
            (Phase::Quiet, "quiet"),
            (Phase::Background, "draining in the background"),
            (Phase::Draining { soft: end, hard: end, latest: end }, "draining"),
            (Phase::Interrupting { hard: end }, "giving back"),
            (Phase::Abandoning, "stopped"),
            (Phase::Stopped, "stopped"),
        ] {
            phase.replace(phase_now);
            let said = vitals.not_ready().expect("not ready");
            assert!(said.contains(reason), "{phase_now:?}: {said}");
        }
    }
}

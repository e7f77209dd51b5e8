//! Which fault strikes when: follows from the seed alone. Whom it strikes is decided when it does.
//!
//! The time is cut into cycles. In the first part of each only workers and connections are hit, so
//! that recovery can be measured with both stores up; in the rest a worker is frozen and the stores
//! are killed, while workers go on dying.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub(super) enum Fault {
    /// SIGKILL to a worker.
    Kill,
    /// SIGSTOP to a worker for longer than the lease, then SIGCONT.
    Freeze,
    /// SIGTERM to a worker, as in a deploy.
    Terminate,
    /// Redis closes the connections of all its clients.
    CutRedis,
    /// Postgres terminates the sessions of all workers.
    CutPostgres,
    /// SIGKILL to Redis, and a start.
    RestartRedis,
    /// SIGKILL to all of Postgres, and a start.
    RestartPostgres,
    /// Redis applies an acknowledgement, its reply is lost and the connection breaks.
    DropAck,
}

impl Fault {
    /// Every kind.
    pub(super) const ALL: [Self; 8] = [
        Self::Kill,
        Self::Freeze,
        Self::Terminate,
        Self::CutRedis,
        Self::CutPostgres,
        Self::RestartRedis,
        Self::RestartPostgres,
        Self::DropAck,
    ];

    /// The name on the command line and in the report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Terminate => "terminate",
            Self::CutRedis => "cut-redis",
            Self::CutPostgres => "cut-postgres",
            Self::RestartRedis => "restart-redis",
            Self::RestartPostgres => "restart-postgres",
            Self::DropAck => "drop-ack",
        }
    }

    /// How it comes.
    fn pace(self, workers: u32) -> Pace {
        match self {
            // A worker lives for some five seconds: long enough to get something done.
            Self::Kill => Pace::Every(Duration::from_millis(4_600) / workers),
            Self::Terminate => Pace::Every(Duration::from_secs(9)),
            Self::CutRedis => Pace::Every(Duration::from_secs(13)),
            Self::CutPostgres => Pace::Every(Duration::from_secs(11)),
            Self::DropAck => Pace::Every(Duration::from_secs(4)),
            Self::Freeze => Pace::InCycle(0.60),
            Self::RestartRedis => Pace::InCycle(0.68),
            Self::RestartPostgres => Pace::InCycle(0.80),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Pace {
    /// All the time, with this mean between two.
    Every(Duration),
    /// Once in each cycle, at this share of it.
    InCycle(f64),
}

/// A fault to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strike {
    pub(super) at: Duration,
    pub(super) fault: Fault,
    /// For what is decided when it strikes.
    pub(super) seed: u64,
}

/// About how long a cycle is; a whole number of them fills the time.
const CYCLE: Duration = Duration::from_secs(30);

/// The faults between `from` and `to`, in order.
pub(super) fn schedule(
    seed: u64,
    faults: &[Fault],
    workers: u32,
    from: Duration,
    to: Duration,
) -> Vec<Strike> {
    // Another stream than the plan's, from the same seed.
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed_fa17);
    let mut strikes = Vec::new();
    for fault in Fault::ALL.into_iter().filter(|fault| faults.contains(fault)) {
        for at in times(&mut rng, fault.pace(workers), from, to) {
            strikes.push(Strike { at, fault, seed: rng.random() });
        }
    }
    strikes.sort_by_key(|strike| (strike.at, strike.fault));
    strikes
}

fn times(rng: &mut StdRng, pace: Pace, from: Duration, to: Duration) -> Vec<Duration> {
    let span = to.saturating_sub(from);
    match pace {
        Pace::Every(mean) => {
            let mut times = Vec::new();
            let mut at = from + mean.mul_f64(rng.random_range(0.2..1.0));
            while at < to {
                times.push(at);
                at += mean.mul_f64(rng.random_range(0.5..1.5));
            }
            times
        }
        Pace::InCycle(share) => {
            let cycles = u32::try_from(span.as_secs() / CYCLE.as_secs()).unwrap_or(0).max(1);
            let cycle = span / cycles;
            (0..cycles)
                .map(|n| {
                    let share = share + rng.random_range(0.0..0.06);
                    from + cycle * n + cycle.mul_f64(share)
                })
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Duration = Duration::from_secs(2);

    #[test]
    fn the_same_seed_is_the_same_schedule() {
        let to = Duration::from_secs(160);
        let schedule = |seed| schedule(seed, &Fault::ALL, 4, FROM, to);
        assert_eq!(schedule(3), schedule(3));
        assert_ne!(schedule(3), schedule(4));
    }

    #[test]
    fn three_minutes_with_four_workers_bring_well_over_a_hundred_kills() {
        for seed in 0..50 {
            let strikes = schedule(seed, &Fault::ALL, 4, FROM, Duration::from_secs(160));
            let count = |fault| strikes.iter().filter(|strike| strike.fault == fault).count();
            assert!(count(Fault::Kill) >= 120, "seed {seed}: {}", count(Fault::Kill));
            assert_eq!(count(Fault::RestartPostgres), 5);
        }
    }

    #[test]
    fn only_what_was_asked_for() {
        let strikes = schedule(1, &[Fault::Freeze], 2, FROM, Duration::from_secs(20));
        assert_eq!(strikes.len(), 1);
        assert!(strikes.iter().all(|strike| strike.fault == Fault::Freeze && strike.at > FROM));
    }
}

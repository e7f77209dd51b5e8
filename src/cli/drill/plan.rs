//! What is enqueued and when, and how each task has to end: all of it follows from the seed.
//!
//! Pure: nothing here knows a server. The shares below are a mix that meets every handler and every
//! way through the worker; times are counted from the start of the drill.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// What tasks with a lock key share.
pub(super) const RESOURCES: u32 = 24;
/// Of a thousand tasks: how many run longer than a lease.
const LONG_PER_MILLE: u32 = 2;
/// How long those run.
const LONG_SECONDS: f64 = 6.0;
/// Of a thousand tasks: how many are enqueued twice, and how many wait for a time.
const TWICE_PER_MILLE: u32 = 30;
const DELAYED_PER_MILLE: u32 = 50;
/// A task that fails and then succeeds fails at most this often.
const MOST_FAILURES: u32 = 3;
/// The latest a second copy comes, or a delayed task is due.
const LATER: Duration = Duration::from_secs(8);
/// Tasks of the last part of the plan are neither long nor enqueued late.
const SETTLED_SHARE: f64 = 0.7;

/// Which handler runs a task, by its name in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handler {
    /// An effect in the completion's transaction.
    Charge,
    /// The same, slow enough for a fault to hit it.
    SlowCharge,
    /// The same on a shared resource.
    Account,
    /// A statement that refuses for good.
    Refuse,
    /// A program that writes a journal.
    Render,
    /// A request to a receiver that applies by idempotency key and refuses older fences.
    Notify,
}

impl Handler {
    /// The kind of its tasks.
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::SlowCharge => "slow_charge",
            Self::Account => "account",
            Self::Refuse => "refuse",
            Self::Render => "render",
            Self::Notify => "notify",
        }
    }

    /// Whether its effect commits together with the success.
    pub(super) const fn is_transactional(self) -> bool {
        match self {
            Self::Charge | Self::SlowCharge | Self::Account | Self::Refuse => true,
            Self::Render | Self::Notify => false,
        }
    }
}

/// A task, and what has to become of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlannedTask {
    pub(super) id: String,
    pub(super) handler: Handler,
    pub(super) payload: String,
    pub(super) lock_key: Option<String>,
    /// When it is enqueued.
    pub(super) at: Duration,
    /// When it is enqueued once more.
    pub(super) again: Option<Duration>,
    /// How long after `at` it may run.
    pub(super) delay: Option<Duration>,
    /// Attempts that fail before one succeeds.
    pub(super) failures: u32,
    /// Whether it fails for good instead of succeeding.
    pub(super) for_good: bool,
}

impl PlannedTask {
    /// Failed attempts that the ledger has to count in the end.
    pub(super) fn failed_attempts(&self) -> u32 {
        self.failures + u32::from(self.for_good)
    }
}

/// The plan for `tasks` tasks over `time`.
pub(super) fn plan(seed: u64, tasks: u32, time: Duration) -> Vec<PlannedTask> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..tasks).map(|n| task(&mut rng, n, tasks, time)).collect()
}

/// The name of a resource, which is also that of its lock.
pub(super) fn resource(n: u32) -> String {
    format!("drill:resource:{n}")
}

fn task(rng: &mut StdRng, n: u32, tasks: u32, time: Duration) -> PlannedTask {
    let share = f64::from(n) / f64::from(tasks);
    let early = share < SETTLED_SHARE;
    let (handler, keyed) = match rng.random_range(0..100) {
        0..33 => (Handler::Charge, false),
        33..50 => (Handler::SlowCharge, false),
        50..60 => (Handler::Account, true),
        60 => (Handler::Refuse, false),
        61..78 => (Handler::Render, false),
        78..81 => (Handler::Render, true),
        81..97 => (Handler::Notify, false),
        _ => (Handler::Notify, true),
    };
    let external = !handler.is_transactional();
    let for_good = handler == Handler::Refuse || (external && rng.random_range(0..100) < 3);
    let flaky = external && !for_good && rng.random_range(0..100) < 8;
    let failures = if flaky { rng.random_range(1..=MOST_FAILURES) } else { 0 };
    // One long task for certain, in the shortest drill too.
    let long = handler == Handler::Render
        && !keyed
        && early
        && (rng.random_range(0..1000) < LONG_PER_MILLE * 6 || n < 20);
    let seconds = if long { LONG_SECONDS } else { rng.random_range(0.02..0.4) };
    let lock_key = keyed.then(|| resource(rng.random_range(0..RESOURCES)));
    let payload = payload(handler, seconds, failures, for_good, lock_key.as_deref());
    let at = time.mul_f64(share);
    let later =
        |rng: &mut StdRng| LATER.min(time.mul_f64(0.25)).mul_f64(rng.random_range(0.1..1.0));
    let again = (early && rng.random_range(0..1000) < TWICE_PER_MILLE).then(|| at + later(rng));
    let delay = (early && rng.random_range(0..1000) < DELAYED_PER_MILLE).then(|| later(rng));
    let id = format!("{}-{n:06}", handler.kind());
    PlannedTask { id, handler, payload, lock_key, at, again, delay, failures, for_good }
}

/// What the handlers of the configuration read.
fn payload(
    handler: Handler,
    seconds: f64,
    failures: u32,
    for_good: bool,
    resource: Option<&str>,
) -> String {
    match handler {
        Handler::Charge | Handler::SlowCharge | Handler::Refuse => "a charge".to_owned(),
        Handler::Account => resource.unwrap_or_default().to_owned(),
        Handler::Render => {
            format!("{seconds:.3} {failures} {}\n", if for_good { 65 } else { 0 })
        }
        Handler::Notify => format!(
            "{:.0} {failures} {} {}",
            seconds.min(0.2) * 1000.0,
            if for_good { 422 } else { 200 },
            resource.unwrap_or("-")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(40);

    #[test]
    fn the_same_seed_is_the_same_plan() {
        assert_eq!(plan(7, 300, TIME), plan(7, 300, TIME));
        assert_ne!(plan(7, 300, TIME), plan(8, 300, TIME));
    }

    #[test]
    fn every_way_through_the_worker_is_met() {
        let plan = plan(1, 1_500, TIME);
        let met = |what: fn(&PlannedTask) -> bool| plan.iter().any(what);
        for kind in ["charge", "slow_charge", "account", "refuse", "render", "notify"] {
            assert!(plan.iter().any(|task| task.handler.kind() == kind), "{kind}");
        }
        assert!(met(|task| task.failures > 0) && met(|task| task.for_good));
        assert!(met(|task| task.again.is_some()) && met(|task| task.delay.is_some()));
        assert!(met(|task| task.lock_key.is_some() && task.handler == Handler::Render));
        assert!(met(|task| task.payload.starts_with("6.000")));
        assert!(plan.iter().all(|task| task.at < TIME));
    }
}

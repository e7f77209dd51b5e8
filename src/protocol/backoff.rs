//! How long to wait before trying a store again: doubling, bounded, with jitter.
//!
//! The jitter is "equal": half of the step is certain, so that a crowd spreads and no retry comes
//! at once.

use std::time::Duration;

/// Bounds of a backoff.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// The first step.
    pub first: Duration,
    /// The largest step.
    pub most: Duration,
}

impl Backoff {
    /// For a single call to a store during an outage.
    pub const STORE: Self =
        Self { first: Duration::from_millis(100), most: Duration::from_secs(2) };

    /// The wait after `failures` failures in a row (1 for the first); `random` is in `[0, 1)`.
    pub fn wait(self, failures: u32, random: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let step = self.first.saturating_mul(1 << doublings).min(self.most);
        step / 2 + (step / 2).mul_f64(random.clamp(0.0, 1.0))
    }
}

/// A uniform spread of `[low, high)`.
pub fn between(low: Duration, high: Duration, random: f64) -> Duration {
    low + high.saturating_sub(low).mul_f64(random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_double_up_to_the_most() {
        let waits: Vec<u128> = [1, 2, 3, 4, 5, 6, 100, u32::MAX]
            .iter()
            .map(|n| Backoff::STORE.wait(*n, 1.0).as_millis())
            .collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 2000, 2000, 2000]);
        assert_eq!(Backoff::STORE.wait(1, 0.0), Duration::from_millis(50));
    }

    #[test]
    fn between_stays_between() {
        let (low, high) = (Duration::from_millis(50), Duration::from_secs(2));
        assert_eq!(between(low, high, 0.0), low);
        assert_eq!(between(low, high, 1.0), high);
        assert_eq!(between(high, low, 0.5), high);
    }
}

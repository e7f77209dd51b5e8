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

/// A wait that grows with the time waited already, so that a crowd asks ever more rarely.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growing {
    /// The shortest step.
    pub first: Duration,
    /// The longest step.
    pub most: Duration,
    /// The part of the step that is waited, in `[0, 1]`.
    pub jitter: f64,
}

/// How often a wait that goes on is told again.
const TOLD_EVERY: Duration = Duration::from_secs(3600);

impl Growing {
    /// Steps between `first` and `most`, of which at least a half is waited; `random` is in `[0, 1)`.
    pub fn new(first: Duration, most: Duration, random: f64) -> Self {
        Self { first, most, jitter: 0.5 + random.clamp(0.0, 1.0) / 2.0 }
    }

    /// The next wait of somebody who has waited for `waited`: half of that again.
    pub fn after(self, waited: Duration) -> Duration {
        (waited / 2).max(self.first).min(self.most).mul_f64(self.jitter)
    }

    /// Whether a wait that began `waited` ago is worth a line: at its first step, and then when
    /// another hour is over. May say so twice in a row.
    pub fn is_news(self, waited: Duration) -> bool {
        let hours = |duration: Duration| duration.as_secs() / TOLD_EVERY.as_secs();
        waited <= self.first / 2 || hours(waited) != hours(waited.saturating_sub(self.most))
    }
}

impl From<Duration> for Growing {
    /// A wait that does not grow.
    fn from(delay: Duration) -> Self {
        Self { first: delay, most: delay, jitter: 1.0 }
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
    fn waits_grow_with_the_time_waited() {
        let wait = Growing::new(Duration::from_millis(50), Duration::from_secs(2), 1.0);
        let after = |ms| wait.after(Duration::from_millis(ms)).as_millis();
        assert_eq!([0, 80, 200, 1_000, 60_000].map(after), [50, 50, 100, 500, 2_000]);
        let hasty = Growing { jitter: 0.5, ..wait };
        assert_eq!(hasty.after(Duration::from_secs(9)), Duration::from_secs(1));
        let fixed = Growing::from(Duration::from_secs(7));
        assert_eq!(fixed.after(Duration::from_secs(99)), Duration::from_secs(7));
        // Ten minutes cost some twenty looks, not six hundred.
        let wait = Growing::new(Duration::from_secs(1), Duration::from_secs(60), 0.5);
        let (mut waited, mut looks, mut news) = (Duration::ZERO, 0, 0);
        while waited < Duration::from_secs(600) {
            news += u32::from(wait.is_news(waited));
            looks += 1;
            waited += wait.after(waited);
        }
        assert!((10..=30).contains(&looks) && news == 1, "{looks} looks, {news} news");
        assert!(
            wait.is_news(Duration::from_secs(3_610)) && !wait.is_news(Duration::from_secs(5_000))
        );
    }

    #[test]
    fn between_stays_between() {
        let (low, high) = (Duration::from_millis(50), Duration::from_secs(2));
        assert_eq!(between(low, high, 0.0), low);
        assert_eq!(between(low, high, 1.0), high);
        assert_eq!(between(high, low, 0.5), high);
    }
}

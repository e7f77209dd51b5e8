//! When a failed task runs again: exponential backoff with full jitter.

use std::time::Duration;

/// Attempts and delays of one kind of task.
///
/// The delay before attempt n + 1 is uniform in `[0, min(max, base × 2^(n−1))]`: "full jitter",
/// which spreads a crowd of retries best (Brooker, "Exponential Backoff And Jitter", 2015).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How many attempts a task has, the first included.
    pub max_attempts: u32,
    /// The ceiling of the first delay.
    pub base: Duration,
    /// The ceiling of every delay.
    pub max: Duration,
}

impl RetryPolicy {
    /// The same policy with the task's own number of attempts, where it names one.
    #[must_use]
    pub fn with_attempts(self, attempts: Option<u32>) -> Self {
        Self { max_attempts: attempts.unwrap_or(self.max_attempts), ..self }
    }

    /// The delay after `attempt` (1 for the first) failed; `random` is uniform in `[0, 1)`.
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(32);
        let ceiling = self.base.saturating_mul(2u32.saturating_pow(doublings)).min(self.max);
        ceiling.mul_f64(random.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy =
        RetryPolicy { max_attempts: 5, base: Duration::from_secs(1), max: Duration::from_secs(60) };

    #[test]
    fn ceiling_doubles_and_is_capped() {
        let ceilings: Vec<u64> = (1..=8).map(|n| POLICY.delay(n, 1.0).as_secs()).collect();
        assert_eq!(ceilings, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn jitter_reaches_down_to_zero() {
        assert_eq!(POLICY.delay(7, 0.0), Duration::ZERO);
        assert_eq!(POLICY.delay(1, 0.5), Duration::from_millis(500));
    }

    #[test]
    fn huge_attempt_numbers_do_not_overflow() {
        assert_eq!(POLICY.delay(u32::MAX, 1.0), Duration::from_secs(60));
    }
}

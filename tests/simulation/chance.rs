//! Chance that falls the same way for the same seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A generator of its own for each purpose, so that one more draw here changes nothing there.
pub(crate) struct Chance(StdRng);

impl Chance {
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        Self(StdRng::seed_from_u64(seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// True with this probability.
    pub(crate) fn hit(&mut self, probability: f64) -> bool {
        self.0.random::<f64>() < probability
    }

    /// From `low` to `high`, both included.
    pub(crate) fn number(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.random::<u64>() % (high - low + 1)
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.number(0, length as u64 - 1)).unwrap()
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    pub(crate) fn ms(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.number(low, high))
    }
}

//! Where the worker's jitter comes from, passed down so that a simulation can replay it.
//!
//! Nothing that has to be unguessable is drawn here: tokens and ids are not.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The source of chance.
#[derive(Clone, Default)]
pub enum Dice {
    /// The thread's generator.
    #[default]
    Thread,
    /// One generator that all clones share, in the order in which they ask.
    Seeded(Arc<Mutex<StdRng>>),
}

impl Dice {
    /// Dice that fall the same way for the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self::Seeded(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// Uniform in `[0, 1)`.
    pub fn fraction(&self) -> f64 {
        match self {
            Self::Thread => rand::random(),
            Self::Seeded(rng) => rng.lock().unwrap_or_else(PoisonError::into_inner).random(),
        }
    }
}

impl fmt::Debug for Dice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thread => "Dice::Thread",
            Self::Seeded(_) => "Dice::Seeded",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_falls_the_same_way() {
        let draw = |seed| {
            let dice = Dice::seeded(seed);
            let other = dice.clone();
            [dice.fraction(), other.fraction(), dice.fraction()]
        };
        assert_eq!(draw(7).map(f64::to_bits), draw(7).map(f64::to_bits));
        assert_ne!(draw(7).map(f64::to_bits), draw(8).map(f64::to_bits));
        assert!((0.0..1.0).contains(&Dice::Thread.fraction()));
    }
}

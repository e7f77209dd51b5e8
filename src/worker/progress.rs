//! Whether the loops come round: what the watchdog is tied to.
//!
//! Each loop marks every turn, and no turn waits longer than [`LONGEST_TURN`] by design, except
//! where it waits for a store, for a phase or for room, which is marked as waiting.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{BootInstant, Clock};

/// The longest turn of a loop that is well.
pub const LONGEST_TURN: Duration = Duration::from_secs(10);

/// How often a loop that waits for a store is marked.
const MARK_EVERY: Duration = Duration::from_secs(2);

/// The mark of one loop.
#[derive(Debug, Clone)]
pub struct Progress {
    clock: Clock,
    last_ms: Arc<AtomicU64>,
}

impl Progress {
    /// A loop that has just come round.
    pub fn new(clock: Clock) -> Self {
        let progress = Self { clock, last_ms: Arc::default() };
        progress.came_round();
        progress
    }

    /// Marks a turn.
    pub fn came_round(&self) {
        let now = self.clock.now().saturating_since(BootInstant::from_boot(Duration::ZERO));
        self.last_ms.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Waits for an answer of a store, whose calls have deadlines of their own, and marks the loop
    /// as alive meanwhile.
    pub async fn waiting<T>(&self, answer: impl Future<Output = T>) -> T {
        tokio::pin!(answer);
        loop {
            if let Ok(answer) = tokio::time::timeout(MARK_EVERY, &mut answer).await {
                return answer;
            }
            self.came_round();
        }
    }

    /// How long ago the loop last came round.
    pub fn silence(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.clock.now().saturating_since(BootInstant::from_boot(last))
    }
}

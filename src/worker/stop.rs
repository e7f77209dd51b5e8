//! The phase as the executor feels it: three tokens that fire and never come back.

use tokio_util::sync::CancellationToken;

use crate::protocol::drain::Phase;

/// Fires as the phase moves on.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// Nothing that has not started its handler starts it.
    pub leaving: CancellationToken,
    /// Handlers must stop.
    pub interrupt: CancellationToken,
    /// Nothing is waited for any more.
    pub abandon: CancellationToken,
}

impl Stop {
    /// Fires what `phase` asks for.
    pub fn publish(&self, phase: Phase) {
        if phase.is_leaving() {
            self.leaving.cancel();
        }
        if phase.interrupts() {
            self.interrupt.cancel();
        }
        if phase.is_over() {
            self.abandon.cancel();
        }
    }
}

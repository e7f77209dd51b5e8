//! A read that waits for entries, and how it is interrupted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The read of one queue, under way or not.
#[derive(Default)]
pub(super) struct Read {
    state: Mutex<ReadState>,
    pub(super) interrupt: Notify,
    pub(super) rested: Notify,
}

/// How it stands with a read.
#[derive(Default)]
pub(super) struct ReadState {
    pub(super) interrupted: bool,
    pub(super) under_way: bool,
}

impl Read {
    pub(super) fn lock(&self) -> MutexGuard<'_, ReadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks a read as under way until it is dropped.
pub(super) struct Reading<'a>(pub(super) &'a Read);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.lock().under_way = false;
        self.0.rested.notify_waiters();
    }
}

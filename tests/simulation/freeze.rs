//! A part of a worker that stands still while its worker is frozen: neither answers nor timers
//! reach it until it thaws, and then all of them at once.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::link::Link;

/// Polls a part of the worker only while that runs.
pub(crate) struct Freezable<F> {
    link: Arc<Link>,
    part: Pin<Box<F>>,
}

impl<F: Future> Freezable<F> {
    pub(crate) fn new(link: &Arc<Link>, part: F) -> Self {
        Self { link: Arc::clone(link), part: Box::pin(part) }
    }
}

impl<F: Future> Future for Freezable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if self.link.wakes_later(context.waker()) {
            return Poll::Pending;
        }
        self.part.as_mut().poll(context)
    }
}

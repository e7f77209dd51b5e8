//! Group commit of whoever is waiting now.
//!
//! Callers ask one by one and each gets its own answer; a few committers take all requests that
//! wait at the moment (up to a limit, and never waiting for more to come) and serve them in one
//! round trip. While that round trip is under way the next group gathers by itself, so the group
//! grows with the load and a lone caller waits for nobody.
//!
//! A request that was submitted is always served to its end, even if its caller has gone: a
//! cancelled caller must not cancel a transaction half-way.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinSet;

/// One caller's request and where its answer goes.
pub struct Pending<Q, A> {
    /// What is asked.
    pub request: Q,
    reply: oneshot::Sender<A>,
}

impl<Q, A> Pending<Q, A> {
    /// Answers the caller; if it has gone, the answer goes nowhere.
    pub fn answer(self, answer: A) {
        let _ = self.reply.send(answer);
    }

    /// Takes the request out, leaving the place for the answer.
    pub fn split(self) -> (Q, Reply<A>) {
        (self.request, Reply(self.reply))
    }
}

/// Where the answer to a request goes.
pub struct Reply<A>(oneshot::Sender<A>);

impl<A> Reply<A> {
    /// Answers the caller; if it has gone, the answer goes nowhere.
    pub fn answer(self, answer: A) {
        let _ = self.0.send(answer);
    }
}

/// The callers' side. Its owner lets every call come back before dropping it: what is under way
/// then is aborted.
pub struct Coalescer<Q, A> {
    requests: mpsc::UnboundedSender<Pending<Q, A>>,
    _committers: JoinSet<()>,
}

impl<Q: Send + 'static, A: Send + 'static> Coalescer<Q, A> {
    /// Starts `committers` tasks that serve groups of up to `limit` requests with `serve`, which
    /// must answer each of them. The queue of waiting requests is bounded by the number of tasks in
    /// flight, each of which waits for at most one answer.
    pub fn start<F, Fut>(committers: usize, limit: usize, serve: F) -> Self
    where
        F: Fn(Vec<Pending<Q, A>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let (requests, receiver) = mpsc::unbounded_channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let serve = Arc::new(serve);
        let mut tasks = JoinSet::new();
        for _ in 0..committers.max(1) {
            let receiver = Arc::clone(&receiver);
            let serve = Arc::clone(&serve);
            tasks.spawn(async move {
                loop {
                    let mut group = Vec::with_capacity(limit);
                    // The lock is held while waiting: the committers take turns at the queue.
                    if receiver.lock().await.recv_many(&mut group, limit).await == 0 {
                        return;
                    }
                    serve(group).await;
                }
            });
        }
        Self { requests, _committers: tasks }
    }

    /// Submits a request and waits for its answer. `None` if the committer went away without an
    /// answer, which happens only when the runtime shuts down or `serve` panicked.
    pub async fn call(&self, request: Q) -> Option<A> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Pending { request, reply }).ok()?;
        answer.await.ok()
    }
}

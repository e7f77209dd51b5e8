//! Group commit of whoever is waiting now.
//!
//! Callers ask one by one and each gets its own answer; a few committers take all requests that
//! wait at the moment (up to a limit) and serve them in one round trip. While that round trip is
//! under way the next group gathers by itself, so the group grows with the load and a lone caller
//! waits for nobody. Where a round trip costs much more than a request, small groups may be kept
//! apart in time: see [`Coalescer::spaced`].
//!
//! A request that was submitted is always served, even if its caller has gone: a cancelled caller
//! must not cancel a transaction half-way. Only who serves may take that for a reason to give up:
//! see [`Reply::unwanted`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// A group of this many leaves at once, however short ago the last one left.
const ENOUGH: usize = 16;

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

    /// Whether the caller has gone.
    pub fn is_unwanted(&self) -> bool {
        self.0.is_closed()
    }

    /// Resolves when the caller has gone.
    pub async fn unwanted(&mut self) {
        self.0.closed().await;
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
        Self::spaced(committers, limit, Duration::ZERO, serve)
    }

    /// The same, but a group of fewer than 16 leaves no sooner than `spacing` after the one
    /// before it, and takes along who comes meanwhile: at most `1 / spacing` small groups a second.
    /// Only those wait who come in quick succession, up to `spacing` and a millisecond, the step of
    /// the clock behind it.
    pub fn spaced<F, Fut>(committers: usize, limit: usize, spacing: Duration, serve: F) -> Self
    where
        F: Fn(Vec<Pending<Q, A>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let (requests, receiver) = mpsc::unbounded_channel();
        let door = Arc::new(Mutex::new(Door { receiver, spacing, opens: None }));
        let serve = Arc::new(serve);
        let mut tasks = JoinSet::new();
        for _ in 0..committers.max(1) {
            let door = Arc::clone(&door);
            let serve = Arc::clone(&serve);
            tasks.spawn(async move {
                loop {
                    // Held while waiting: the committers take turns at the door.
                    let group = door.lock().await.group(limit).await;
                    if group.is_empty() {
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

/// Where groups gather and leave.
struct Door<Q, A> {
    receiver: mpsc::UnboundedReceiver<Pending<Q, A>>,
    spacing: Duration,
    /// When a small group may leave.
    opens: Option<Instant>,
}

impl<Q, A> Door<Q, A> {
    /// The next group; empty when all callers have gone for good.
    async fn group(&mut self, limit: usize) -> Vec<Pending<Q, A>> {
        let mut group = Vec::with_capacity(limit);
        self.receiver.recv_many(&mut group, limit).await;
        if self.spacing.is_zero() {
            return group;
        }
        if let Some(opens) = self.opens {
            while group.len() < ENOUGH.min(limit) {
                let room = limit - group.len();
                let more = self.receiver.recv_many(&mut group, room);
                if !matches!(timeout_at(opens, more).await, Ok(1..)) {
                    break;
                }
            }
        }
        self.opens = Some(Instant::now() + self.spacing);
        group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACING: Duration = Duration::from_millis(10);

    /// Answers each request with the size of its group and when that left.
    fn sizes(committers: usize, spacing: Duration) -> Coalescer<(), (usize, Instant)> {
        Coalescer::spaced(committers, 64, spacing, |group: Vec<Pending<(), _>>| async move {
            let answer = (group.len(), Instant::now());
            for one in group {
                one.answer(answer);
            }
        })
    }

    async fn ask(all: &Coalescer<(), (usize, Instant)>, callers: usize) -> Vec<(usize, Instant)> {
        let calls = (0..callers).map(|_| all.call(()));
        futures_util::future::join_all(calls).await.into_iter().flatten().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_alone_waits_for_nobody() {
        let all = sizes(2, SPACING);
        for _ in 0..3 {
            let came = Instant::now();
            assert_eq!(ask(&all, 1).await, [(1, came)]);
            tokio::time::advance(SPACING * 2).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn small_groups_keep_their_distance_and_grow_by_it() {
        let all = sizes(2, SPACING);
        let first = ask(&all, 1).await[0].1;
        let later = async {
            tokio::time::sleep(SPACING / 2).await;
            ask(&all, 3).await
        };
        let (soon, later) = tokio::join!(ask(&all, 2), later);
        assert_eq!((soon.len(), later.len()), (2, 3));
        for (size, left) in soon.into_iter().chain(later) {
            assert_eq!((size, left), (5, first + SPACING));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_group_leaves_at_once() {
        let all = sizes(2, SPACING);
        let first = ask(&all, 1).await[0].1;
        assert_eq!(ask(&all, ENOUGH).await, vec![(ENOUGH, first); ENOUGH]);
    }

    #[tokio::test(start_paused = true)]
    async fn without_spacing_nobody_waits() {
        let all = sizes(1, Duration::ZERO);
        let first = ask(&all, 1).await[0].1;
        assert_eq!(ask(&all, 1).await, [(1, first)]);
    }
}

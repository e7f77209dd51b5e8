//! One poll: a group of locks is put to all nodes at once, one script call each.
//!
//! Each lock is answered as soon as its votes decide, so a node that is dead or paused slows nothing
//! that the others can decide. Invariants: what did not win is deleted on every node that granted
//! it, late answers included; nothing is sent to a node once a lock of the group has been answered,
//! so that no attempt can overtake a release.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::member::{Answers, Failed, Member};
use super::node::Key;
use super::nodes::{Nodes, told};
use crate::clock::BootInstant;
use crate::coalesce::{Pending, Reply};
use crate::connection::RedisError;
use crate::domain::LockToken;
use crate::lease::{LeaseError, Lock};
use crate::protocol::quorum::{Ballot, Decision, decide, validity};

/// What came of one attempt.
pub(super) enum Attempt {
    /// Ours.
    Granted(Lock),
    /// One rival has it on a majority, for this long.
    Taken(Option<Duration>),
    /// Nobody has a majority; the nodes are free after this long.
    Split(Option<Duration>),
}

/// Puts a group to the nodes, and answers each of its locks.
pub(super) async fn acquire(
    nodes: Arc<Nodes>,
    pending: Vec<Pending<Arc<str>, Result<Attempt, LeaseError>>>,
) {
    let (names, replies): (Vec<_>, Vec<_>) = pending.into_iter().map(Pending::split).unzip();
    let tokens = names.iter().map(|_| LockToken::random()).collect();
    let group = Arc::new(Group { names, tokens });
    let started = nodes.clock.now();
    let (answer, mut answers) = mpsc::channel(nodes.members.len());
    let (counted, count) = watch::channel(Count::Open);
    for (at, member) in nodes.members.iter().enumerate() {
        let (group, answer, count) = (Arc::clone(&group), answer.clone(), count.clone());
        nodes.spawn(ask(Arc::clone(member), at, group, answer, count));
    }
    drop(answer);
    let mut poll = Poll::new(&nodes, group, started, replies);
    while poll.open > 0
        && let Some((at, answer)) = answers.recv().await
    {
        poll.hear(at, answer);
        poll.answer_winners(&counted);
    }
    counted.send_replace(Count::Over(poll.lost()));
    poll.answer_others();
    nodes.tell_news();
}

/// A group that is put to the nodes.
struct Group {
    names: Vec<Arc<str>>,
    tokens: Vec<LockToken>,
}

impl Group {
    fn keys(&self) -> Vec<Key<'_>> {
        self.names.iter().map(|name| &**name).zip(self.tokens.iter().copied()).collect()
    }

    /// Those that did not win.
    fn lost(&self, lost: &[bool]) -> Vec<Key<'_>> {
        self.keys().into_iter().zip(lost).filter(|(_, lost)| **lost).map(|(key, _)| key).collect()
    }
}

/// How far the count of a group has come.
#[derive(Clone)]
enum Count {
    Open,
    /// A lock has been answered: nothing more is sent.
    Closed,
    /// All have been; which did not win.
    Over(Arc<[bool]>),
}

type Heard = (usize, Result<Answers, RedisError>);

/// Puts a group to one node; deletes there what did not win.
async fn ask(
    member: Arc<Member>,
    at: usize,
    group: Arc<Group>,
    answers: mpsc::Sender<Heard>,
    mut count: watch::Receiver<Count>,
) {
    let keys = group.keys();
    let mut closing = count.clone();
    let closed = async {
        // The sender goes away only with the count.
        let _ = closing.wait_for(|count| !matches!(count, Count::Open)).await;
    };
    let (answer, sent) = match member.acquire(&keys, closed).await {
        Ok(answer) => (Ok(answer), true),
        Err(Failed { error, sent }) => (Err(error), sent),
    };
    // Nobody listens once the count is over.
    let _ = answers.send((at, answer)).await;
    if !sent {
        return;
    }
    let lost = match count.wait_for(|count| matches!(count, Count::Over(_))).await {
        Ok(count) => match &*count {
            Count::Over(lost) => group.lost(lost),
            Count::Open | Count::Closed => Vec::new(),
        },
        // The count was given up with the store.
        Err(_) => Vec::new(),
    };
    if !lost.is_empty() {
        // Where this fails, the time to live ends the lock.
        let _ = member.release(&lost).await;
    }
}

/// The count of a group.
struct Poll<'a> {
    nodes: &'a Nodes,
    group: Arc<Group>,
    started: BootInstant,
    replies: Vec<Option<Reply<Result<Attempt, LeaseError>>>>,
    /// For each lock a ballot of each node.
    ballots: Vec<Vec<Ballot>>,
    decisions: Vec<Decision>,
    /// How many are not decided.
    open: usize,
    /// Which nodes have no vote, and why.
    away: Vec<String>,
}

impl<'a> Poll<'a> {
    fn new(
        nodes: &'a Nodes,
        group: Arc<Group>,
        started: BootInstant,
        replies: Vec<Reply<Result<Attempt, LeaseError>>>,
    ) -> Self {
        let open = replies.len();
        Self {
            nodes,
            group,
            started,
            ballots: vec![vec![Ballot::Pending; nodes.members.len()]; open],
            decisions: vec![Decision::Open; open],
            replies: replies.into_iter().map(Some).collect(),
            open,
            away: Vec::new(),
        }
    }

    fn hear(&mut self, at: usize, answer: Result<Answers, RedisError>) {
        let votes = match answer {
            Ok(Answers { votes, counts: true }) => votes,
            Ok(Answers { counts: false, .. }) => {
                self.away.push(told(&self.nodes.members[at].too_young()));
                Vec::new()
            }
            Err(error) => {
                self.away.push(told(&error));
                Vec::new()
            }
        };
        let mut votes = votes.into_iter();
        for (ballots, decision) in self.ballots.iter_mut().zip(&mut self.decisions) {
            ballots[at] = votes.next().map_or(Ballot::Absent, Ballot::Cast);
            *decision = decide(ballots);
        }
        self.open = self.decisions.iter().filter(|one| **one == Decision::Open).count();
    }

    /// Answers what is won at once; what is lost waits until its deletion has been arranged.
    fn answer_winners(&mut self, counted: &watch::Sender<Count>) {
        let now = self.nodes.clock.now();
        let elapsed = now.saturating_since(self.started);
        let valid_until = now + validity(self.nodes.ttl, elapsed);
        for (at, decision) in self.decisions.iter().enumerate() {
            if *decision != Decision::Won {
                continue;
            }
            let Some(reply) = self.replies[at].take() else { continue };
            counted.send_if_modified(|count| {
                let open = matches!(count, Count::Open);
                if open {
                    *count = Count::Closed;
                }
                open
            });
            let (name, token) = (self.group.names[at].as_ref().to_owned(), self.group.tokens[at]);
            reply.answer(Ok(Attempt::Granted(Lock { name, token, valid_until })));
        }
    }

    fn lost(&self) -> Arc<[bool]> {
        self.decisions.iter().map(|decision| *decision != Decision::Won).collect()
    }

    fn answer_others(self) {
        for (reply, decision) in self.replies.into_iter().zip(self.decisions) {
            let Some(reply) = reply else { continue };
            reply.answer(match decision {
                Decision::Taken(remaining) => Ok(Attempt::Taken(remaining)),
                Decision::Split(remaining) => Ok(Attempt::Split(remaining)),
                Decision::NoQuorum | Decision::Open | Decision::Won => {
                    Err(self.nodes.no_quorum(self.away.clone()))
                }
            });
        }
    }
}

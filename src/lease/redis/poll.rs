//! One poll: a group of locks is put to all nodes at once, one script call each.
//!
//! Each lock is answered as soon as its votes decide, so a node that is dead or paused slows nothing
//! that the others can decide. Invariants: what did not win is deleted on every node that granted
//! it, late answers included, and before the answer on those that were heard, so that a second try
//! does not meet the first; nothing is sent to a node once a lock of the group has been answered, so
//! that no attempt can overtake a release.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::member::{Answers, Failed, Member};
use super::node::Key;
use super::nodes::Nodes;
use crate::clock::BootInstant;
use crate::coalesce::{Pending, Reply};
use crate::connection::RedisError;
use crate::domain::LockToken;
use crate::lease::{LeaseError, Lock};
use crate::protocol::quorum::{Ballot, Decision, Vote, decide, validity};

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
    let (word, mut words) = mpsc::channel(2 * nodes.members.len());
    let (counted, count) = watch::channel(Count::Open);
    for (at, member) in nodes.members.iter().enumerate() {
        let (group, word, count) = (Arc::clone(&group), word.clone(), count.clone());
        nodes.spawn(ask(Arc::clone(member), at, group, word, count));
    }
    drop(word);
    let mut poll = Poll::new(&nodes, group, started, replies);
    while poll.open > 0
        && let Some(word) = words.recv().await
    {
        poll.hear(word);
        poll.answer_winners(&counted);
    }
    counted.send_replace(Count::Over(poll.lost()));
    // Each node that answered gives back within its timeout.
    while poll.has_lost()
        && poll.holding.contains(&true)
        && let Some(word) = words.recv().await
    {
        if let Word::GivenBack(_) = word {
            poll.hear(word);
        }
    }
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

/// What the task of a node tells.
enum Word {
    /// The node's answer, or why there is none.
    Answer(usize, Result<Answers, RedisError>),
    /// What it granted and did not win is deleted there.
    GivenBack(usize),
}

/// Puts a group to one node; deletes there what did not win.
async fn ask(
    member: Arc<Member>,
    at: usize,
    group: Arc<Group>,
    words: mpsc::Sender<Word>,
    mut count: watch::Receiver<Count>,
) {
    let keys = group.keys();
    let mut closing = count.clone();
    let closed = async {
        // The sender goes away only with the count.
        let _ = closing.wait_for(|count| !matches!(count, Count::Open)).await;
    };
    let (answer, may_hold): (_, Vec<bool>) = match member.acquire(&keys, closed).await {
        Ok(answer) => {
            let granted = answer.votes.iter().map(|vote| *vote == Vote::Granted).collect();
            (Ok(answer), granted)
        }
        Err(Failed { error, sent }) => (Err(error), vec![sent; keys.len()]),
    };
    // Nobody listens any more once the count is over.
    let _ = words.send(Word::Answer(at, answer)).await;
    if !may_hold.contains(&true) {
        let _ = words.send(Word::GivenBack(at)).await;
        return;
    }
    let lost: Vec<Key<'_>> = match count.wait_for(|count| matches!(count, Count::Over(_))).await {
        Ok(count) => match &*count {
            Count::Over(lost) => {
                let back = lost.iter().zip(&may_hold).map(|(lost, may_hold)| *lost && *may_hold);
                keys.iter().zip(back).filter(|(_, back)| *back).map(|(key, _)| *key).collect()
            }
            Count::Open | Count::Closed => Vec::new(),
        },
        // The count was given up with the store.
        Err(_) => Vec::new(),
    };
    if !lost.is_empty() {
        // Where this fails, the time to live ends the lock.
        let _ = member.release(&lost).await;
    }
    let _ = words.send(Word::GivenBack(at)).await;
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
    /// Which nodes answered, and may still hold what was lost.
    holding: Vec<bool>,
    /// Which nodes have no vote, and why.
    away: Vec<RedisError>,
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
            holding: vec![false; nodes.members.len()],
            away: Vec::new(),
        }
    }

    fn hear(&mut self, word: Word) {
        let (at, answer) = match word {
            Word::Answer(at, answer) => (at, answer),
            Word::GivenBack(at) => {
                self.holding[at] = false;
                return;
            }
        };
        self.holding[at] = answer.is_ok();
        let votes = match answer {
            Ok(Answers { votes, counts: true }) => votes,
            Ok(Answers { counts: false, .. }) => {
                self.away.push(self.nodes.members[at].too_young());
                Vec::new()
            }
            Err(error) => {
                self.away.push(error);
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

    /// Answers what is won at once; what is lost waits until it is given back.
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

    fn has_lost(&self) -> bool {
        self.decisions.iter().any(|decision| *decision != Decision::Won)
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

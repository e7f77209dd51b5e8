//! Locks on a majority of independent Redis masters (Redlock).
//!
//! A group of locks is put to all nodes at once, one script call each. Each lock is answered as
//! soon as its votes decide, so a node that is dead or paused slows nothing that the others can
//! decide. Invariants: what did not win is deleted on every node that granted it, late answers
//! included; nothing is sent to a node once a lock of the group has been answered, so that no
//! attempt can overtake a release; a failed renewal releases nothing.
//!
//! Releases and renewals wait for every node within its timeout: after them nothing may be under
//! way that would bring a released lock back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::member::{Answers, Failed, Limits, Member};
use super::node::Key;
use super::{MAX_GROUP, if_still_valid, key};
use crate::clock::{BootInstant, Clock};
use crate::coalesce::{Coalescer, Pending, Reply};
use crate::connection::{RedisError, RedisTarget};
use crate::domain::LockToken;
use crate::lease::{Acquired, LeaseError, LeaseStore, Lock, Renewal};
use crate::protocol::quorum::{Ballot, Decision, Hold, Retry, confirm, decide, majority, validity};

/// How a store on several nodes is set up.
#[derive(Debug, Clone)]
pub struct QuorumLeaseOptions {
    /// Which servers: an odd number, at least three, none of them a replica of another.
    pub targets: Vec<RedisTarget>,
    /// How long a lock lives unless it is renewed.
    pub ttl: Duration,
    /// How long a call may wait for one node. Much shorter than `ttl`.
    pub node_timeout: Duration,
    /// How long connecting to a node may take, in the background.
    pub connect_timeout: Duration,
    /// What follows when rivals split the votes.
    pub retry: Retry,
    /// The most locks of one round trip; below 1000.
    pub group: usize,
    /// Groups that may be under way at once, for acquiring and for releasing each.
    pub committers: usize,
    /// The clock that validity is measured on.
    pub clock: Clock,
}

impl QuorumLeaseOptions {
    /// The defaults: locks live 5 s, 50 ms for a node, 2 s to connect, 3 retries after 50 to
    /// 100 ms, groups of 256, 2 committers.
    pub fn new(targets: Vec<RedisTarget>, clock: Clock) -> Self {
        let pause = Duration::from_millis(50);
        Self {
            targets,
            ttl: Duration::from_secs(5),
            node_timeout: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(2),
            retry: Retry { count: 3, delay: pause, jitter: pause },
            group: 256,
            committers: 2,
            clock,
        }
    }
}

/// Locks on a majority of several Redis masters.
pub struct QuorumLeases {
    nodes: Arc<Nodes>,
    retry: Retry,
    group: usize,
    acquiring: Coalescer<Arc<str>, Result<Attempt, LeaseError>>,
    releasing: Coalescer<Lock, Result<(), LeaseError>>,
    _keepers: JoinSet<()>,
}

/// What came of one attempt.
enum Attempt {
    /// Ours.
    Granted(Lock),
    /// One rival has it on a majority, for this long.
    Taken(Option<Duration>),
    /// Nobody has a majority; the nodes are free after this long.
    Split(Option<Duration>),
}

impl QuorumLeases {
    /// A store that connects at its first call. Must be made within the runtime that uses it.
    pub fn new(options: QuorumLeaseOptions) -> Self {
        let QuorumLeaseOptions { ttl, node_timeout, connect_timeout, clock, .. } = options;
        let limits = Limits { ttl, node_timeout, connect_timeout, clock };
        let member = |target| Arc::new(Member::new(target, limits));
        let members: Vec<_> = options.targets.into_iter().map(member).collect();
        let mut keepers = JoinSet::new();
        for member in &members {
            let member = Arc::clone(member);
            keepers.spawn(async move { member.keep().await });
        }
        let nodes = Arc::new(Nodes { members, ttl, clock, voters: Mutex::default() });
        let (acquirer, releaser) = (Arc::clone(&nodes), Arc::clone(&nodes));
        let group = options.group.clamp(1, MAX_GROUP);
        Self {
            nodes,
            retry: options.retry,
            group,
            acquiring: Coalescer::start(options.committers, group, move |group| {
                acquire(Arc::clone(&acquirer), group)
            }),
            releasing: Coalescer::start(options.committers, group, move |group| {
                release(Arc::clone(&releaser), group)
            }),
            _keepers: keepers,
        }
    }

    fn stopped(&self) -> LeaseError {
        self.nodes.no_quorum(vec!["the lock store is being shut down".into()])
    }
}

#[async_trait]
impl LeaseStore for QuorumLeases {
    async fn acquire(&self, name: &str) -> Result<Acquired, LeaseError> {
        let mut done = 0;
        loop {
            let attempt = self.acquiring.call(name.into()).await;
            let last = match attempt.unwrap_or_else(|| Err(self.stopped()))? {
                Attempt::Granted(lock) => if_still_valid(self, lock, self.nodes.clock).await,
                Attempt::Taken(remaining) => return Ok(self.nodes.taken(remaining)),
                Attempt::Split(remaining) => Ok(self.nodes.taken(remaining)),
            };
            let again = !matches!(last, Ok(Acquired::Granted(_)));
            match self.retry.wait(done, rand::random()).filter(|_| again) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return last,
            }
            done += 1;
        }
    }

    async fn release(&self, lock: &Lock) -> Result<(), LeaseError> {
        self.releasing.call(lock.clone()).await.unwrap_or_else(|| Err(self.stopped()))
    }

    async fn renew(&self, locks: &[Lock]) -> Result<Vec<Renewal>, LeaseError> {
        let mut renewals = Vec::with_capacity(locks.len());
        for part in locks.chunks(self.group) {
            let keys: Vec<Key<'_>> = part.iter().map(key).collect();
            renewals.extend(self.nodes.renew(&keys).await?);
        }
        Ok(renewals)
    }

    async fn check(&self) -> Result<(), LeaseError> {
        let members = &self.nodes.members;
        let mut checks: FuturesUnordered<_> = members.iter().map(|one| one.check()).collect();
        let mut errors = Vec::new();
        let mut up = 0;
        while let Some(check) = checks.next().await {
            match check {
                Ok(()) => up += 1,
                Err(error) => errors.push(error),
            }
            if up == majority(members.len()) {
                return Ok(());
            }
        }
        self.nodes.need_majority(errors.iter().map(Some))
    }
}

/// The nodes, and the tasks that put a group to one of them each.
struct Nodes {
    members: Vec<Arc<Member>>,
    ttl: Duration,
    clock: Clock,
    voters: Mutex<JoinSet<()>>,
}

impl Nodes {
    fn no_quorum(&self, away: Vec<String>) -> LeaseError {
        let nodes = self.members.len();
        LeaseError::NoQuorum { nodes, needed: majority(nodes), away }
    }

    /// An error unless a majority has none. One for each node.
    fn need_majority<'a>(
        &self,
        errors: impl Iterator<Item = Option<&'a RedisError>>,
    ) -> Result<(), LeaseError> {
        let away: Vec<String> = errors.flatten().map(told).collect();
        let nodes = self.members.len();
        if nodes - away.len() >= majority(nodes) { Ok(()) } else { Err(self.no_quorum(away)) }
    }

    fn taken(&self, remaining: Option<Duration>) -> Acquired {
        Acquired::Taken { remaining: remaining.unwrap_or(self.ttl) }
    }

    /// Starts a task of a group, and forgets those that have ended. A task lives for three node
    /// timeouts at most.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut voters = self.voters.lock().unwrap_or_else(PoisonError::into_inner);
        while voters.try_join_next().is_some() {}
        voters.spawn(task);
    }

    async fn renew(&self, keys: &[Key<'_>]) -> Result<Vec<Renewal>, LeaseError> {
        let answers = join_all(self.members.iter().map(|member| member.renew(keys))).await;
        self.need_majority(answers.iter().map(|answer| answer.as_ref().err()))?;
        let renewal = |at: usize| {
            let hold = |answer: &Result<(bool, Vec<Hold>), RedisError>| match answer {
                Ok((true, holds)) => holds.get(at).copied().unwrap_or(Hold::Unknown),
                Ok((false, _)) | Err(_) => Hold::Unknown,
            };
            match confirm(&answers.iter().map(hold).collect::<Vec<_>>()) {
                Hold::Ours => Renewal::Renewed,
                Hold::Foreign => Renewal::Foreign,
                Hold::Unknown => Renewal::Unconfirmed,
            }
        };
        Ok((0..keys.len()).map(renewal).collect())
    }

    /// Tells once when a node goes away or comes back; the others go on without it.
    fn tell_news(&self) {
        for member in &self.members {
            match member.news() {
                Some(Ok(())) => tracing::info!("lock node {} is back", member.address()),
                Some(Err(error)) => {
                    tracing::warn!("a lock node is away: {}", told(&error));
                }
                None => {}
            }
        }
    }
}

/// A node's error, with the names that the settings of nodes have.
fn told(error: &RedisError) -> String {
    match error {
        RedisError::Unavailable { address, message } => format!("{address}: {message}"),
        RedisError::Misconfigured { address, message } => {
            format!("{address} {}", message.replace("`redis.", "`lease."))
        }
        RedisError::Timeout { address, .. } => {
            format!("{address}: no answer within lease.node_timeout")
        }
        RedisError::Refused { .. } => error.to_string(),
    }
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

async fn acquire(nodes: Arc<Nodes>, pending: Vec<Pending<Arc<str>, Result<Attempt, LeaseError>>>) {
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
    let mut polls = Polls::new(&nodes, group, started, replies);
    while polls.open > 0
        && let Some((at, answer)) = answers.recv().await
    {
        polls.hear(at, answer);
        polls.answer_winners(&counted);
    }
    counted.send_replace(Count::Over(polls.lost()));
    polls.answer_others();
    nodes.tell_news();
}

/// The count of a group.
struct Polls<'a> {
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

impl<'a> Polls<'a> {
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

async fn release(nodes: Arc<Nodes>, group: Vec<Pending<Lock, Result<(), LeaseError>>>) {
    let keys: Vec<Key<'_>> = group.iter().map(|one| key(&one.request)).collect();
    let answers = join_all(nodes.members.iter().map(|member| member.release(&keys))).await;
    drop(keys);
    let answer = nodes.need_majority(answers.iter().map(|answer| answer.as_ref().err()));
    for one in group {
        one.answer(answer.clone());
    }
}

//! The arithmetic of a lock that a majority of independent nodes must grant (Redlock).
//!
//! Two rivals cannot both win, since each node gives a key to one of them and two majorities share
//! a node. That holds only while nodes remember: one that restarted within the time to live of a
//! lock may have forgotten it, and has no vote until every lock that it forgot has ended
//! ([`silence_after_start`]). What a majority granted counts for less than its time to live: the
//! time that the granting took, and a drift for clocks that tick unevenly, are taken off.
//!
//! See <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>.

use std::time::Duration;

use super::backoff;

/// The fixed part of the drift: expiry has a resolution of a millisecond, on both sides.
const DRIFT_FLOOR: Duration = Duration::from_millis(2);

/// A node tells its uptime in whole seconds, so it may have started up to this much later.
const UPTIME_RESOLUTION: Duration = Duration::from_secs(1);

/// How many of `nodes` are more than half.
pub const fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// How unevenly two clocks may tick during `ttl`: 1 % + 2 ms.
pub fn drift(ttl: Duration) -> Duration {
    ttl / 100 + DRIFT_FLOOR
}

/// How long a lock counts as ours, `elapsed` after the first command was sent; zero when spent.
pub fn validity(ttl: Duration, elapsed: Duration) -> Duration {
    ttl.saturating_sub(elapsed).saturating_sub(drift(ttl))
}

/// How much longer a node that says it has been up for `uptime` has no vote.
pub fn silence_after_start(ttl: Duration, uptime: Duration) -> Duration {
    (ttl + drift(ttl) + UPTIME_RESOLUTION).saturating_sub(uptime)
}

/// One node's word on one lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vote {
    /// The lock is ours there.
    Granted,
    /// Somebody else has it there.
    Taken {
        /// Who: the same number for the same token.
        rival: u64,
        /// For how long; `None` if it has no end.
        remaining: Option<Duration>,
    },
}

/// What is known of one node's vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ballot {
    /// Not heard yet.
    Pending,
    /// Not heard in time, or from a node that has no vote.
    Absent,
    /// Heard.
    Cast(Vote),
}

/// What the votes on one lock amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Votes that are pending may still change it.
    Open,
    /// A majority granted it.
    Won,
    /// One rival has it on a majority.
    Taken(Option<Duration>),
    /// A majority answered, and neither we nor anybody else is known to have one.
    Split(Option<Duration>),
    /// No majority answered.
    NoQuorum,
}

/// Counts the ballots, one for each node. The durations say when enough nodes will be free for a
/// majority, as far as is known, if nobody renews.
pub fn decide(ballots: &[Ballot]) -> Decision {
    let needed = majority(ballots.len());
    let count = |is: fn(&Ballot) -> bool| ballots.iter().filter(|ballot| is(ballot)).count();
    let granted = count(|ballot| *ballot == Ballot::Cast(Vote::Granted));
    let pending = count(|ballot| *ballot == Ballot::Pending);
    let taken = count(|ballot| matches!(ballot, Ballot::Cast(Vote::Taken { .. })));
    if granted >= needed {
        Decision::Won
    } else if granted + taken + pending < needed {
        Decision::NoQuorum
    } else if granted + pending >= needed {
        Decision::Open
    } else if strongest_rival(ballots) >= needed {
        Decision::Taken(free_in(ballots, needed))
    } else if strongest_rival(ballots) + pending >= needed || granted + taken < needed {
        Decision::Open
    } else {
        Decision::Split(free_in(ballots, needed))
    }
}

/// On how many nodes the rival who has most of them has the lock.
fn strongest_rival(ballots: &[Ballot]) -> usize {
    let rivals = || {
        ballots.iter().filter_map(|ballot| match ballot {
            Ballot::Cast(Vote::Taken { rival, .. }) => Some(*rival),
            Ballot::Cast(Vote::Granted) | Ballot::Pending | Ballot::Absent => None,
        })
    };
    rivals().map(|rival| rivals().filter(|other| *other == rival).count()).max().unwrap_or(0)
}

/// When `needed` nodes will be free; what was granted is given back at once.
fn free_in(ballots: &[Ballot], needed: usize) -> Option<Duration> {
    let mut ends: Vec<Duration> = ballots
        .iter()
        .filter_map(|ballot| match ballot {
            Ballot::Cast(Vote::Granted) => Some(Duration::ZERO),
            Ballot::Cast(Vote::Taken { remaining, .. }) => *remaining,
            Ballot::Pending | Ballot::Absent => None,
        })
        .collect();
    ends.sort_unstable();
    ends.get(needed - 1).copied()
}

/// One node's word on the renewal of one lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Ours, and extended.
    Ours,
    /// Another token is there.
    Foreign,
    /// Not heard in time, or from a node that has no vote.
    Unknown,
}

/// What a majority says about a renewal; [`Hold::Unknown`] where it says nothing.
pub fn confirm(holds: &[Hold]) -> Hold {
    let needed = majority(holds.len());
    let has = |hold: Hold| holds.iter().filter(|one| **one == hold).count() >= needed;
    if has(Hold::Ours) {
        Hold::Ours
    } else if has(Hold::Foreign) {
        Hold::Foreign
    } else {
        Hold::Unknown
    }
}

/// How often an attempt that nobody won is repeated, and after what wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Repetitions after the first attempt.
    pub count: u32,
    /// The least wait.
    pub delay: Duration,
    /// What a random part is added of, so that rivals who split the votes do not meet again.
    pub jitter: Duration,
}

impl Retry {
    /// The wait before the next attempt after `done` repetitions; `None` when they are used up.
    /// `random` is in `[0, 1)`.
    pub fn wait(&self, done: u32, random: f64) -> Option<Duration> {
        let next = || backoff::between(self.delay, self.delay + self.jitter, random);
        (done < self.count).then(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    const GRANTED: Ballot = Ballot::Cast(Vote::Granted);

    fn taken(rival: u64, ms: u64) -> Ballot {
        Ballot::Cast(Vote::Taken { rival, remaining: Some(MS(ms)) })
    }

    /// All sequences of `length` out of `choices`.
    fn all<T: Copy>(choices: &[T], length: usize) -> Vec<Vec<T>> {
        (0..length).fold(vec![Vec::new()], |shorter, _| {
            let longer = |one: &Vec<T>| {
                choices.iter().map(|choice| [one.as_slice(), &[*choice]].concat()).collect()
            };
            shorter.iter().flat_map(|one| -> Vec<Vec<T>> { longer(one) }).collect()
        })
    }

    #[test]
    fn a_majority_is_more_than_half() {
        let majorities: Vec<usize> = (1..=7).map(majority).collect();
        assert_eq!(majorities, [1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn drift_is_one_percent_and_two_milliseconds() {
        assert_eq!(validity(MS(5_000), Duration::ZERO), MS(4_948));
        assert_eq!(validity(MS(5_000), MS(1_000)), MS(3_948));
        assert_eq!(validity(MS(1), Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn what_took_too_long_is_worth_nothing() {
        assert_eq!(validity(MS(1_000), MS(988)), Duration::ZERO);
        assert_eq!(validity(MS(1_000), MS(987)), MS(1));
        assert_eq!(validity(MS(1_000), Duration::MAX), Duration::ZERO);
    }

    #[test]
    fn a_node_votes_when_all_that_it_forgot_has_ended() {
        let ttl = MS(5_000);
        assert_eq!(silence_after_start(ttl, Duration::ZERO), MS(6_052));
        assert_eq!(silence_after_start(ttl, MS(6_000)), MS(52));
        assert_eq!(silence_after_start(ttl, MS(7_000)), Duration::ZERO);
        assert_eq!(silence_after_start(ttl, Duration::MAX), Duration::ZERO);
    }

    #[test]
    fn a_majority_decides_before_the_last_vote() {
        use Ballot::{Absent, Pending};
        assert_eq!(decide(&[GRANTED, GRANTED, Pending]), Decision::Won);
        assert_eq!(decide(&[GRANTED, Pending, Absent]), Decision::Open);
        assert_eq!(decide(&[taken(1, 9), taken(1, 5), Pending]), Decision::Taken(Some(MS(9))));
        assert_eq!(decide(&[Absent, Absent, Pending]), Decision::NoQuorum);
        assert_eq!(decide(&[Absent, taken(1, 9), Pending]), Decision::Open);
    }

    #[test]
    fn split_votes_are_nobodys() {
        use Ballot::Absent;
        let split = |ms| Decision::Split(Some(MS(ms)));
        assert_eq!(decide(&[GRANTED, taken(1, 7), taken(2, 9)]), split(7));
        assert_eq!(decide(&[taken(1, 7), taken(2, 9), taken(3, 11)]), split(9));
        assert_eq!(decide(&[GRANTED, taken(1, 7), Absent]), split(7));
        let endless = Ballot::Cast(Vote::Taken { rival: 1, remaining: None });
        assert_eq!(decide(&[endless, endless, GRANTED]), Decision::Taken(None));
    }

    #[test]
    fn of_rivals_at_most_one_wins() {
        for nodes in [3, 5] {
            for owners in all(&[0_u64, 1, 2, 3], nodes) {
                let won = (1..=3).filter(|us| {
                    let vote = |owner: &u64| match *owner {
                        0 => Ballot::Absent,
                        owner if owner == *us => GRANTED,
                        rival => taken(rival, 1),
                    };
                    decide(&owners.iter().map(vote).collect::<Vec<_>>()) == Decision::Won
                });
                assert!(won.count() <= 1, "{owners:?}");
            }
        }
    }

    #[test]
    fn a_decision_is_never_reversed_by_what_was_pending() {
        let words = [Ballot::Absent, GRANTED, taken(1, 1), taken(2, 1)];
        for votes in all(&[words.as_slice(), &[Ballot::Pending]].concat(), 3) {
            let before = decide(&votes);
            for (at, _) in votes.iter().enumerate().filter(|(_, vote)| **vote == Ballot::Pending) {
                for word in words {
                    let mut later = votes.clone();
                    later[at] = word;
                    let after = decide(&later);
                    let same = std::mem::discriminant(&before) == std::mem::discriminant(&after);
                    assert!(before == Decision::Open || same, "{votes:?} {later:?}");
                }
            }
            let complete = !votes.contains(&Ballot::Pending);
            assert!(!complete || before != Decision::Open, "{votes:?}");
        }
    }

    #[test]
    fn only_a_majority_confirms_or_takes_away() {
        use Hold::{Foreign, Ours, Unknown};
        assert_eq!(confirm(&[Ours, Ours, Foreign]), Ours);
        assert_eq!(confirm(&[Foreign, Ours, Foreign]), Foreign);
        assert_eq!(confirm(&[Ours, Foreign, Unknown]), Unknown);
        assert_eq!(confirm(&[Foreign, Unknown, Unknown]), Unknown);
        assert_eq!(confirm(&[Unknown; 3]), Unknown);
    }

    #[test]
    fn retries_end_and_spread() {
        let retry = Retry { count: 2, delay: MS(50), jitter: MS(100) };
        assert_eq!(retry.wait(0, 0.0), Some(MS(50)));
        assert_eq!(retry.wait(1, 0.5), Some(MS(100)));
        assert_eq!(retry.wait(2, 0.0), None);
    }
}

//! Locks in Redis. Key and value are those of the common clients: the token as text under the
//! lock's name, set with `NX PX`, deleted by its owner only.
//!
//! Calls that wait at the same moment share one script call. A lock counts as ours from before the
//! command was sent, less a drift for clocks that tick unevenly. The scripts of a group touch keys
//! of any slot: this is for single servers, not for Redis Cluster.
//!
//! - [`node`]: the commands on one connection;
//! - [`single`]: the store on one server (or one behind Sentinel);
//! - [`quorum`]: the store on a majority of several;
//! - [`poll`]: how a group of locks is put to them;
//! - [`nodes`]: what they say together;
//! - [`member`]: one of them, with its connection, its past and its right to vote.

mod member;
mod node;
mod nodes;
mod poll;
mod quorum;
mod single;

pub use self::quorum::{QuorumLeaseOptions, QuorumLeases};
pub use self::single::{RedisLeaseOptions, RedisLeases};
use super::{Acquired, LeaseError, LeaseStore, Lock};
use crate::clock::Clock;

/// Keeps the arguments of one script call and its latency small.
const MAX_GROUP: usize = 999;

fn key(lock: &Lock) -> node::Key<'_> {
    (&lock.name, lock.token)
}

/// Answers with a lock, unless the way here has used up its validity: then it is given back.
async fn if_still_valid(
    store: &impl LeaseStore,
    lock: Lock,
    clock: Clock,
) -> Result<Acquired, LeaseError> {
    if lock.valid_until.saturating_since(clock.now()).is_zero() {
        // Where this fails, the time to live has ended as well.
        let _ = store.release(&lock).await;
        return Err(LeaseError::Spent { name: lock.name });
    }
    Ok(Acquired::Granted(lock))
}

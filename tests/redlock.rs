//! Locks on a majority of three real Redis servers: votes, outages, other people's clients.
//!
//! Each test starts servers of its own. A node has no vote in its first seconds, so the times to
//! live are short here, and every test begins by waiting until the nodes vote.

mod common;
mod redis_server;

#[path = "redlock/cluster.rs"]
mod cluster;
#[path = "redlock/contract.rs"]
mod contract;
#[path = "redlock/outages.rs"]
mod outages;
#[path = "redlock/votes.rs"]
mod votes;
#[path = "redlock/worker.rs"]
mod worker;

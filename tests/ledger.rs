//! The ledger against a real Postgres: what each call answers, and what the rows say afterwards.
//!
//! Each test starts a server of its own on a socket in a temporary directory.

#[path = "ledger/claims.rs"]
mod claims;
mod common;
#[path = "ledger/effects.rs"]
mod effects;
#[path = "ledger/letters.rs"]
mod letters;
#[path = "ledger/outages.rs"]
mod outages;
#[path = "ledger/outcomes.rs"]
mod outcomes;
#[path = "ledger/pruning.rs"]
mod pruning;
#[path = "ledger/renewals.rs"]
mod renewals;
#[path = "ledger/resources.rs"]
mod resources;
#[path = "ledger/schema.rs"]
mod schema;
#[path = "ledger/server.rs"]
mod server;
#[path = "ledger/waits.rs"]
mod waits;

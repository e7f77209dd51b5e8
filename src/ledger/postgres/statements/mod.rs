//! Every statement of the ledger, in one folder, so that a test can prepare them all against a
//! migrated database.
//!
//! Group statements take one array per column and join through the primary key. Where a lease is
//! judged, it is by `clock_timestamp()`: the statement may have waited for a lock.

mod letters;
mod questions;
mod sweeps;
mod tasks;

pub(super) use letters::{BURY, LETTER_IDS, LETTERS, PURGE, REQUEUE};
pub(super) use questions::{
    BACKLOG, COUNTS, HAS_BACKEND, HISTORY, OPEN_LETTERS, OWN_BACKEND, RUNNING, SCHEMA_VERSION,
    SHOW_LETTERS, STATUSES, TASK, TASKS,
};
pub(super) use sweeps::{
    DUE_LETTERS, DUE_TASKS, PROMOTED_LETTERS, PROMOTED_TASKS, PRUNE_LETTERS, PRUNE_TASKS, STRAYS,
};
pub(super) use tasks::{
    CLAIM, CLAIM_RESOURCES, CLASSIFY, CONDEMN, DELAY, EVENTS, FREE_RESOURCES, GIVE_UP, OUTCOMES,
    RENEW_RESOURCES, RENEW_TASKS, RESOURCE_FENCES, RESOURCE_LEASES, SETTLE, SUCCEED,
    SUCCEED_AFTER_EFFECT,
};

/// Each statement with its name.
pub(super) const ALL: &[(&str, &str)] = &[
    ("CLAIM", CLAIM),
    ("CLASSIFY", CLASSIFY),
    ("CLAIM_RESOURCES", CLAIM_RESOURCES),
    ("RESOURCE_LEASES", RESOURCE_LEASES),
    ("FREE_RESOURCES", FREE_RESOURCES),
    ("SUCCEED", SUCCEED),
    ("SUCCEED_AFTER_EFFECT", SUCCEED_AFTER_EFFECT),
    ("OUTCOMES", OUTCOMES),
    ("SETTLE", SETTLE),
    ("EVENTS", EVENTS),
    ("LETTERS", LETTERS),
    ("BURY", BURY),
    ("CONDEMN", CONDEMN),
    ("DELAY", DELAY),
    ("GIVE_UP", GIVE_UP),
    ("DUE_TASKS", DUE_TASKS),
    ("DUE_LETTERS", DUE_LETTERS),
    ("PROMOTED_TASKS", PROMOTED_TASKS),
    ("PROMOTED_LETTERS", PROMOTED_LETTERS),
    ("STRAYS", STRAYS),
    ("RENEW_TASKS", RENEW_TASKS),
    ("RENEW_RESOURCES", RENEW_RESOURCES),
    ("RESOURCE_FENCES", RESOURCE_FENCES),
    ("REQUEUE", REQUEUE),
    ("COUNTS", COUNTS),
    ("OPEN_LETTERS", OPEN_LETTERS),
    ("BACKLOG", BACKLOG),
    ("TASKS", TASKS),
    ("RUNNING", RUNNING),
    ("TASK", TASK),
    ("STATUSES", STATUSES),
    ("HISTORY", HISTORY),
    ("SHOW_LETTERS", SHOW_LETTERS),
    ("PRUNE_TASKS", PRUNE_TASKS),
    ("PRUNE_LETTERS", PRUNE_LETTERS),
    ("PURGE", PURGE),
    ("LETTER_IDS", LETTER_IDS),
    ("SCHEMA_VERSION", SCHEMA_VERSION),
    ("OWN_BACKEND", OWN_BACKEND),
    ("HAS_BACKEND", HAS_BACKEND),
];

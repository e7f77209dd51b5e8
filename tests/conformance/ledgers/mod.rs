//! What every ledger answers.

mod claims;
mod effects;
mod outcomes;
mod resources;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use queue_worker::domain::{
    EntryId, Failure, Fence, Held, Malformed, MalformedReason, Task, Verdict,
};
use queue_worker::ledger::{
    Beat, Claimed, DelayReason, Delayed, Due, Effect, Grant, Ledger, Performed, Recorded,
    Retention, Status,
};

use crate::stage::{LedgerStage, Note, Seen, eventually, note, queue, raw, task, task_with};

pub(crate) use self::claims::{
    an_older_fence_writes_nothing, claims_in_every_state, crashes_count_up_to_the_fourth,
    renewals_keep_and_lose, suspects_are_refused_in_company,
};
pub(crate) use self::effects::{
    claimed_effects_commit_under_their_fence, single_commits_lock_their_row,
    single_commits_take_everything_or_nothing,
};
pub(crate) use self::outcomes::{
    an_outcome_whose_reply_was_lost_is_there, refused_entries_are_one_letter,
    releases_and_failures_count_no_crash, verdicts_and_what_they_leave, what_is_old_is_forgotten,
};
pub(crate) use self::resources::{a_lost_resource_refuses_success, resources_are_held_by_one};
pub(crate) use self::waits::{
    a_reservation_lasts_no_longer_than_a_lease, a_task_that_has_waited_keeps_its_payload,
    an_unknown_kind_is_told_once, delays_wait_and_are_refused, due_tasks_are_promoted_once,
    unknown_kinds_are_given_up, waits_grow,
};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);
/// Over almost at once.
const SHORT: Duration = Duration::from_millis(40);
/// The limit of effects.
const LIMIT: Duration = Duration::from_secs(9);
const ENTRY: EntryId = EntryId { ms: 5, seq: 1 };

fn granted(answer: Claimed) -> Grant {
    match answer {
        Claimed::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn claim(ledger: &Arc<dyn Ledger>, task: &Arc<Task>) -> Claimed {
    ledger.claim(task).await.unwrap()
}

/// Claims once the lease of the last claim is over.
async fn take_over(ledger: &Arc<dyn Ledger>, task: &Arc<Task>) -> Claimed {
    eventually("a takeover", async || match claim(ledger, task).await {
        Claimed::Running { .. } => None,
        answer => Some(answer),
    })
    .await
}

async fn record(ledger: &Arc<dyn Ledger>, task: &Arc<Task>, held: &Held, v: Verdict) -> Recorded {
    ledger.record(task, held, v).await.unwrap()
}

async fn delay(ledger: &Arc<dyn Ledger>, task: &Arc<Task>, time: Duration) -> Delayed {
    ledger.delay(task, time.into(), DelayReason::NotBefore).await.unwrap()
}

fn success() -> Verdict {
    Verdict::Succeeded { result: Some("done".into()) }
}

fn retry(delay: Duration) -> Verdict {
    Verdict::Retry { failure: Failure::retry("not yet"), delay }
}

fn failure() -> Verdict {
    Verdict::Failed { failure: Failure::for_good("never") }
}

async fn seen(stage: &impl LedgerStage, id: &str) -> Seen {
    stage.row(id).await.expect("a row")
}

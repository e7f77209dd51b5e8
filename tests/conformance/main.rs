//! The same tests over the stores in memory and over a real Redis and a real Postgres.
//!
//! The simulation is worth what its stores are worth: here they have to give the same answers as
//! the ones that production stands on.

mod leases;
mod ledgers;
mod memory;
mod queues;
mod servers;
mod stage;

use memory::InMemory;
use servers::{Postgres, Redis};

macro_rules! over_both {
    ($suite:ident over $memory:ident ($in_memory:ty) and $real:ident ($served:ty): $($name:ident),+ $(,)?) => {
        over_both!(@ $suite $memory $in_memory: $($name),+);
        over_both!(@ $suite $real $served: $($name),+);
    };
    (@ $suite:ident $module:ident $stage:ty: $($name:ident),+) => {
        mod $module {
            use super::*;

            $(#[tokio::test]
            async fn $name() {
                $suite::$name(&<$stage>::start().await).await;
            })+
        }
    };
}

over_both!(ledgers over ledger_in_memory (InMemory) and ledger_in_postgres (Postgres):
    claims_in_every_state,
    verdicts_and_what_they_leave,
    an_older_fence_writes_nothing,
    an_outcome_whose_reply_was_lost_is_there,
    crashes_count_up_to_the_fourth,
    suspects_are_refused_in_company,
    releases_and_failures_count_no_crash,
    delays_wait_and_are_refused,
    unknown_kinds_are_given_up,
    waits_grow,
    an_unknown_kind_is_told_once,
    due_tasks_are_promoted_once,
    a_reservation_lasts_no_longer_than_a_lease,
    a_task_that_has_waited_keeps_its_payload,
    single_commits_take_everything_or_nothing,
    single_commits_lock_their_row,
    claimed_effects_commit_under_their_fence,
    resources_are_held_by_one,
    a_lost_resource_refuses_success,
    renewals_keep_and_lose,
    refused_entries_are_one_letter,
    what_is_old_is_forgotten,
);

over_both!(queues over queue_in_memory (InMemory) and queue_in_redis (Redis):
    entries_come_once_and_in_order,
    demands_are_kept_to,
    settled_entries_are_gone,
    idle_entries_are_reclaimed,
    entries_handed_over_are_free_at_once,
    a_lost_entry_is_added_again,
    postponed_entries_wait,
    touched_entries_stay,
    only_the_owner_gives_back,
    delivered_entries_are_found_again,
    a_fetch_waits_and_can_be_interrupted,
    lost_entries_are_forgotten,
    consumers_go_when_nothing_is_pending,
);

over_both!(leases over locks_in_memory (InMemory) and locks_in_redis (Redis):
    one_holder_at_a_time,
    only_the_owner_releases,
    renewals_extend_and_set_again,
    locks_end_by_themselves,
);

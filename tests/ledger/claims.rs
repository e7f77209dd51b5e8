//! Claims: who gets a task, under which fence, and what the others are told.

use std::sync::Arc;
use std::time::Duration;

use queue_worker::domain::Failure;
use queue_worker::ledger::{
    Claimed, DelayReason, Ledger, PostgresLedger, PostgresOptions, Recorded, Status, Verdict,
};

use crate::server::{Server, eventually, granted, row, take_over, task, task_with};

#[tokio::test]
async fn a_new_task_is_granted_once() {
    let server = Server::migrated().await;
    let (ours, theirs) = (server.ledger(), server.ledger());
    let task = task("a");
    let grant = granted(ours.claim(&task).await);
    assert_eq!((grant.held.fence.0, grant.attempt, grant.crashes), (1, 1, 0));
    let Claimed::Running { remaining } = theirs.claim(&task).await.unwrap() else { panic!() };
    assert!(remaining > Duration::from_secs(3) && remaining <= Duration::from_secs(5));
}

#[tokio::test]
async fn many_callers_share_statements_and_get_their_own_answers() {
    let server = Server::migrated().await;
    let ledger = Arc::new(server.ledger());
    let mut claims = tokio::task::JoinSet::new();
    for n in 0..1_000 {
        let ledger = Arc::clone(&ledger);
        // Every id twice, and in no order.
        let task = task(&format!("task-{}", n * 7_919 % 500));
        claims.spawn(async move { (task.id.clone(), ledger.claim(&task).await.unwrap()) });
    }
    let mut grants = 0;
    while let Some(claimed) = claims.join_next().await {
        match claimed.unwrap() {
            (id, Claimed::Granted(grant)) => {
                assert_eq!((grant.held.task_id, grant.held.fence.0), (id, 1));
                grants += 1;
            }
            (_, Claimed::Running { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(grants, 500);
}

#[tokio::test]
async fn a_finished_task_is_done_and_another_payload_is_a_conflict() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let first = task("a");
    let grant = granted(ledger.claim(&first).await);
    let conflict = ledger.claim(&task_with("a", b"other", None)).await.unwrap();
    assert_eq!(conflict, Claimed::Conflict);
    let verdict = Verdict::Succeeded { result: None };
    assert_eq!(ledger.record(&first, &grant.held, verdict).await.unwrap(), Recorded::Committed);
    assert_eq!(ledger.claim(&first).await.unwrap(), Claimed::Done(Status::Succeeded));
    let conflict = ledger.claim(&task_with("a", b"other", None)).await.unwrap();
    assert_eq!(conflict, Claimed::Conflict);
}

#[tokio::test]
async fn a_delayed_task_is_granted_when_it_is_due() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let (late, due) = (task("late"), task("due"));
    ledger.delay(&late, Duration::from_secs(60).into(), DelayReason::NotBefore).await.unwrap();
    ledger.delay(&due, Duration::ZERO.into(), DelayReason::NotBefore).await.unwrap();
    assert_eq!(ledger.claim(&late).await.unwrap(), Claimed::Delayed);
    assert_eq!(granted(ledger.claim(&due).await).held.fence.0, 1);
    assert_eq!(row(&server, "due").await, ("running".into(), 1, 0, 0, true, true));
}

#[tokio::test]
async fn crashes_count_up_to_the_fourth() {
    let server = Server::migrated().await;
    let task = task("a");
    granted(server.hasty().claim(&task).await);
    for crash in 1..=3 {
        let Claimed::Granted(grant) = take_over(&server.hasty(), &task).await else { panic!() };
        assert_eq!((grant.crashes, grant.attempt), (crash, 1));
        assert_eq!(grant.held.fence.0, i64::from(crash) + 1);
    }
    let ledger = server.hasty();
    assert_eq!(take_over(&ledger, &task).await, Claimed::Poisoned { crashes: 4 });
    // Reading it has changed nothing.
    assert_eq!(ledger.claim(&task).await.unwrap(), Claimed::Poisoned { crashes: 4 });
    assert_eq!(ledger.condemn(&task).await.unwrap(), Recorded::Committed);
    assert_eq!(ledger.condemn(&task).await.unwrap(), Recorded::Stale);
    assert_eq!(ledger.claim(&task).await.unwrap(), Claimed::Done(Status::Dead));
    assert_eq!(row(&server, "a").await, ("dead".into(), 4, 0, 4, false, false));
}

#[tokio::test]
async fn condemning_checks_again() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let task = task("a");
    assert_eq!(ledger.condemn(&task).await.unwrap(), Recorded::Stale);
    granted(ledger.claim(&task).await);
    assert_eq!(ledger.condemn(&task).await.unwrap(), Recorded::Stale);
    assert_eq!(row(&server, "a").await.0, "running");
}

#[tokio::test]
async fn a_release_is_no_crash_and_a_failure_forgets_them() {
    let server = Server::migrated().await;
    let task = task("a");
    granted(server.hasty().claim(&task).await);
    let Claimed::Granted(second) = take_over(&server.hasty(), &task).await else { panic!() };
    let ledger = server.ledger();
    // Whoever holds the fence may write, under whatever worker.
    let recorded = ledger.record(&task, &second.held, Verdict::Released).await.unwrap();
    assert_eq!(recorded, Recorded::Committed);
    assert_eq!(row(&server, "a").await, ("released".into(), 3, 0, 1, true, true));
    let third = granted(ledger.claim(&task).await);
    assert_eq!((third.held.fence.0, third.attempt, third.crashes), (4, 1, 1));
    let verdict = Verdict::Retry { failure: Failure::retry("no"), delay: Duration::ZERO };
    let recorded = ledger.record(&task, &third.held, verdict).await.unwrap();
    assert_eq!(recorded, Recorded::Committed);
    let fourth = granted(ledger.claim(&task).await);
    assert_eq!((fourth.held.fence.0, fourth.attempt, fourth.crashes), (5, 2, 0));
}

#[tokio::test]
async fn a_restart_of_postgres_is_nobodys_crash() {
    let mut server = Server::migrated().await;
    let task = task("a");
    granted(server.hasty().claim(&task).await);
    server.stop();
    server.start().await;
    let Claimed::Granted(grant) = take_over(&server.hasty(), &task).await else { panic!() };
    assert_eq!((grant.held.fence.0, grant.crashes), (2, 0));
}

#[tokio::test]
async fn one_locked_row_does_not_hold_up_the_group() {
    let server = Server::migrated().await;
    let ledger = Arc::new(server.ledger());
    granted(ledger.claim(&task("locked")).await);
    let mut other = server.connect().await;
    sqlx::raw_sql("BEGIN; SELECT FROM queue_worker.processed_tasks FOR UPDATE")
        .execute(&mut other)
        .await
        .unwrap();
    let mut claims = tokio::task::JoinSet::new();
    for id in ["free-1", "locked", "free-2"] {
        let (ledger, task) = (Arc::clone(&ledger), task(id));
        claims.spawn(async move { (id, ledger.claim(&task).await.unwrap()) });
    }
    while let Some(claimed) = claims.join_next().await {
        let (id, claimed) = claimed.unwrap();
        assert_eq!(matches!(claimed, Claimed::Running { .. }), id == "locked", "{id} {claimed:?}");
    }
}

#[tokio::test]
async fn a_claim_that_meets_a_locked_row_waits_for_it_once() {
    let server = Server::migrated().await;
    let lock_timeout = Duration::from_secs(2);
    let ledger = PostgresLedger::new(PostgresOptions { lock_timeout, ..server.options() });
    let task = task("locked");
    granted(ledger.claim(&task).await);
    let mut other = server.connect().await;
    sqlx::raw_sql("BEGIN; SELECT FROM queue_worker.processed_tasks FOR UPDATE")
        .execute(&mut other)
        .await
        .unwrap();
    let claim = tokio::time::timeout(lock_timeout * 2, ledger.claim(&task));
    let claimed = claim.await.expect("one wait").unwrap();
    assert_eq!(claimed, Claimed::Running { remaining: lock_timeout });
}

#[tokio::test]
async fn a_takeover_does_not_wait_for_its_line_of_history() {
    let server = Server::migrated().await;
    let task = task("a");
    granted(server.hasty().claim(&task).await);
    let mut other = server.connect().await;
    sqlx::raw_sql("BEGIN; LOCK TABLE queue_worker.task_events").execute(&mut other).await.unwrap();
    let patient = PostgresOptions {
        lease: Duration::from_millis(20),
        call_timeout: Duration::from_secs(60),
        lock_timeout: Duration::from_secs(40),
        ..server.options()
    };
    let ledger = PostgresLedger::new(patient);
    let taken = tokio::time::timeout(Duration::from_secs(20), take_over(&ledger, &task));
    let Claimed::Granted(grant) = taken.await.expect("an answer") else { panic!() };
    assert_eq!((grant.held.fence.0, grant.crashes), (2, 1));
    // The line is written as soon as it can be.
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    eventually(async || {
        let history = ledger.task("a").await.unwrap()?.history;
        history.iter().any(|line| line.event == "claimed" && line.fence == Some(2)).then_some(())
    })
    .await;
}

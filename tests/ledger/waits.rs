//! Delays and promotions: the way out of the stream and back.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use queue_worker::domain::{EntryId, Failure, RawEntry, Task};
use queue_worker::ledger::{
    Beat, Claimed, DelayReason, Delayed, Ledger, LetterFilter, PostgresLedger, PostgresOptions,
    Recorded, Status, Verdict,
};
use queue_worker::protocol::backoff::Growing;

use crate::server::{Server, eventually, granted, row, take_over, task, task_with};

const ENTRY: EntryId = EntryId { ms: 5, seq: 1 };

#[tokio::test]
async fn a_due_task_goes_back_into_the_stream_and_is_claimed() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let (due, late) = (task_with("due", b"\0\xff", Some("repo")), task("late"));
    let now = (Duration::ZERO, DelayReason::Contended);
    assert_eq!(ledger.delay(&due, now.0.into(), now.1).await.unwrap(), Delayed::Committed);
    let later =
        ledger.delay(&late, Duration::from_secs(60).into(), DelayReason::NotBefore).await.unwrap();
    assert_eq!(later, Delayed::Committed);
    assert_eq!(row(&server, "due").await, ("delayed".into(), 0, 0, 0, true, true));
    let found = ledger.due(10).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].task_id.as_str(), found[0].entry), ("due", None));
    assert_eq!(found[0].raw, Task::clone(&due).to_raw());
    ledger.promoted(&found[0], ENTRY).await.unwrap();
    assert_eq!(row(&server, "due").await, ("released".into(), 0, 0, 0, true, true));
    assert_eq!(ledger.task("due").await.unwrap().unwrap().entry.as_deref(), Some("5-1"));
    let grant = granted(ledger.claim(&due).await);
    assert_eq!((grant.held.fence.0, grant.attempt, grant.crashes), (1, 1, 0));
    assert_eq!(row(&server, "due").await, ("running".into(), 1, 0, 0, true, true));
}

#[tokio::test]
async fn a_promotion_that_comes_after_the_claim_changes_nothing() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let task = task("a");
    ledger.delay(&task, Duration::ZERO.into(), DelayReason::NotBefore).await.unwrap();
    let due = ledger.due(10).await.unwrap().remove(0);
    // The entry is in the stream, and somebody is faster than the sweep.
    granted(ledger.claim(&task).await);
    ledger.promoted(&due, ENTRY).await.unwrap();
    assert_eq!(row(&server, "a").await, ("running".into(), 1, 0, 0, true, true));
}

#[tokio::test]
async fn two_sweeps_never_share_a_row() {
    let server = Server::migrated().await;
    let ledger = Arc::new(server.ledger());
    let mut delays = tokio::task::JoinSet::new();
    for n in 0..500 {
        let (ledger, task) = (Arc::clone(&ledger), task(&format!("{n}")));
        delays.spawn(async move {
            ledger.delay(&task, Duration::ZERO.into(), DelayReason::NotBefore).await.unwrap()
        });
    }
    while let Some(delay) = delays.join_next().await {
        assert_eq!(delay.unwrap(), Delayed::Committed);
    }
    let mut sweeps = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let ledger = server.ledger();
        sweeps.spawn(async move { ledger.due(100).await.unwrap() });
    }
    let mut seen = HashSet::new();
    while let Some(due) = sweeps.join_next().await {
        for due in due.unwrap() {
            assert!(seen.insert(due.task_id.clone()), "{} is in two sweeps", due.task_id);
        }
    }
    for due in ledger.due(1_000).await.unwrap() {
        assert!(seen.insert(due.task_id));
    }
    assert_eq!(seen.len(), 500);
}

#[tokio::test]
async fn a_sweep_and_a_group_have_a_limit_in_bytes() {
    let server = Server::migrated().await;
    let ledger = Arc::new(server.ledger());
    let big = vec![7; 6 << 20];
    let mut delays = tokio::task::JoinSet::new();
    for n in 0..4 {
        let (ledger, task) = (Arc::clone(&ledger), task_with(&format!("{n}"), &big, None));
        delays.spawn(async move {
            ledger.delay(&task, Duration::ZERO.into(), DelayReason::NotBefore).await.unwrap()
        });
    }
    while let Some(delay) = delays.join_next().await {
        assert_eq!(delay.unwrap(), Delayed::Committed);
    }
    assert_eq!(ledger.due(10).await.unwrap().len(), 3);
    assert_eq!(ledger.due(10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_released_task_is_looked_after() {
    let server = Server::migrated().await;
    let ledger = PostgresLedger::new(PostgresOptions {
        released_recheck: Duration::from_millis(1),
        ..server.options()
    });
    let task = task("a");
    let held = granted(ledger.claim(&task).await).held;
    assert_eq!(ledger.record(&task, &held, Verdict::Released).await.unwrap(), Recorded::Committed);
    let due = eventually(async || ledger.due(1).await.unwrap().pop()).await;
    assert_eq!((due.entry, due.fence.0), (None, 2));
    ledger.promoted(&due, ENTRY).await.unwrap();
    let due = eventually(async || ledger.due(1).await.unwrap().pop()).await;
    assert_eq!(due.entry, Some(ENTRY));
    assert_eq!(row(&server, "a").await, ("released".into(), 2, 0, 0, true, true));
}

/// Its entry may be gone: a worker that read it long ago has claimed the row after another one had
/// delayed the task and acknowledged the entry.
#[tokio::test]
async fn a_task_that_has_waited_outlives_a_crash_without_its_entry() {
    let server = Server::migrated().await;
    let ledger = server.hasty();
    let task = task("a");
    ledger.delay(&task, Duration::ZERO.into(), DelayReason::Contended).await.unwrap();
    granted(ledger.claim(&task).await);
    let due = eventually(async || ledger.due(1).await.unwrap().pop()).await;
    assert_eq!((due.entry, due.fence.0), (None, 1));
    assert_eq!(due.raw, Task::clone(&task).to_raw());
    assert!(ledger.due(1).await.unwrap().is_empty(), "reserved");
    ledger.promoted(&due, ENTRY).await.unwrap();
    assert_eq!(ledger.task("a").await.unwrap().unwrap().entry.as_deref(), Some("5-1"));
    let Claimed::Granted(grant) = take_over(&server.hasty(), &task).await else { panic!() };
    assert_eq!((grant.held.fence.0, grant.crashes), (2, 1));
    let verdict = Verdict::Succeeded { result: None };
    let recorded = ledger.record(&task, &grant.held, verdict).await.unwrap();
    assert_eq!(recorded, Recorded::Committed);
    assert_eq!(row(&server, "a").await, ("succeeded".into(), 2, 0, 1, false, false));
}

#[tokio::test]
async fn only_a_task_that_nobody_runs_can_be_delayed() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let task = task("a");
    let delay = async |ledger: &PostgresLedger, task: &Arc<Task>| {
        ledger.delay(task, Duration::from_secs(9).into(), DelayReason::Suspect).await.unwrap()
    };
    let held = granted(ledger.claim(&task).await).held;
    // Its row is locked; whoever would write it would wait, and fail.
    let mut other = server.connect().await;
    let lock = "BEGIN; SELECT FROM queue_worker.processed_tasks WHERE task_id = 'a' FOR UPDATE";
    sqlx::raw_sql(lock).execute(&mut other).await.unwrap();
    let Delayed::Running { remaining } = delay(&ledger, &task).await else { panic!() };
    assert!(remaining > Duration::from_secs(3), "{remaining:?}");
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    assert_eq!(ledger.record(&task, &held, Verdict::Released).await.unwrap(), Recorded::Committed);
    assert_eq!(delay(&ledger, &task_with("a", b"other", None)).await, Delayed::Conflict);
    assert_eq!(delay(&ledger, &task).await, Delayed::Committed);
    assert_eq!(delay(&ledger, &task).await, Delayed::Committed);
    assert_eq!(row(&server, "a").await, ("delayed".into(), 2, 0, 0, true, true));
}

#[tokio::test]
async fn delaying_a_crashed_task_counts_its_crash() {
    let server = Server::migrated().await;
    let ledger = server.hasty();
    let task = task("a");
    granted(ledger.claim(&task).await);
    eventually(async || {
        let reason = DelayReason::Suspect;
        let delayed = ledger.delay(&task, Duration::ZERO.into(), reason).await.unwrap();
        (delayed == Delayed::Committed).then_some(())
    })
    .await;
    assert_eq!(row(&server, "a").await, ("delayed".into(), 2, 0, 1, true, true));
    let Claimed::Granted(grant) = take_over(&ledger, &task).await else { panic!() };
    assert_eq!((grant.held.fence.0, grant.crashes), (3, 1));
}

async fn waited_longer(server: &Server, interval: &str) {
    sqlx::query(
        "UPDATE queue_worker.processed_tasks SET waits_since = waits_since - $1::text::interval",
    )
    .bind(interval)
    .execute(&mut server.connect().await)
    .await
    .unwrap();
}

#[tokio::test]
async fn an_unknown_kind_is_given_up_in_the_end() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let task = task("a");
    let patient = DelayReason::UnknownKind { give_up: Duration::from_secs(3600) };
    let wait = Growing::new(Duration::from_secs(1), Duration::from_secs(60), 0.5);
    assert_eq!(ledger.delay(&task, wait, patient).await.unwrap(), Delayed::Committed);
    waited_longer(&server, "20 min").await;
    for _ in 0..3 {
        assert_eq!(ledger.delay(&task, wait, patient).await.unwrap(), Delayed::Still);
    }
    let details = ledger.task("a").await.unwrap().expect("a row");
    assert_eq!(details.history.len(), 1, "{:?}", details.history);
    let due: f64 = sqlx::query_scalar(
        "SELECT EXTRACT(EPOCH FROM run_at - clock_timestamp())::float8 \
         FROM queue_worker.processed_tasks",
    )
    .fetch_one(&mut server.connect().await)
    .await
    .unwrap();
    assert!((40.0..=60.0).contains(&due), "due in {due} s");
    waited_longer(&server, "2 h").await;
    let delayed = ledger.delay(&task, Duration::ZERO.into(), patient).await.unwrap();
    assert_eq!(delayed, Delayed::GaveUp);
    assert_eq!(ledger.claim(&task).await.unwrap(), Claimed::Done(Status::Dead));
    assert_eq!(ledger.delay(&task, Duration::ZERO.into(), patient).await.unwrap(), Delayed::Done);
    let all = LetterFilter { queue: None, reason: None, requeued: false, limit: 9 };
    let letters = ledger.letters(&all).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].reason, "unknown_kind");
    assert!(ledger.due(9).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_row_that_cannot_be_read_does_not_stop_the_sweep() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    for id in ["bad", "good"] {
        ledger.delay(&task(id), Duration::ZERO.into(), DelayReason::NotBefore).await.unwrap();
    }
    sqlx::query("UPDATE queue_worker.processed_tasks SET queue = '' WHERE task_id = 'bad'")
        .execute(&mut server.connect().await)
        .await
        .unwrap();
    let due = ledger.due(9).await.unwrap();
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].task_id, "good");
    assert_ne!(due[0].raw, RawEntry::default());
}

#[tokio::test]
async fn a_claimed_task_whose_worker_died_is_put_back_with_its_payload() {
    let server = Server::migrated().await;
    let dead = server.ledger();
    let ledger = server.ledger();
    // One had a heartbeat, one was claimed for the second time, one died before its first beat.
    let (beaten, again, young) = (task("beaten"), task("again"), task("young"));
    let held = granted(dead.claim(&beaten).await).held;
    assert_eq!(dead.renew(&[held]).await.unwrap(), [Beat::Renewed]);
    let held = granted(dead.claim(&again).await).held;
    let retry = Verdict::Retry { failure: Failure::retry("no"), delay: Duration::ZERO };
    let _ = dead.record(&again, &held, retry).await.unwrap();
    granted(dead.claim(&again).await);
    granted(dead.claim(&young).await);
    assert!(ledger.due(9).await.unwrap().is_empty(), "their entries may still be there");

    sqlx::query(
        "UPDATE queue_worker.processed_tasks SET created_at = created_at - interval '2 minutes', \
         run_at = run_at - interval '2 minutes', lease_until = lease_until - interval '2 minutes'",
    )
    .execute(&mut server.connect().await)
    .await
    .unwrap();
    sqlx::query("UPDATE queue_worker.sweeps SET upto = upto - interval '1 hour'")
        .execute(&mut server.connect().await)
        .await
        .unwrap();
    assert_eq!(ledger.find_strays().await.unwrap(), 1, "the young one");
    assert_eq!(ledger.find_strays().await.unwrap(), 0, "each row is looked at once");
    let mut due = ledger.due(9).await.unwrap();
    due.sort_by(|a, b| a.task_id.cmp(&b.task_id));
    let ids: Vec<&str> = due.iter().map(|due| due.task_id.as_str()).collect();
    assert_eq!(ids, ["again", "beaten", "young"]);
    for (due, task) in due.iter().zip([&again, &beaten, &young]) {
        assert_eq!(due.raw, task.to_raw());
        ledger.promoted(due, EntryId { ms: 9, seq: 9 }).await.unwrap();
    }
    assert!(ledger.due(9).await.unwrap().is_empty(), "looked after for now");
    sqlx::query(
        "UPDATE queue_worker.processed_tasks SET lease_until = now() - interval '1 minute'",
    )
    .execute(&mut server.connect().await)
    .await
    .unwrap();
    let grant = granted(ledger.claim(&young).await);
    assert_eq!(grant.held.fence.0, 2, "a takeover like any other");
    let _ = ledger.record(&young, &grant.held, Verdict::Succeeded { result: None }).await.unwrap();
    let kept: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM queue_worker.processed_tasks \
         WHERE task_id = 'young' AND (payload IS NOT NULL OR run_at IS NOT NULL)",
    )
    .fetch_one(&mut server.connect().await)
    .await
    .unwrap();
    assert_eq!(kept, 0, "what has ended keeps no payload");
}

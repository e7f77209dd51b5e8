//! Records: what each verdict leaves behind, and that a stale fence writes nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_worker::domain::{Failure, Fence, Held};
use queue_worker::ledger::{Claimed, Ledger, LetterFilter, Recorded, Status, Verdict};

use crate::server::{Server, eventually, granted, row, task};

const ALL: LetterFilter = LetterFilter { queue: None, reason: None, requeued: true, limit: 100 };

#[tokio::test]
async fn success_keeps_the_result() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let task = task("a");
    let grant = granted(ledger.claim(&task).await);
    let verdict = Verdict::Succeeded { result: Some(Bytes::from_static(b"a\0b")) };
    assert_eq!(ledger.record(&task, &grant.held, verdict).await.unwrap(), Recorded::Committed);
    let details = ledger.task("a").await.unwrap().unwrap();
    assert_eq!(details.status, Status::Succeeded);
    assert_eq!(details.result.as_deref(), Some(b"a\0b".as_slice()));
    assert!(details.processed_at_ms.is_some() && details.history.is_empty());
}

#[tokio::test]
async fn a_record_is_committed_again_if_only_its_reply_was_lost() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let failure = Failure::retry("no");
    let retry = Verdict::Retry { failure: failure.clone(), delay: Duration::from_secs(9) };
    for (id, verdict) in [
        ("succeeded", Verdict::Succeeded { result: None }),
        ("retry", retry),
        ("failed", Verdict::Failed { failure }),
        ("released", Verdict::Released),
    ] {
        let task = task(id);
        let held = granted(ledger.claim(&task).await).held;
        for _ in 0..2 {
            let recorded = ledger.record(&task, &held, verdict.clone()).await.unwrap();
            assert_eq!(recorded, Recorded::Committed, "{id}");
        }
        let before = row(&server, id).await;
        let recorded = server.ledger().record(&task, &held, verdict).await.unwrap();
        assert_eq!(recorded, Recorded::Stale, "{id}: another worker's");
        assert_eq!(row(&server, id).await, before);
    }
    assert_eq!(ledger.letters(&ALL).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_stale_fence_changes_nothing() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let task = task("a");
    let held = granted(ledger.claim(&task).await).held;
    let stale = Held { fence: Fence(0), ..held.clone() };
    let before = row(&server, "a").await;
    let failure = Failure::retry("no");
    for verdict in [
        Verdict::Succeeded { result: None },
        Verdict::Retry { failure: failure.clone(), delay: Duration::ZERO },
        Verdict::Failed { failure },
        Verdict::Released,
    ] {
        assert_eq!(ledger.record(&task, &stale, verdict).await.unwrap(), Recorded::Stale);
        assert_eq!(row(&server, "a").await, before);
    }
    assert!(ledger.letters(&ALL).await.unwrap().is_empty());
    assert!(ledger.task("a").await.unwrap().unwrap().history.is_empty());
}

#[tokio::test]
async fn a_retry_waits_with_its_payload() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let task = task("a");
    let held = granted(ledger.claim(&task).await).held;
    let failure = Failure::retry("exit\0status").with_status("exit 75");
    let verdict = Verdict::Retry { failure, delay: Duration::from_secs(60) };
    assert_eq!(ledger.record(&task, &held, verdict).await.unwrap(), Recorded::Committed);
    assert_eq!(row(&server, "a").await, ("delayed".into(), 1, 1, 0, true, true));
    assert_eq!(ledger.claim(&task).await.unwrap(), Claimed::Delayed);
    let details = ledger.task("a").await.unwrap().unwrap();
    assert_eq!(details.error.as_deref(), Some("exit\\0status"));
    assert_eq!(details.error_status.as_deref(), Some("exit 75"));
    assert_eq!(details.payload.as_deref(), Some(b"hello".as_slice()));
    assert_eq!(details.history[0].event, "retry");
}

#[tokio::test]
async fn a_failure_for_good_leaves_a_letter() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let task = task("a");
    let held = granted(ledger.claim(&task).await).held;
    let failure = Failure::for_good("no such user").with_status("http 404").with_tail(&b"\xff"[..]);
    let verdict = Verdict::Failed { failure };
    assert_eq!(ledger.record(&task, &held, verdict).await.unwrap(), Recorded::Committed);
    assert_eq!(row(&server, "a").await, ("failed".into(), 1, 1, 0, false, false));
    let listed = ledger.letters(&ALL).await.unwrap().remove(0);
    assert_eq!((listed.reason.as_str(), &listed.payload), ("failed", &None));
    let letter = ledger.letter(listed.id).await.unwrap().unwrap();
    assert_eq!(letter.payload.as_deref(), Some(b"hello".as_slice()));
    assert_eq!(letter.tail.as_deref(), Some(b"\xff".as_slice()));
    assert_eq!(letter.status.as_deref(), Some("http 404"));
}

#[tokio::test]
async fn completions_are_heap_only_updates() {
    let server = Server::migrated().await;
    let ledger = Arc::new(server.ledger());
    let mut runs = tokio::task::JoinSet::new();
    for n in 0..2_000 {
        let (ledger, task) = (Arc::clone(&ledger), task(&format!("task-{n}")));
        runs.spawn(async move {
            let held = granted(ledger.claim(&task).await).held;
            let verdict = Verdict::Succeeded { result: None };
            assert_eq!(ledger.record(&task, &held, verdict).await.unwrap(), Recorded::Committed);
        });
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap();
    }
    drop(ledger);
    let mut connection = server.connect().await;
    let hot: f64 = eventually(async || {
        let (all, hot): (i64, i64) = sqlx::query_as(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables \
             WHERE relname = 'processed_tasks'",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
        #[allow(clippy::cast_precision_loss)]
        (all >= 2_000).then_some(hot as f64 / all as f64)
    })
    .await;
    assert!(hot > 0.95, "only {hot} of the updates were heap-only");
}

#[tokio::test]
async fn counts_and_running_tasks_are_shown() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let (done, runs) = (task("done"), task("runs"));
    let held = granted(ledger.claim(&done).await).held;
    let verdict = Verdict::Succeeded { result: None };
    assert_eq!(ledger.record(&done, &held, verdict).await.unwrap(), Recorded::Committed);
    granted(ledger.claim(&runs).await);
    let counts = ledger.counts().await.unwrap();
    let counts: Vec<_> = counts.iter().map(|count| (count.status, count.rows)).collect();
    assert_eq!(counts, [(Status::Running, 1), (Status::Succeeded, 1)]);
    let running = ledger.running(10).await.unwrap();
    assert_eq!(running.len(), 1);
    assert_eq!((running[0].task_id.as_str(), running[0].fence), ("runs", 1));
    assert!(running[0].lease_left > Duration::from_secs(3));
    assert!(ledger.task("nobody").await.unwrap().is_none());
}

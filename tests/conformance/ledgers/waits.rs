//! Tasks that wait in the ledger, and their way back.

use queue_worker::protocol::backoff::Growing;

use super::*;

pub(crate) async fn delays_wait_and_are_refused(stage: &impl LedgerStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let a = task("a");
    for reason in [DelayReason::NotBefore, DelayReason::Contended, DelayReason::Suspect] {
        let answer = ours.delay(&a, LONG.into(), reason).await.unwrap();
        assert_eq!(answer, Delayed::Committed);
        assert_eq!(seen(stage, "a").await, Seen::of(Status::Delayed, 0, 0, 0));
    }
    let other = task_with("a", "other", None);
    assert_eq!(delay(&ours, &other, LONG).await, Delayed::Conflict);

    let b = task("b");
    let held = granted(claim(&ours, &b).await).held;
    let Delayed::Running { remaining } = delay(&theirs, &b, LONG).await else { panic!() };
    assert!(remaining > LONG / 2 && remaining <= LONG, "{remaining:?}");
    assert_eq!(record(&ours, &b, &held, Verdict::Released).await, Recorded::Committed);
    assert_eq!(delay(&theirs, &b, LONG).await, Delayed::Committed);
    assert_eq!(seen(stage, "b").await, Seen::of(Status::Delayed, 2, 0, 0));
    let c = task("c");
    let held = granted(claim(&ours, &c).await).held;
    assert_eq!(record(&ours, &c, &held, success()).await, Recorded::Committed);
    assert_eq!(delay(&theirs, &c, LONG).await, Delayed::Done);

    let (hasty, d) = (stage.worker(SHORT), task("d"));
    granted(claim(&hasty, &d).await);
    eventually("the lease to be over", async || {
        (delay(&hasty, &d, LONG).await == Delayed::Committed).then_some(())
    })
    .await;
    assert_eq!(seen(stage, "d").await, Seen::of(Status::Delayed, 2, 0, 1));
}

pub(crate) async fn unknown_kinds_are_given_up(stage: &impl LedgerStage) {
    let (ledger, a) = (stage.worker(LONG), task("a"));
    let unknown = async |give_up| {
        let wait = Growing::new(LONG, LONG, 0.5);
        ledger.delay(&a, wait, DelayReason::UnknownKind { give_up }).await.unwrap()
    };
    assert_eq!(unknown(LONG).await, Delayed::Committed);
    assert_eq!(seen(stage, "a").await.status, Status::Delayed);
    assert_ne!(unknown(LONG).await, Delayed::GaveUp);
    eventually("the end of patience", async || {
        (unknown(Duration::from_millis(10)).await == Delayed::GaveUp).then_some(())
    })
    .await;
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Dead, 0, 0, 0));
    assert_eq!(stage.letters().await, ["unknown_kind"]);
    assert_eq!(unknown(LONG).await, Delayed::Done);
}

async fn next_due(ledger: &Arc<dyn Ledger>) -> Due {
    eventually("a due task", async || ledger.due(10).await.unwrap().pop()).await
}

/// Whoever has reserved a row may be killed before it is in the stream.
pub(crate) async fn a_reservation_lasts_no_longer_than_a_lease(stage: &impl LedgerStage) {
    let (killed, other) = (stage.worker(SHORT), stage.worker(SHORT));
    assert_eq!(delay(&killed, &task("a"), Duration::ZERO).await, Delayed::Committed);
    next_due(&killed).await;
    let reserved = tokio::time::Instant::now();
    next_due(&other).await;
    assert!(reserved.elapsed() < Duration::from_secs(4), "{:?}", reserved.elapsed());
}

pub(crate) async fn due_tasks_are_promoted_once(stage: &impl LedgerStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let (a, late) = (task("a"), task("late"));
    delay(&ours, &late, LONG).await;
    delay(&ours, &a, Duration::ZERO).await;
    let due = next_due(&ours).await;
    assert_eq!((due.task_id.as_str(), due.fence, due.entry), ("a", Fence(0), None));
    assert_eq!((due.queue.clone(), due.raw.clone()), (queue(), a.to_raw()));
    assert!(theirs.due(10).await.unwrap().is_empty(), "reserved");
    ours.promoted(&due, ENTRY).await.unwrap();
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Released, 0, 0, 0).at(ENTRY));
    granted(claim(&theirs, &a).await);

    // A claim, or another delay, comes before the note of the promotion.
    for id in ["b", "c"] {
        let task = task(id);
        delay(&ours, &task, Duration::ZERO).await;
        let due = next_due(&ours).await;
        let before = if id == "b" {
            granted(claim(&theirs, &task).await);
            Seen::of(Status::Running, 1, 0, 0).looked_after()
        } else {
            delay(&theirs, &task, LONG).await;
            Seen::of(Status::Delayed, 0, 0, 0)
        };
        ours.promoted(&due, ENTRY).await.unwrap();
        assert_eq!(seen(stage, id).await, before);
    }

    let (hasty, d) = (stage.worker(SHORT), task("d"));
    let held = granted(claim(&hasty, &d).await).held;
    assert_eq!(record(&hasty, &d, &held, Verdict::Released).await, Recorded::Committed);
    let due = next_due(&hasty).await;
    assert_eq!((due.task_id.as_str(), due.fence, due.entry), ("d", Fence(2), None));
    hasty.promoted(&due, ENTRY).await.unwrap();
    assert_eq!(next_due(&hasty).await.entry, Some(ENTRY));
}

pub(crate) async fn a_task_that_has_waited_keeps_its_payload(stage: &impl LedgerStage) {
    let (ours, theirs) = (stage.worker(SHORT), stage.worker(SHORT));
    let a = task("a");
    delay(&ours, &a, Duration::ZERO).await;
    granted(claim(&ours, &a).await);
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Running, 1, 0, 0).looked_after());
    let due = next_due(&theirs).await;
    assert_eq!((due.task_id.as_str(), due.fence, due.entry), ("a", Fence(1), None));
    assert_eq!(due.raw, a.to_raw());
    theirs.promoted(&due, ENTRY).await.unwrap();
    let running = Seen::of(Status::Running, 1, 0, 0).looked_after().at(ENTRY);
    assert_eq!(seen(stage, "a").await, running);
    assert_eq!(next_due(&theirs).await.entry, Some(ENTRY));
    let grant = granted(take_over(&theirs, &a).await);
    assert_eq!((grant.held.fence, grant.crashes), (Fence(2), 1));
    assert_eq!(record(&theirs, &a, &grant.held, success()).await, Recorded::Committed);
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Succeeded, 2, 0, 1));
}

pub(crate) async fn waits_grow(stage: &impl LedgerStage) {
    let (ledger, a) = (stage.worker(LONG), task_with("a", "hello", Some("repo")));
    let short = Duration::from_millis(20);
    let wait = Growing::new(short, LONG, 1.0);
    let waits = async || {
        let answer = ledger.delay(&a, wait, DelayReason::Contended).await.unwrap();
        assert_eq!(answer, Delayed::Committed);
        stage.waits(&a).await
    };
    assert!(waits().await <= short);
    // Half of the time since it was first seen.
    eventually("a wait four times as long", async || (waits().await > 4 * short).then_some(()))
        .await;
    eventually("its turn", async || match claim(&ledger, &a).await {
        Claimed::Granted(grant) => Some(grant),
        _ => None,
    })
    .await;
}

pub(crate) async fn an_unknown_kind_is_told_once(stage: &impl LedgerStage) {
    let (ledger, a) = (stage.worker(LONG), task("a"));
    let unknown = DelayReason::UnknownKind { give_up: LONG };
    let wait = Growing::new(Duration::from_millis(40), LONG, 1.0);
    assert_eq!(ledger.delay(&a, wait, unknown).await.unwrap(), Delayed::Committed);
    eventually("silence", async || match ledger.delay(&a, wait, unknown).await.unwrap() {
        Delayed::Committed => None,
        Delayed::Still => Some(()),
        answer => panic!("{answer:?}"),
    })
    .await;
}

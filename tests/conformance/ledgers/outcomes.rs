//! What is recorded of a run, and of what never ran.

use super::*;

pub(crate) async fn verdicts_and_what_they_leave(stage: &impl LedgerStage) {
    let ledger = stage.worker(LONG);
    let after = async |id: &str, verdict: Verdict| {
        let task = task(id);
        let held = granted(claim(&ledger, &task).await).held;
        assert_eq!(record(&ledger, &task, &held, verdict).await, Recorded::Committed);
        seen(stage, id).await
    };
    assert_eq!(after("s", success()).await, Seen::of(Status::Succeeded, 1, 0, 0));
    assert_eq!(after("r", retry(LONG)).await, Seen::of(Status::Delayed, 1, 1, 0));
    let postponed = Verdict::Postponed { failure: Failure::retry("not yet"), delay: LONG };
    assert_eq!(after("p", postponed).await, Seen::of(Status::Delayed, 1, 0, 0));
    assert_eq!(after("f", failure()).await, Seen::of(Status::Failed, 1, 1, 0));
    assert_eq!(after("g", Verdict::Released).await, Seen::of(Status::Released, 2, 0, 0));
    assert_eq!(stage.letters().await, ["failed"]);
    let again = granted(claim(&ledger, &task("g")).await);
    assert_eq!((again.held.fence, again.attempt), (Fence(3), 1));
    let verdict = retry(Duration::ZERO);
    assert_eq!(record(&ledger, &task("g"), &again.held, verdict).await, Recorded::Committed);
    let third = granted(claim(&ledger, &task("g")).await);
    assert_eq!((third.held.fence, third.attempt), (Fence(4), 2));
}

pub(crate) async fn an_outcome_whose_reply_was_lost_is_there(stage: &impl LedgerStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    for (id, verdict) in
        [("s", success()), ("r", retry(LONG)), ("f", failure()), ("g", Verdict::Released)]
    {
        let task = task(id);
        let held = granted(claim(&ours, &task).await).held;
        for _ in 0..2 {
            let again = record(&ours, &task, &held, verdict.clone()).await;
            assert_eq!(again, Recorded::Committed, "{id}");
        }
        assert_eq!(record(&theirs, &task, &held, verdict).await, Recorded::Stale, "{id}");
    }
    assert_eq!(seen(stage, "r").await.attempts, 1);
    assert_eq!(stage.letters().await, ["failed"]);
}

pub(crate) async fn releases_and_failures_count_no_crash(stage: &impl LedgerStage) {
    let (ours, a) = (stage.worker(SHORT), task("a"));
    granted(claim(&ours, &a).await);
    let second = granted(take_over(&ours, &a).await);
    assert_eq!(record(&ours, &a, &second.held, Verdict::Released).await, Recorded::Committed);
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Released, 3, 0, 1));
    let third = granted(claim(&ours, &a).await);
    assert_eq!((third.held.fence, third.crashes), (Fence(4), 1));
    let verdict = retry(Duration::ZERO);
    assert_eq!(record(&ours, &a, &third.held, verdict).await, Recorded::Committed);
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Delayed, 4, 1, 0));
}

pub(crate) async fn refused_entries_are_one_letter(stage: &impl LedgerStage) {
    let ledger = stage.worker(LONG);
    let refused = |reason| Malformed { reason, message: "why".to_owned() };
    let other = EntryId { ms: 5, seq: 2 };
    let malformed = refused(MalformedReason::Malformed);
    for _ in 0..2 {
        ledger.bury(&queue(), ENTRY, &raw("\0"), &malformed).await.unwrap();
    }
    let oversized = refused(MalformedReason::Oversized);
    ledger.bury(&queue(), other, &raw("x"), &oversized).await.unwrap();
    assert_eq!(stage.letters().await, ["malformed", "oversized"]);
}

pub(crate) async fn what_is_old_is_forgotten(stage: &impl LedgerStage) {
    let ledger = stage.worker(LONG);
    for (id, verdict) in [("s", success()), ("f", failure()), ("r", retry(LONG))] {
        let task = task(id);
        let held = granted(claim(&ledger, &task).await).held;
        assert_eq!(record(&ledger, &task, &held, verdict).await, Recorded::Committed);
    }
    let of = |succeeded, failed| Retention { succeeded, failed, letters: LONG, batch: 10 };
    let pruned = ledger.prune(&of(LONG, LONG)).await.unwrap();
    assert_eq!((pruned.tasks, pruned.letters, pruned.more), (0, 0, false));
    let prune = async |retention: Retention| {
        eventually("something old", async || {
            let pruned = ledger.prune(&retention).await.unwrap();
            (pruned.tasks > 0).then_some(pruned.tasks)
        })
        .await
    };
    assert_eq!(prune(of(Duration::ZERO, LONG)).await, 1);
    assert_eq!(stage.row("s").await, None);
    assert_eq!(prune(of(LONG, Duration::ZERO)).await, 1);
    assert_eq!(stage.row("f").await, None);
    assert_eq!(seen(stage, "r").await.status, Status::Delayed);
}

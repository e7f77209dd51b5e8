//! What every ledger answers.

use std::sync::Arc;
use std::time::Duration;

use queue_worker::domain::{
    EntryId, Failure, Fence, Held, Malformed, MalformedReason, Task, Verdict,
};
use queue_worker::ledger::{
    Beat, Claimed, DelayReason, Delayed, Due, Grant, Ledger, Performed, Recorded, Retention, Status,
};

use crate::stage::{LedgerStage, Seen, eventually, note, queue, raw, task, task_with};

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
    ledger.delay(task, time, DelayReason::NotBefore).await.unwrap()
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

pub(crate) async fn claims_in_every_state(stage: &impl LedgerStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let a = task("a");
    let grant = granted(claim(&ours, &a).await);
    assert_eq!((grant.held.fence, grant.attempt, grant.crashes), (Fence(1), 1, 0));
    assert_eq!(grant.held.resource, None);
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Running, 1, 0, 0));
    for ledger in [&ours, &theirs] {
        let Claimed::Running { remaining } = claim(ledger, &a).await else { panic!() };
        assert!(remaining > LONG / 2 && remaining <= LONG, "{remaining:?}");
    }
    assert_eq!(claim(&theirs, &task_with("a", "other", None)).await, Claimed::Conflict);
    assert_eq!(record(&ours, &a, &grant.held, success()).await, Recorded::Committed);
    assert_eq!(claim(&theirs, &a).await, Claimed::Done(Status::Succeeded));
    assert_eq!(claim(&theirs, &task_with("a", "other", None)).await, Claimed::Conflict);

    let (late, due, b) = (task("late"), task("due"), task("b"));
    assert_eq!(delay(&ours, &late, LONG).await, Delayed::Committed);
    assert_eq!(claim(&theirs, &late).await, Claimed::Delayed);
    assert_eq!(delay(&ours, &due, Duration::ZERO).await, Delayed::Committed);
    assert_eq!(granted(claim(&theirs, &due).await).held.fence, Fence(1));
    let held = granted(claim(&ours, &b).await).held;
    assert_eq!(record(&ours, &b, &held, failure()).await, Recorded::Committed);
    assert_eq!(claim(&theirs, &b).await, Claimed::Done(Status::Failed));
}

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

pub(crate) async fn an_older_fence_writes_nothing(stage: &impl LedgerStage) {
    let (first, second) = (stage.worker(SHORT), stage.worker(SHORT));
    let a = task("a");
    let old = granted(claim(&first, &a).await).held;
    let new = granted(take_over(&second, &a).await).held;
    assert_eq!(new.fence, Fence(2));
    for verdict in [success(), retry(LONG), failure(), Verdict::Released] {
        assert_eq!(record(&first, &a, &old, verdict).await, Recorded::Stale);
    }
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Running, 2, 0, 1));
    // Past its lease, but nobody has taken over: the fence still stands.
    assert_eq!(record(&second, &a, &new, success()).await, Recorded::Committed);
    assert_eq!(record(&first, &a, &old, success()).await, Recorded::Stale);
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

pub(crate) async fn crashes_count_up_to_the_fourth(stage: &impl LedgerStage) {
    let a = task("a");
    granted(claim(&stage.worker(SHORT), &a).await);
    for crash in 1..=3 {
        let grant = granted(take_over(&stage.worker(SHORT), &a).await);
        assert_eq!((grant.crashes, grant.attempt), (crash, 1));
        assert_eq!(grant.held.fence, Fence(i64::from(crash) + 1));
    }
    let (ours, theirs) = (stage.worker(SHORT), stage.worker(SHORT));
    assert_eq!(take_over(&ours, &a).await, Claimed::Poisoned { crashes: 4 });
    assert_eq!(claim(&theirs, &a).await, Claimed::Poisoned { crashes: 4 });
    assert_eq!(delay(&theirs, &a, LONG).await, Delayed::Stale);
    let other = task_with("a", "other", None);
    assert_eq!(ours.condemn(&other).await.unwrap(), Recorded::Stale);
    assert_eq!(ours.condemn(&a).await.unwrap(), Recorded::Committed);
    assert_eq!(theirs.condemn(&a).await.unwrap(), Recorded::Stale);
    assert_eq!(claim(&theirs, &a).await, Claimed::Done(Status::Dead));
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Dead, 4, 0, 4));
    assert_eq!(stage.letters().await, ["crashed"]);

    let b = task("b");
    assert_eq!(ours.condemn(&b).await.unwrap(), Recorded::Stale);
    granted(claim(&ours, &b).await);
    assert_eq!(theirs.condemn(&b).await.unwrap(), Recorded::Stale);
}

pub(crate) async fn suspects_are_refused_in_company(stage: &impl LedgerStage) {
    let (ours, a) = (stage.worker(SHORT), task("a"));
    granted(claim(&ours, &a).await);
    let company = async || {
        eventually("a takeover", async || match ours.claim_in_company(&a).await.unwrap() {
            Claimed::Running { .. } => None,
            answer => Some(answer),
        })
        .await
    };
    assert_eq!(granted(company().await).crashes, 1);
    assert_eq!(company().await, Claimed::Suspect { crashes: 2 });
    let alone = ours.perform(&a, None, &note(), LIMIT).await.unwrap();
    assert_eq!(alone, Performed::NotClaimed(Claimed::Suspect { crashes: 2 }));
    assert_eq!(granted(claim(&ours, &a).await).crashes, 2);
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

pub(crate) async fn delays_wait_and_are_refused(stage: &impl LedgerStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let a = task("a");
    for reason in [DelayReason::NotBefore, DelayReason::Contended, DelayReason::Suspect] {
        let answer = ours.delay(&a, LONG, reason).await.unwrap();
        assert_eq!(answer, Delayed::Committed);
        assert_eq!(seen(stage, "a").await, Seen::of(Status::Delayed, 0, 0, 0));
    }
    let other = task_with("a", "other", None);
    assert_eq!(delay(&ours, &other, LONG).await, Delayed::Conflict);

    let b = task("b");
    let held = granted(claim(&ours, &b).await).held;
    assert_eq!(delay(&theirs, &b, LONG).await, Delayed::Stale);
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
        ledger.delay(&a, Duration::ZERO, DelayReason::UnknownKind { give_up }).await.unwrap()
    };
    assert_eq!(unknown(LONG).await, Delayed::Committed);
    assert_eq!(seen(stage, "a").await.status, Status::Delayed);
    assert_eq!(unknown(LONG).await, Delayed::Committed);
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
            Seen::of(Status::Running, 1, 0, 0).with_payload()
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
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Running, 1, 0, 0).with_payload());
    let due = next_due(&theirs).await;
    assert_eq!((due.task_id.as_str(), due.fence, due.entry), ("a", Fence(1), None));
    assert_eq!(due.raw, a.to_raw());
    theirs.promoted(&due, ENTRY).await.unwrap();
    let running = Seen::of(Status::Running, 1, 0, 0).with_payload().at(ENTRY);
    assert_eq!(seen(stage, "a").await, running);
    assert_eq!(next_due(&theirs).await.entry, Some(ENTRY));
    let grant = granted(take_over(&theirs, &a).await);
    assert_eq!((grant.held.fence, grant.crashes), (Fence(2), 1));
    assert_eq!(record(&theirs, &a, &grant.held, success()).await, Recorded::Committed);
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Succeeded, 2, 0, 1));
}

pub(crate) async fn single_commits_take_everything_or_nothing(stage: &impl LedgerStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let perform = async |task: &Arc<Task>| ours.perform(task, None, &note(), LIMIT).await.unwrap();
    let a = task("a");
    assert_eq!(perform(&a).await, Performed::Committed);
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Succeeded, 1, 0, 0));
    assert_eq!(perform(&a).await, Performed::NotClaimed(Claimed::Done(Status::Succeeded)));
    let failing = task_with("b", "fail", None);
    let failed = Performed::Failed(Failure::for_good("as asked"));
    assert_eq!(perform(&failing).await, failed);
    assert_eq!(stage.row("b").await, None);
    let Performed::Failed(panic) = perform(&task_with("c", "panic", None)).await else { panic!() };
    assert_eq!(panic.status.as_deref(), Some("panic"));
    let d = task("d");
    granted(claim(&theirs, &d).await);
    let Performed::NotClaimed(Claimed::Running { .. }) = perform(&d).await else { panic!() };
    let e = task("e");
    delay(&ours, &e, LONG).await;
    assert_eq!(perform(&e).await, Performed::NotClaimed(Claimed::Delayed));
    let f = task("f");
    delay(&ours, &f, Duration::ZERO).await;
    assert_eq!(perform(&f).await, Performed::Committed);
    assert_eq!(seen(stage, "f").await, Seen::of(Status::Succeeded, 1, 0, 0));
    assert_eq!(stage.notes().await, [("a".into(), 1), ("f".into(), 1)]);
}

pub(crate) async fn single_commits_lock_their_row(stage: &impl LedgerStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let a = task_with("a", "slow", None);
    let effect = note();
    let performing = ours.perform(&a, None, &effect, LIMIT);
    let meanwhile = async {
        // Either the row is not there yet, or it is locked; never is it granted.
        eventually("the end of the effect", async || match claim(&theirs, &a).await {
            Claimed::Running { .. } => None,
            answer => Some(answer),
        })
        .await
    };
    tokio::pin!(performing);
    // The transaction begins before the other claim is sent.
    let first = tokio::time::timeout(crate::stage::SLOW / 4, &mut performing).await;
    assert!(first.is_err(), "{first:?}");
    let (performed, claimed) = tokio::join!(performing, meanwhile);
    assert_eq!(performed.unwrap(), Performed::Committed);
    assert_eq!(claimed, Claimed::Done(Status::Succeeded));
    let limited = task_with("b", "slow", None);
    let short = Duration::from_millis(50);
    match ours.perform(&limited, None, &effect, short).await {
        Ok(Performed::Committed) | Err(_) => {}
        Ok(Performed::Failed(failure)) => assert_eq!(failure.status.as_deref(), Some("timeout")),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn claimed_effects_commit_under_their_fence(stage: &impl LedgerStage) {
    let (ours, theirs) = (stage.worker(SHORT), stage.worker(SHORT));
    let a = task("a");
    let old = granted(claim(&ours, &a).await);
    let new = granted(take_over(&theirs, &a).await);
    let perform = async |ledger: &Arc<dyn Ledger>, task: &Arc<Task>, grant: &Grant| {
        ledger.perform(task, Some(grant), &note(), LIMIT).await.unwrap()
    };
    assert_eq!(perform(&ours, &a, &old).await, Performed::Stale);
    assert!(stage.notes().await.is_empty());
    assert_eq!(perform(&theirs, &a, &new).await, Performed::Committed);
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Succeeded, 2, 0, 1));
    assert_eq!(perform(&ours, &a, &old).await, Performed::Stale);
    assert_eq!(stage.notes().await, [("a".into(), 2)]);

    let b = task_with("b", "fail", None);
    let grant = granted(claim(&ours, &b).await);
    let failed = Performed::Failed(Failure::for_good("as asked"));
    assert_eq!(perform(&ours, &b, &grant).await, failed);
    assert_eq!(seen(stage, "b").await, Seen::of(Status::Running, 1, 0, 0));
    assert_eq!(record(&ours, &b, &grant.held, failure()).await, Recorded::Committed);
    assert_eq!(stage.notes().await.len(), 1);
}

pub(crate) async fn resources_are_held_by_one(stage: &impl LedgerStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let keyed = |id: &str| task_with(id, "hello", Some("repo"));
    let (a, b) = (keyed("a"), keyed("b"));
    let first = granted(claim(&ours, &a).await).held;
    assert_eq!(first.effect_fence(), Fence(1));
    let Claimed::Contended { remaining } = claim(&theirs, &b).await else { panic!() };
    assert!(remaining > LONG / 2 && remaining <= LONG, "{remaining:?}");
    assert_eq!(stage.row("b").await, None);
    let refused = theirs.perform(&b, None, &note(), LIMIT).await.unwrap();
    assert!(matches!(refused, Performed::NotClaimed(Claimed::Contended { .. })), "{refused:?}");
    let Claimed::Running { .. } = claim(&theirs, &a).await else { panic!() };
    let other = task_with("a", "other", Some("repo"));
    assert_eq!(claim(&theirs, &other).await, Claimed::Conflict);
    for verdict in [retry(Duration::ZERO), Verdict::Released, success()] {
        let held = match verdict {
            Verdict::Retry { .. } => first.clone(),
            _ => granted(claim(&ours, &a).await).held,
        };
        assert_eq!(record(&ours, &a, &held, verdict).await, Recorded::Committed);
    }
    // Three claims have raised the resource's fence, the refused ones have not.
    assert_eq!(theirs.perform(&b, None, &note(), LIMIT).await.unwrap(), Performed::Committed);
    let c = granted(claim(&ours, &keyed("c")).await);
    assert_eq!((c.held.fence, c.held.effect_fence()), (Fence(1), Fence(5)));
    let performed = ours.perform(&keyed("c"), Some(&c), &note(), LIMIT).await.unwrap();
    assert_eq!(performed, Performed::Committed);
    assert_eq!(stage.notes().await, [("b".into(), 4), ("c".into(), 5)]);
    granted(claim(&theirs, &keyed("d")).await);
}

pub(crate) async fn a_lost_resource_refuses_success(stage: &impl LedgerStage) {
    let (ours, theirs) = (stage.worker(SHORT), stage.worker(SHORT));
    let keyed = |id: &str| task_with(id, "hello", Some("repo"));
    let (a, b) = (keyed("a"), keyed("b"));
    let old = granted(claim(&ours, &a).await);
    let new = eventually("the resource", async || match claim(&theirs, &b).await {
        Claimed::Contended { .. } => None,
        answer => Some(granted(answer)),
    })
    .await;
    assert_eq!(new.held.effect_fence(), Fence(2));
    // Its row is still its own; what it did to the resource is not.
    assert_eq!(record(&ours, &a, &old.held, success()).await, Recorded::Stale);
    let performed = ours.perform(&a, Some(&old), &note(), LIMIT).await.unwrap();
    assert_eq!(performed, Performed::Stale);
    assert_eq!(ours.renew(std::slice::from_ref(&old.held)).await.unwrap(), [Beat::Lost]);
    assert_eq!(record(&ours, &a, &old.held, Verdict::Released).await, Recorded::Committed);
    assert_eq!(record(&theirs, &b, &new.held, success()).await, Recorded::Committed);
    assert!(stage.notes().await.is_empty());
}

pub(crate) async fn renewals_keep_and_lose(stage: &impl LedgerStage) {
    let lease = Duration::from_millis(400);
    let (ours, theirs) = (stage.worker(lease), stage.worker(lease));
    let (a, b) = (task("a"), task_with("b", "hello", Some("repo")));
    let held = [granted(claim(&ours, &a).await).held, granted(claim(&ours, &b).await).held];
    let end = tokio::time::Instant::now() + 2 * lease;
    while tokio::time::Instant::now() < end {
        assert_eq!(ours.renew(&held).await.unwrap(), [Beat::Renewed, Beat::Renewed]);
        let Claimed::Running { .. } = claim(&theirs, &a).await else { panic!() };
        tokio::time::sleep(lease / 8).await;
    }
    let other = task_with("c", "hello", Some("repo"));
    let Claimed::Contended { .. } = claim(&theirs, &other).await else { panic!() };
    granted(take_over(&theirs, &a).await);
    granted(take_over(&theirs, &b).await);
    assert_eq!(ours.renew(&held).await.unwrap(), [Beat::Lost, Beat::Lost]);
    assert_eq!(ours.renew(&[]).await.unwrap(), []);
    let done = task("d");
    let done_held = granted(claim(&ours, &done).await).held;
    assert_eq!(record(&ours, &done, &done_held, success()).await, Recorded::Committed);
    assert_eq!(ours.renew(&[done_held]).await.unwrap(), [Beat::Lost]);
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

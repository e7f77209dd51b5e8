//! Claims, takeovers and renewals.

use super::*;

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

pub(crate) async fn an_older_fence_writes_nothing(stage: &impl LedgerStage) {
    let (first, second) = (stage.worker(SHORT), stage.worker(SHORT));
    let a = task("a");
    let old = granted(claim(&first, &a).await).held;
    let new = granted(take_over(&second, &a).await).held;
    assert_eq!(new.fence, Fence(2));
    for verdict in [success(), retry(LONG), failure(), Verdict::Released] {
        assert_eq!(record(&first, &a, &old, verdict).await, Recorded::Stale);
    }
    assert_eq!(seen(stage, "a").await, Seen::of(Status::Running, 2, 0, 1).looked_after());
    // Past its lease, but nobody has taken over: the fence still stands.
    assert_eq!(record(&second, &a, &new, success()).await, Recorded::Committed);
    assert_eq!(record(&first, &a, &old, success()).await, Recorded::Stale);
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
    let waited = |refused| match refused {
        Claimed::Suspect { crashes: 2, waited } => waited,
        answer => panic!("{answer:?}"),
    };
    assert_eq!(granted(company().await).crashes, 1);
    let first = waited(company().await);
    let Performed::NotClaimed(alone) = ours.perform(&a, None, &note(), LIMIT).await.unwrap() else {
        panic!("it runs alone or not at all")
    };
    assert!(waited(alone) >= first);
    // The wait goes on, on whatever worker, also while it is delayed.
    let theirs = stage.worker(SHORT);
    let longer = Duration::from_millis(30);
    eventually("a longer wait", async || {
        let answer = theirs.claim_in_company(&a).await.unwrap();
        (waited(answer) >= first + longer).then_some(())
    })
    .await;
    let delayed = theirs.delay(&a, Duration::ZERO.into(), DelayReason::Suspect).await.unwrap();
    assert_eq!(delayed, Delayed::Committed);
    assert!(waited(company().await) >= first + longer);
    assert_eq!(granted(claim(&ours, &a).await).crashes, 2);
}

pub(crate) async fn renewals_keep_and_lose(stage: &impl LedgerStage) {
    let lease = Duration::from_millis(400);
    let (ours, theirs) = (stage.worker(lease), stage.worker(lease));
    let (a, b) = (task("a"), task_with("b", "hello", Some("repo")));
    let held = [granted(claim(&ours, &a).await).held, granted(claim(&ours, &b).await).held];
    let forgotten = task("forgotten");
    granted(claim(&theirs, &forgotten).await);
    eventually("two leases to be over that nobody renews", async || {
        assert_eq!(ours.renew(&held).await.unwrap(), [Beat::Renewed, Beat::Renewed]);
        let Claimed::Running { .. } = claim(&theirs, &a).await else { panic!() };
        match claim(&theirs, &forgotten).await {
            Claimed::Running { .. } => None,
            answer => (granted(answer).crashes == 2).then_some(()),
        }
    })
    .await;
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

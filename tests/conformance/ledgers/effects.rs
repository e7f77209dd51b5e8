//! Effects that commit with the success of their tasks.

use super::*;

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
    let a = task_with("a", "gated", None);
    let gated = Arc::new(Note::default());
    let effect: Arc<dyn Effect> = Arc::<Note>::clone(&gated);
    let meanwhile = async {
        gated.until_begun().await;
        let Claimed::Running { .. } = claim(&theirs, &a).await else { panic!() };
        gated.open_gate();
        eventually("the end of the effect", async || match claim(&theirs, &a).await {
            Claimed::Running { .. } => None,
            answer => Some(answer),
        })
        .await
    };
    let (performed, claimed) = tokio::join!(ours.perform(&a, None, &effect, LIMIT), meanwhile);
    assert_eq!(performed.unwrap(), Performed::Committed);
    assert_eq!(claimed, Claimed::Done(Status::Succeeded));
    let endless = task_with("b", "endless", None);
    let answer = ours.perform(&endless, None, &effect, Duration::from_millis(50)).await.unwrap();
    let Performed::Failed(failure) = answer else { panic!("{answer:?}") };
    assert_eq!(failure.status.as_deref(), Some("timeout"));
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

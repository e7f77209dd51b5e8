//! What tasks with the same lock key share.

use super::*;

pub(crate) async fn resources_are_held_by_one(stage: &impl LedgerStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let keyed = |id: &str| task_with(id, "hello", Some("repo"));
    let (a, b) = (keyed("a"), keyed("b"));
    let first = granted(claim(&ours, &a).await).held;
    assert_eq!(first.effect_fence(), Fence(1));
    let Claimed::Contended { remaining } = claim(&theirs, &b).await else { panic!() };
    assert!(remaining > LONG / 2 && remaining <= LONG, "{remaining:?}");
    assert_eq!(stage.row("b").await, None);
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
    let taken = granted(claim(&theirs, &b).await);
    let performed = theirs.perform(&b, Some(&taken), &note(), LIMIT).await.unwrap();
    assert_eq!(performed, Performed::Committed);
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

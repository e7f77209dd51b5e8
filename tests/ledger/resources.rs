//! Resources: one holder at a time, and a fence that only rises.

use std::sync::Arc;

use queue_worker::domain::Fence;
use queue_worker::ledger::{Beat, Claimed, Ledger, Recorded, Status, Verdict};

use crate::server::{Server, granted, take_over, task_with};

#[tokio::test]
async fn the_second_task_is_contended_until_the_first_is_done() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let (first, second) = (task_with("1", b"", Some("repo")), task_with("2", b"", Some("repo")));
    let grant = granted(ledger.claim(&first).await);
    assert_eq!(grant.held.effect_fence(), Fence(1));
    let Claimed::Contended { remaining } = ledger.claim(&second).await.unwrap() else { panic!() };
    assert!(remaining > std::time::Duration::from_secs(3));
    assert!(ledger.task("2").await.unwrap().is_none(), "nothing is written");
    let verdict = Verdict::Succeeded { result: None };
    assert_eq!(ledger.record(&first, &grant.held, verdict).await.unwrap(), Recorded::Committed);
    let grant = granted(ledger.claim(&second).await);
    assert_eq!((grant.held.fence, grant.held.effect_fence()), (Fence(1), Fence(2)));
}

#[tokio::test]
async fn a_crowd_for_one_resource_has_one_winner() {
    let server = Server::migrated().await;
    let ledger = Arc::new(server.ledger());
    let mut claims = tokio::task::JoinSet::new();
    for n in 0..100 {
        let ledger = Arc::clone(&ledger);
        let task = task_with(&format!("{n}"), b"", Some(&format!("repo-{}", n % 2)));
        claims.spawn(async move { ledger.claim(&task).await.unwrap() });
    }
    let mut winners = 0;
    while let Some(claimed) = claims.join_next().await {
        match claimed.unwrap() {
            Claimed::Granted(grant) => {
                assert_eq!(grant.held.effect_fence(), Fence(1));
                winners += 1;
            }
            Claimed::Contended { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(winners, 2);
}

#[tokio::test]
async fn a_refused_task_does_not_raise_the_fence() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let task = task_with("1", b"", Some("repo"));
    let grant = granted(ledger.claim(&task).await);
    assert!(matches!(server.ledger().claim(&task).await.unwrap(), Claimed::Running { .. }));
    assert_eq!(ledger.renew(std::slice::from_ref(&grant.held)).await.unwrap(), [Beat::Renewed]);
    let verdict = Verdict::Succeeded { result: None };
    assert_eq!(ledger.record(&task, &grant.held, verdict).await.unwrap(), Recorded::Committed);
    assert_eq!(ledger.claim(&task).await.unwrap(), Claimed::Done(Status::Succeeded));
    let next = granted(ledger.claim(&task_with("2", b"", Some("repo"))).await);
    assert_eq!(next.held.effect_fence(), Fence(2));
}

#[tokio::test]
async fn a_takeover_raises_both_fences() {
    let server = Server::migrated().await;
    let task = task_with("1", b"", Some("repo"));
    let old = server.hasty();
    let stale = granted(old.claim(&task).await);
    let new = server.ledger();
    let Claimed::Granted(grant) = take_over(&server.hasty(), &task).await else { panic!() };
    assert_eq!((grant.held.fence, grant.held.effect_fence()), (Fence(2), Fence(2)));
    assert_eq!(
        new.renew(&[stale.held.clone(), grant.held.clone()]).await.unwrap(),
        [Beat::Lost, Beat::Renewed]
    );
    let verdict = Verdict::Succeeded { result: None };
    assert_eq!(old.record(&task, &stale.held, verdict).await.unwrap(), Recorded::Stale);
    // The stale record has not freed the resource either.
    let other = task_with("2", b"", Some("repo"));
    assert!(matches!(new.claim(&other).await.unwrap(), Claimed::Contended { .. }));
}

#[tokio::test]
async fn a_success_under_a_lost_resource_is_stale() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let (first, second) = (task_with("1", b"", Some("repo")), task_with("2", b"", Some("repo")));
    let grant = granted(ledger.claim(&first).await);
    sqlx::query("UPDATE queue_worker.resources SET lease_until = now()")
        .execute(&mut server.connect().await)
        .await
        .unwrap();
    assert_eq!(granted(ledger.claim(&second).await).held.effect_fence(), Fence(2));
    assert_eq!(ledger.renew(std::slice::from_ref(&grant.held)).await.unwrap(), [Beat::Lost]);
    let verdict = Verdict::Succeeded { result: None };
    assert_eq!(ledger.record(&first, &grant.held, verdict).await.unwrap(), Recorded::Stale);
    // Giving it back is about the task alone.
    let recorded = ledger.record(&first, &grant.held, Verdict::Released).await.unwrap();
    assert_eq!(recorded, Recorded::Committed);
    assert!(matches!(ledger.claim(&first).await.unwrap(), Claimed::Contended { .. }));
}

#[tokio::test]
async fn every_verdict_frees_the_resource() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let failure = queue_worker::domain::Failure::retry("no");
    let retry =
        Verdict::Retry { failure: failure.clone(), delay: std::time::Duration::from_secs(9) };
    for (n, verdict) in
        [Verdict::Succeeded { result: None }, retry, Verdict::Failed { failure }, Verdict::Released]
            .into_iter()
            .enumerate()
    {
        let task = task_with(&format!("{n}"), b"", Some("repo"));
        let grant = granted(ledger.claim(&task).await);
        assert_eq!(grant.held.effect_fence(), Fence(i64::try_from(n).unwrap() + 1));
        let recorded = ledger.record(&task, &grant.held, verdict).await.unwrap();
        assert_eq!(recorded, Recorded::Committed);
    }
}

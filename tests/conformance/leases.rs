//! What every store of locks answers.

use std::time::Duration;

use queue_worker::lease::{Acquired, LeaseStore, Lock, Renewal};

use crate::stage::{LeaseStage, eventually};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);
/// Over almost at once.
const SHORT: Duration = Duration::from_millis(300);

async fn lock(store: &dyn LeaseStore, name: &str) -> Lock {
    match store.acquire(name).await.unwrap() {
        Acquired::Granted(lock) => lock,
        taken @ Acquired::Taken { .. } => panic!("{taken:?}"),
    }
}

async fn taken(store: &dyn LeaseStore, name: &str) -> Duration {
    match store.acquire(name).await.unwrap() {
        Acquired::Taken { remaining } => remaining,
        granted @ Acquired::Granted(_) => panic!("{granted:?}"),
    }
}

pub(crate) async fn one_holder_at_a_time(stage: &impl LeaseStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let a = lock(&*ours, "a").await;
    assert_eq!(a.name, "a");
    for store in [&ours, &theirs] {
        let remaining = taken(&**store, "a").await;
        assert!(remaining > LONG / 2 && remaining <= LONG, "{remaining:?}");
    }
    let b = lock(&*theirs, "b").await;
    assert_ne!(a.token, b.token);
    ours.release(&a).await.unwrap();
    let again = lock(&*theirs, "a").await;
    assert_ne!(a.token, again.token);
}

pub(crate) async fn only_the_owner_releases(stage: &impl LeaseStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let old = lock(&*ours, "a").await;
    stage.forget("a").await;
    let new = lock(&*theirs, "a").await;
    ours.release(&old).await.unwrap();
    taken(&*ours, "a").await;
    theirs.release(&new).await.unwrap();
    theirs.release(&new).await.unwrap();
    lock(&*ours, "a").await;
}

pub(crate) async fn renewals_extend_and_set_again(stage: &impl LeaseStage) {
    let (ours, theirs) = (stage.worker(SHORT), stage.worker(SHORT));
    let (a, b) = (lock(&*ours, "a").await, lock(&*ours, "b").await);
    let mut forgotten = 0;
    eventually("two locks to end that nobody renews", async || {
        let renewed = ours.renew(&[a.clone(), b.clone()]).await.unwrap();
        assert_eq!(renewed, [Renewal::Renewed, Renewal::Renewed]);
        assert!(taken(&*theirs, "a").await > SHORT / 4, "it is extended each time");
        let free = theirs.acquire("forgotten").await.unwrap();
        forgotten += usize::from(matches!(free, Acquired::Granted(_)));
        // Free at first.
        (forgotten == 3).then_some(())
    })
    .await;
    stage.forget("a").await;
    assert_eq!(ours.renew(std::slice::from_ref(&a)).await.unwrap(), [Renewal::Renewed]);
    taken(&*theirs, "a").await;
    stage.forget("a").await;
    let foreign = lock(&*theirs, "a").await;
    assert_eq!(ours.renew(&[b, a]).await.unwrap(), [Renewal::Renewed, Renewal::Foreign]);
    assert_eq!(theirs.renew(&[foreign]).await.unwrap(), [Renewal::Renewed]);
    assert_eq!(ours.renew(&[]).await.unwrap(), []);
}

pub(crate) async fn locks_end_by_themselves(stage: &impl LeaseStage) {
    let (ours, theirs) = (stage.worker(SHORT), stage.worker(SHORT));
    let old = lock(&*ours, "a").await;
    let new =
        eventually("the end of the lock", async || match theirs.acquire("a").await.unwrap() {
            Acquired::Granted(lock) => Some(lock),
            Acquired::Taken { .. } => None,
        })
        .await;
    ours.release(&old).await.unwrap();
    assert_eq!(theirs.renew(&[new]).await.unwrap(), [Renewal::Renewed]);
}

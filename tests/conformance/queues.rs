//! What every queue answers.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use queue_worker::domain::{Delivery, EntryId, Origin};
use queue_worker::queue::{Demand, Queue};

use crate::stage::{QueueStage, eventually, queue, raw};

/// No entry is free to be taken within a test.
const LONG: Duration = Duration::from_secs(60);
/// Entries are free after this.
const SHORT: Duration = Duration::from_millis(150);
const MANY: Demand = Demand { entries: 100, bytes: 1_000_000_000 };
const START: EntryId = EntryId { ms: 0, seq: 0 };

async fn append(worker: &Arc<dyn Queue>, payload: &str) -> EntryId {
    worker.append(&queue(), &raw(payload)).await.unwrap()
}

async fn fetch(worker: &Arc<dyn Queue>, demand: Demand) -> Vec<Delivery> {
    worker.fetch(&queue(), demand, Duration::from_millis(1)).await.unwrap()
}

async fn reclaim(worker: &Arc<dyn Queue>) -> Vec<Delivery> {
    worker.reclaim(&queue(), MANY).await.unwrap()
}

async fn until_reclaimed(worker: &Arc<dyn Queue>) -> Vec<Delivery> {
    eventually("an idle entry", async || {
        let found = reclaim(worker).await;
        (!found.is_empty()).then_some(found)
    })
    .await
}

fn ids(deliveries: &[Delivery]) -> Vec<EntryId> {
    deliveries.iter().map(|delivery| delivery.entry).collect()
}

pub(crate) async fn entries_come_once_and_in_order(stage: &impl QueueStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    ours.check().await.unwrap();
    let added = [append(&ours, "a").await, append(&theirs, "b").await, append(&ours, "c").await];
    assert!(added.is_sorted());
    let two = fetch(&ours, Demand { entries: 2, ..MANY }).await;
    assert_eq!(ids(&two), added[..2]);
    assert!(two.iter().all(|delivery| delivery.origin == Origin::Fresh));
    assert_eq!(
        two.iter().map(|delivery| delivery.raw.clone()).collect::<Vec<_>>(),
        [raw("a"), raw("b")]
    );
    assert_eq!(ids(&fetch(&theirs, MANY).await), added[2..]);
    assert!(fetch(&ours, MANY).await.is_empty());
    assert!(ours.contains(&queue(), added[0]).await.unwrap());
    assert!(!ours.contains(&queue(), EntryId { ms: 1, seq: 99 }).await.unwrap());
}

pub(crate) async fn demands_are_kept_to(stage: &impl QueueStage) {
    let worker = stage.worker(LONG);
    for _ in 0..5 {
        append(&worker, &"x".repeat(600_000)).await;
    }
    let bytes = Demand { entries: 100, bytes: 1_000_000 };
    assert_eq!(
        fetch(&worker, bytes).await.len(),
        2,
        "the entry that reaches the bytes is the last"
    );
    assert!(fetch(&worker, Demand { entries: 0, ..MANY }).await.is_empty());
    assert!(fetch(&worker, Demand { bytes: 0, ..MANY }).await.is_empty());
    assert_eq!(fetch(&worker, Demand { entries: 1, ..MANY }).await.len(), 1);
    assert_eq!(fetch(&worker, MANY).await.len(), 2);
}

pub(crate) async fn settled_entries_are_gone(stage: &impl QueueStage) {
    let worker = stage.worker(Duration::ZERO);
    let (a, b) = (append(&worker, "a").await, append(&worker, "b").await);
    fetch(&worker, MANY).await;
    worker.settle(&queue(), a).await.unwrap();
    worker.settle(&queue(), a).await.unwrap();
    assert!(!worker.contains(&queue(), a).await.unwrap());
    assert_eq!(ids(&reclaim(&worker).await), [b]);
    let delivered = worker.delivered(&queue(), START, MANY).await.unwrap();
    assert_eq!(ids(&delivered), [b]);
}

pub(crate) async fn idle_entries_are_reclaimed(stage: &impl QueueStage) {
    let (ours, theirs) = (stage.worker(SHORT), stage.worker(SHORT));
    let added = [append(&ours, "a").await, append(&ours, "b").await, append(&ours, "c").await];
    assert_eq!(fetch(&ours, MANY).await.len(), 3);
    assert!(reclaim(&theirs).await.is_empty());
    let found = until_reclaimed(&theirs).await;
    assert_eq!(ids(&found), added);
    assert!(found.iter().all(|delivery| delivery.origin == Origin::Reclaimed));
    assert_eq!(found[0].raw, raw("a"));
    assert!(reclaim(&ours).await.is_empty(), "theirs has just got them");
    let one = Demand { entries: 1, ..MANY };
    let mut one_by_one = Vec::new();
    while one_by_one.len() < 3 {
        let next = async || ours.reclaim(&queue(), one).await.unwrap().pop();
        one_by_one.push(eventually("the next entry", next).await);
    }
    assert_eq!(ids(&one_by_one), added);
}

pub(crate) async fn entries_handed_over_are_free_at_once(stage: &impl QueueStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let entry = append(&ours, "a").await;
    fetch(&ours, MANY).await;
    assert!(reclaim(&theirs).await.is_empty());
    ours.hand_over(&queue(), entry, &raw("a")).await.unwrap();
    assert!(ours.delivered(&queue(), START, MANY).await.unwrap().is_empty(), "not ours any more");
    assert_eq!(ours.touch(&[(queue(), entry)]).await.unwrap(), [false]);
    assert_eq!(ids(&reclaim(&theirs).await), [entry]);
    assert!(reclaim(&ours).await.is_empty());
}

pub(crate) async fn a_lost_entry_is_added_again(stage: &impl QueueStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let entry = append(&ours, "a").await;
    fetch(&ours, MANY).await;
    stage.lose(&queue(), entry).await;
    ours.hand_over(&queue(), entry, &raw("a")).await.unwrap();
    let found = fetch(&theirs, MANY).await;
    assert_eq!(found.len(), 1);
    assert!(found[0].entry > entry);
    assert_eq!((found[0].raw.clone(), found[0].origin), (raw("a"), Origin::Fresh));
    assert!(ours.delivered(&queue(), START, MANY).await.unwrap().is_empty());
}

pub(crate) async fn postponed_entries_wait(stage: &impl QueueStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    let entry = append(&ours, "a").await;
    fetch(&ours, MANY).await;
    ours.postpone(&queue(), entry, SHORT).await.unwrap();
    assert!(ours.delivered(&queue(), START, MANY).await.unwrap().is_empty(), "not ours any more");
    assert!(reclaim(&theirs).await.is_empty());
    assert_eq!(ids(&until_reclaimed(&theirs).await), [entry]);
    theirs.postpone(&queue(), entry, 2 * LONG).await.unwrap();
    assert!(reclaim(&ours).await.is_empty());
}

pub(crate) async fn touched_entries_stay(stage: &impl QueueStage) {
    let min_idle = Duration::from_millis(400);
    let (ours, theirs) = (stage.worker(min_idle), stage.worker(min_idle));
    let (a, b) = (append(&ours, "a").await, append(&ours, "b").await);
    fetch(&ours, MANY).await;
    let mut others = Vec::new();
    eventually("the entry that nobody touches, twice", async || {
        assert_eq!(ours.touch(&[(queue(), a)]).await.unwrap(), [true]);
        others.extend(ids(&reclaim(&theirs).await));
        (others.len() >= 2).then_some(())
    })
    .await;
    assert_eq!(others, [b, b]);
    let touched = ours.touch(&[(queue(), b), (queue(), a)]).await.unwrap();
    assert_eq!(touched, [false, true]);
    assert!(ours.touch(&[]).await.unwrap().is_empty());
}

pub(crate) async fn only_the_owner_gives_back(stage: &impl QueueStage) {
    let (ours, theirs, third) =
        (stage.worker(LONG), stage.worker(LONG), stage.worker(Duration::from_secs(30)));
    let entry = append(&ours, "a").await;
    fetch(&ours, MANY).await;
    theirs.hand_over(&queue(), entry, &raw("a")).await.unwrap();
    theirs.postpone(&queue(), entry, Duration::ZERO).await.unwrap();
    assert_eq!(theirs.touch(&[(queue(), entry)]).await.unwrap(), [false]);
    assert!(reclaim(&third).await.is_empty());
    // Not even where the stream has lost it: its owner may still run it.
    stage.lose(&queue(), entry).await;
    theirs.hand_over(&queue(), entry, &raw("a")).await.unwrap();
    assert!(fetch(&third, MANY).await.is_empty());
}

pub(crate) async fn delivered_entries_are_found_again(stage: &impl QueueStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    assert!(ours.delivered(&queue(), START, MANY).await.unwrap().is_empty());
    let added = [append(&ours, "a").await, append(&ours, "b").await, append(&ours, "c").await];
    fetch(&ours, Demand { entries: 2, ..MANY }).await;
    fetch(&theirs, MANY).await;
    let found = ours.delivered(&queue(), START, MANY).await.unwrap();
    assert_eq!(ids(&found), added[..2]);
    assert!(found.iter().all(|delivery| delivery.origin == Origin::Reclaimed));
    let one = Demand { entries: 1, ..MANY };
    let after = ours.delivered(&queue(), added[0], one).await.unwrap();
    assert_eq!(ids(&after), added[1..2]);
    assert!(ours.delivered(&queue(), added[1], MANY).await.unwrap().is_empty());
}

async fn until_it_waits<T: Debug>(stage: &impl QueueStage, fetch: impl Future<Output = T>) {
    tokio::select! {
        biased;
        early = fetch => panic!("{early:?}"),
        () = stage.until_a_fetch_waits() => {}
    }
}

pub(crate) async fn a_fetch_waits_and_can_be_interrupted(stage: &impl QueueStage) {
    let worker = stage.worker(LONG);
    let name = queue();
    let waiting = worker.fetch(&name, MANY, LONG);
    tokio::pin!(waiting);
    until_it_waits(stage, &mut waiting).await;
    let (found, entry) = tokio::join!(waiting, append(&worker, "a"));
    assert_eq!(ids(&found.unwrap()), [entry]);
    let waiting = worker.fetch(&name, MANY, LONG);
    tokio::pin!(waiting);
    until_it_waits(stage, &mut waiting).await;
    let (found, ()) = tokio::join!(waiting, worker.interrupt(&name));
    assert!(found.unwrap().is_empty());
    worker.interrupt(&name).await;
    let entry = append(&worker, "b").await;
    assert_eq!(ids(&fetch(&worker, MANY).await), [entry], "an interrupt is over with its fetch");
}

pub(crate) async fn lost_entries_are_forgotten(stage: &impl QueueStage) {
    let (ours, theirs) = (stage.worker(Duration::ZERO), stage.worker(Duration::ZERO));
    let (a, b) = (append(&ours, "a").await, append(&ours, "b").await);
    fetch(&ours, MANY).await;
    stage.lose(&queue(), a).await;
    assert_eq!(ids(&reclaim(&theirs).await), [b]);
    theirs.settle(&queue(), b).await.unwrap();
    // Nothing is pending any more: the consumers can go.
    assert_eq!(theirs.reap_consumers(&queue(), Duration::ZERO).await.unwrap(), 2);
}

pub(crate) async fn consumers_go_when_nothing_is_pending(stage: &impl QueueStage) {
    let (ours, theirs) = (stage.worker(LONG), stage.worker(LONG));
    assert_eq!(ours.reap_consumers(&queue(), LONG).await.unwrap(), 0);
    let (entry, other) = (append(&ours, "a").await, append(&ours, "b").await);
    fetch(&ours, Demand { entries: 1, ..MANY }).await;
    fetch(&theirs, MANY).await;
    theirs.settle(&queue(), other).await.unwrap();
    assert_eq!(stage.consumers(&queue()).await, 2);
    assert_eq!(ours.reap_consumers(&queue(), LONG).await.unwrap(), 0, "something is pending");
    assert_eq!(theirs.reap_consumers(&queue(), Duration::ZERO).await.unwrap(), 1);
    ours.settle(&queue(), entry).await.unwrap();
    assert_eq!(theirs.reap_consumers(&queue(), LONG).await.unwrap(), 0, "not stale");
    assert_eq!(ours.reap_consumers(&queue(), LONG).await.unwrap(), 1);
    assert_eq!(stage.consumers(&queue()).await, 0);
}

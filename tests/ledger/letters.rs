//! Dead letters: bytes exact, one each, and the way back.

use std::sync::Arc;

use bytes::Bytes;
use queue_worker::domain::{
    EntryId, Failure, Kind, LockKey, Malformed, MalformedReason, PayloadHash, QueueName, RawEntry,
    Task,
};
use queue_worker::ledger::{
    Claimed, DeadLetterId, Ledger, LetterFilter, Recorded, Status, Verdict,
};

use crate::server::{Server, eventually, granted, row, take_over, task};

const OPEN: LetterFilter = LetterFilter { queue: None, reason: None, requeued: false, limit: 100 };

#[tokio::test]
async fn a_refused_entry_is_one_letter_and_goes_back_as_it_was() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let queue = QueueName::new("default").unwrap();
    let raw = RawEntry {
        fields: vec![
            (Bytes::from_static(b"task_id"), Bytes::from_static(b"x\0y")),
            (Bytes::from_static(b""), Bytes::from_static(b"\xff\xfe")),
            (Bytes::from_static(b"task_id"), Bytes::from_static(b"twice")),
        ],
    };
    let malformed =
        Malformed { reason: MalformedReason::Malformed, message: "task_id has a \0".into() };
    let entry = EntryId { ms: 1, seq: 2 };
    for _ in 0..2 {
        ledger.bury(&queue, entry, &raw, &malformed).await.unwrap();
    }
    let letters = ledger.letters(&OPEN).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].entry.as_deref(), Some("1-2"));
    assert_eq!(letters[0].task_id.as_deref(), Some("x\\0y"));
    assert!(ledger.due(9).await.unwrap().is_empty());

    assert_eq!(ledger.requeue(&[letters[0].id]).await.unwrap(), [letters[0].id]);
    assert!(ledger.requeue(&[letters[0].id]).await.unwrap().is_empty(), "only once");
    let due = ledger.due(9).await.unwrap();
    assert_eq!(due.len(), 1);
    assert_eq!((&due[0].raw, due[0].entry), (&raw, None));
    assert!(ledger.due(9).await.unwrap().is_empty(), "reserved");
    ledger.promoted(&due[0], EntryId { ms: 2, seq: 0 }).await.unwrap();
    let waiting: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM queue_worker.dead_letters WHERE run_at IS NOT NULL",
    )
    .fetch_one(&mut server.connect().await)
    .await
    .unwrap();
    assert_eq!(waiting, 0);
}

#[tokio::test]
async fn a_failed_task_runs_again_as_if_new() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let task = task("a");
    let held = granted(ledger.claim(&task).await).held;
    let verdict = Verdict::Failed { failure: Failure::for_good("no") };
    assert_eq!(ledger.record(&task, &held, verdict).await.unwrap(), Recorded::Committed);
    assert_eq!(ledger.claim(&task).await.unwrap(), Claimed::Done(Status::Failed));
    let letter = ledger.letters(&OPEN).await.unwrap().remove(0);
    assert_eq!(ledger.requeue(&[letter.id]).await.unwrap(), [letter.id]);
    assert_eq!(row(&server, "a").await, ("delayed".into(), 2, 0, 0, true, true));
    let due = ledger.due(9).await.unwrap();
    assert_eq!(due[0].raw, task.to_raw());
    let grant = granted(ledger.claim(&task).await);
    assert_eq!((grant.held.fence.0, grant.attempt, grant.crashes), (3, 1, 0));
    assert!(ledger.letters(&OPEN).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_condemned_task_has_a_letter_with_its_payload() {
    let server = Server::migrated().await;
    let task = task("a");
    let ledger = server.hasty();
    granted(ledger.claim(&task).await);
    for _ in 0..3 {
        let claimed = take_over(&ledger, &task).await;
        assert!(matches!(claimed, Claimed::Granted(_)), "{claimed:?}");
    }
    assert_eq!(take_over(&ledger, &task).await, Claimed::Poisoned { crashes: 4 });
    assert_eq!(ledger.condemn(&task).await.unwrap(), Recorded::Committed);
    let listed = ledger.letters(&OPEN).await.unwrap().remove(0);
    let letter = ledger.letter(listed.id).await.unwrap().unwrap();
    assert_eq!((letter.reason.as_str(), letter.crashes), ("crashed", 4));
    assert_eq!(letter.payload.as_deref(), Some(b"hello".as_slice()));
    // A takeover's line comes after its answer.
    eventually(async || {
        let history = ledger.task("a").await.unwrap()?.history;
        let mut lines: Vec<_> = history.into_iter().map(|line| line.event).collect();
        lines.sort_unstable();
        (lines == ["claimed", "claimed", "claimed", "dead"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn letters_are_filtered() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let malformed = Malformed { reason: MalformedReason::Oversized, message: "2 MB".into() };
    for (n, queue) in ["a", "b", "b"].into_iter().enumerate() {
        let entry = EntryId { ms: n as u64, seq: 0 };
        let queue = QueueName::new(queue).unwrap();
        ledger.bury(&queue, entry, &RawEntry::default(), &malformed).await.unwrap();
    }
    for (queue, reason, expected) in [
        (None, None, 3),
        (Some("b"), None, 2),
        (Some("b"), Some("oversized"), 2),
        (None, Some("crashed"), 0),
    ] {
        let filter = LetterFilter {
            queue: queue.map(str::to_owned),
            reason: reason.map(str::to_owned),
            ..OPEN
        };
        assert_eq!(ledger.letters(&filter).await.unwrap().len(), expected);
    }
}

#[tokio::test]
async fn a_letter_goes_back_only_into_a_row_with_its_content() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let of = |payload: &'static [u8], key: Option<&str>| {
        let kind = Kind::new("größe").unwrap();
        let lock_key = key.map(|key| LockKey::new(key).unwrap());
        let hash = PayloadHash::of(&kind, payload, lock_key.as_ref());
        let payload = Bytes::from_static(payload);
        Arc::new(Task { kind, payload, lock_key, hash, ..(*task("a")).clone() })
    };
    let fail = async |task: &Arc<Task>| {
        let held = granted(ledger.claim(task).await).held;
        let verdict = Verdict::Failed { failure: Failure::for_good("no") };
        assert_eq!(ledger.record(task, &held, verdict).await.unwrap(), Recorded::Committed);
        ledger.letters(&OPEN).await.unwrap().remove(0).id
    };
    let mut before: Vec<DeadLetterId> = Vec::new();
    for (payload, key) in
        [(&b"\x00\xff"[..], Some("schlüssel:1")), (b"other", None), (b"", Some("schlüssel:1"))]
    {
        let letter = fail(&of(payload, key)).await;
        // A letter of another content with the same id is passed over, and stays as it was.
        let all = [&before[..], &[letter]].concat();
        assert_eq!(ledger.would_requeue(&all).await.unwrap(), [letter]);
        assert!(ledger.requeue(&before).await.unwrap().is_empty());
        before.push(letter);
        let prune = "DELETE FROM queue_worker.processed_tasks";
        sqlx::query(prune).execute(&mut server.connect().await).await.unwrap();
    }
    // Only tried: every letter is as open as it was, and none has a row to go back into.
    assert_eq!(ledger.letters(&OPEN).await.unwrap().len(), 3);
    assert!(ledger.requeue(&before).await.unwrap().is_empty());
}

//! What is forgotten, and what never is.

use std::time::Duration;

use queue_worker::domain::{Failure, Verdict};
use queue_worker::ledger::{Claimed, Ledger, Pruned, Retention, Status};

use crate::server::{Server, granted, task, task_with};

const DAY: Duration = Duration::from_secs(24 * 3600);
const RETENTION: Retention = Retention {
    succeeded: Duration::from_secs(7 * 24 * 3600),
    failed: DAY.saturating_mul(30),
    letters: DAY.saturating_mul(30),
    batch: 2,
};

async fn age(server: &Server, days: i32) {
    for (table, column) in [
        ("processed_tasks", "created_at"),
        ("processed_tasks", "processed_at"),
        ("dead_letters", "created_at"),
    ] {
        let statement =
            format!("UPDATE queue_worker.{table} SET {column} = {column} - interval '{days} days'");
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .execute(&mut server.connect().await)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn what_has_ended_is_forgotten_by_age_and_in_batches() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    for id in ["s1", "s2", "s3"] {
        let task = task(id);
        let held = granted(ledger.claim(&task).await).held;
        let _ = ledger.record(&task, &held, Verdict::Succeeded { result: None }).await.unwrap();
    }
    let failed = task("failed");
    let held = granted(ledger.claim(&failed).await).held;
    let verdict = Verdict::Failed { failure: Failure::for_good("no") };
    let _ = ledger.record(&failed, &held, verdict).await.unwrap();
    let keyed = task_with("keyed", b"x", Some("resource"));
    granted(ledger.claim(&keyed).await);

    let nothing = Pruned { tasks: 0, letters: 0, more: false };
    assert_eq!(ledger.prune(&RETENTION).await.unwrap(), nothing, "nothing is old");

    age(&server, 8).await;
    let first = Pruned { tasks: 2, letters: 0, more: true };
    assert_eq!(ledger.prune(&RETENTION).await.unwrap(), first);
    let second = Pruned { tasks: 1, letters: 0, more: false };
    assert_eq!(ledger.prune(&RETENTION).await.unwrap(), second);
    assert_eq!(
        ledger.claim(&failed).await.unwrap(),
        Claimed::Done(Status::Failed),
        "a failed task is remembered for longer"
    );

    age(&server, 30).await;
    let third = Pruned { tasks: 1, letters: 1, more: false };
    assert_eq!(ledger.prune(&RETENTION).await.unwrap(), third);
    let left: Vec<String> = sqlx::query_scalar("SELECT task_id FROM queue_worker.processed_tasks")
        .fetch_all(&mut server.connect().await)
        .await
        .unwrap();
    assert_eq!(left, ["keyed"], "what has not ended stays, however old");
    let resources: i64 = sqlx::query_scalar("SELECT count(*) FROM queue_worker.resources")
        .fetch_one(&mut server.connect().await)
        .await
        .unwrap();
    assert_eq!(resources, 1, "resources stay");
    let events: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM queue_worker.task_events WHERE task_id = 'failed'",
    )
    .fetch_one(&mut server.connect().await)
    .await
    .unwrap();
    assert_eq!(events, 0, "the history goes with its task");
}

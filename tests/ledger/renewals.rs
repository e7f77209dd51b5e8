//! Renewals: renewed, locked or lost, one answer each in order.

use queue_worker::ledger::{Beat, Claimed, Ledger, Recorded, Verdict};

use crate::server::{Server, granted, take_over, task};

#[tokio::test]
async fn each_lease_gets_its_answer() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let mut held = Vec::new();
    for id in ["done", "locked", "runs"] {
        held.push(granted(ledger.claim(&task(id)).await).held);
    }
    let verdict = Verdict::Succeeded { result: None };
    assert_eq!(ledger.record(&task("done"), &held[0], verdict).await.unwrap(), Recorded::Committed);
    let mut other = server.connect().await;
    sqlx::raw_sql(
        "BEGIN; SELECT FROM queue_worker.processed_tasks WHERE task_id = 'locked' FOR UPDATE",
    )
    .execute(&mut other)
    .await
    .unwrap();
    let beats = ledger.renew(&held).await.unwrap();
    assert_eq!(beats, [Beat::Lost, Beat::Locked, Beat::Renewed]);
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    assert_eq!(ledger.renew(&held[1..]).await.unwrap(), [Beat::Renewed, Beat::Renewed]);
    assert!(ledger.renew(&[]).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_renewed_lease_is_a_full_one() {
    let server = Server::migrated().await;
    let task = task("a");
    let grant = granted(server.hasty().claim(&task).await);
    let heartbeat = server.ledger();
    // The lease may be over: as long as nobody took over it can be renewed.
    assert_eq!(heartbeat.renew(&[grant.held]).await.unwrap(), [Beat::Renewed]);
    let Claimed::Running { remaining } = server.ledger().claim(&task).await.unwrap() else {
        panic!()
    };
    assert!(remaining > std::time::Duration::from_secs(3));
}

#[tokio::test]
async fn a_takeover_is_noticed() {
    let server = Server::migrated().await;
    let task = task("a");
    let ledger = server.hasty();
    let old = granted(ledger.claim(&task).await);
    let Claimed::Granted(new) = take_over(&server.hasty(), &task).await else { panic!() };
    let beats = ledger.renew(&[old.held, new.held]).await.unwrap();
    assert_eq!(beats, [Beat::Lost, Beat::Renewed]);
}

#[test]
fn another_thread_renews_with_a_ledger_of_its_own() {
    let workers = tokio::runtime::Runtime::new().unwrap();
    let (server, held, options) = workers.block_on(async {
        let server = Server::migrated().await;
        let held = granted(server.ledger().claim(&task("a")).await).held;
        let options = queue_worker::ledger::PostgresOptions { pool_size: 1, ..server.options() };
        (server, held, options)
    });
    let beats = std::thread::spawn(move || {
        let ledger = queue_worker::ledger::PostgresLedger::new(options);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(ledger.renew(&[held])).unwrap()
    });
    assert_eq!(beats.join().unwrap(), [Beat::Renewed]);
    drop(server);
}

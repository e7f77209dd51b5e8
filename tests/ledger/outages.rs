//! A server that is gone or silent: calls end, nothing leaks, and nobody's crash is counted.

use std::sync::Arc;
use std::time::Duration;

use queue_worker::domain::WorkerId;
use queue_worker::ledger::{
    Claimed, Ledger, LedgerError, PostgresLedger, PostgresOptions, Recorded, Verdict, migrate,
};
use queue_worker::private_servers::{PostgresOptions as ServerOptions, PostgresServer};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::postgres::PgConnectOptions;
use tokio::task::JoinSet;

use crate::common::TcpProxy;
use crate::server::{Server, eventually, granted, row, task, task_with};

/// The processes that serve workers' sessions.
async fn backends(server: &Server) -> Vec<Pid> {
    let pids: Vec<i32> = sqlx::query_scalar(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'queue-worker'",
    )
    .fetch_all(&mut server.connect().await)
    .await
    .unwrap();
    pids.into_iter().filter_map(Pid::from_raw).collect()
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_made_again_at_once() {
    let server = Server::migrated().await;
    let ledger = PostgresLedger::new(PostgresOptions {
        call_timeout: Duration::from_millis(300),
        committers: 1,
        pool_size: 1,
        ..server.options()
    });
    granted(ledger.claim(&task("first")).await);
    let silent = backends(&server).await;
    for pid in &silent {
        kill_process(*pid, Signal::STOP).unwrap();
    }
    let lost = task("lost");
    let error = ledger.claim(&lost).await.unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
    for pid in &silent {
        kill_process(*pid, Signal::CONT).unwrap();
    }
    // The server finds the statement in its socket, and commits for nobody.
    eventually(async || ledger.task("lost").await.unwrap()).await;
    assert!(matches!(server.ledger().claim(&lost).await.unwrap(), Claimed::Running { .. }));
    let grant = granted(ledger.claim(&lost).await);
    assert_eq!((grant.held.fence.0, grant.crashes), (2, 0));
    // No more than once: it is ours and known now.
    assert!(matches!(ledger.claim(&lost).await.unwrap(), Claimed::Running { .. }));
    // The committer and its permit have survived.
    let verdict = Verdict::Succeeded { result: None };
    assert_eq!(ledger.record(&lost, &grant.held, verdict).await.unwrap(), Recorded::Committed);
}

#[tokio::test]
async fn work_goes_on_after_a_restart() {
    let mut server = Server::migrated().await;
    let ledger = server.ledger();
    let task = task("a");
    let held = granted(ledger.claim(&task).await).held;
    server.stop();
    let verdict = Verdict::Succeeded { result: None };
    for _ in 0..5 {
        let error = ledger.record(&task, &held, verdict.clone()).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(ledger.renew(std::slice::from_ref(&held)).await.unwrap_err().is_transient());
    }
    server.start().await;
    assert_eq!(ledger.record(&task, &held, verdict).await.unwrap(), Recorded::Committed);
    assert_eq!(row(&server, "a").await.0, "succeeded");
}

#[tokio::test]
async fn a_caller_that_went_away_leaves_no_transaction_behind() {
    let server = Server::migrated().await;
    let ledger = std::sync::Arc::new(server.ledger());
    for n in 0..50 {
        let task = task(&format!("{n}"));
        let claim = tokio::time::timeout(Duration::from_micros(50 * n), ledger.claim(&task));
        let _ = claim.await;
    }
    eventually(async || {
        let open: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE application_name = 'queue-worker' AND state <> 'idle'",
        )
        .fetch_one(&mut server.connect().await)
        .await
        .unwrap();
        (open == 0).then_some(())
    })
    .await;
}

/// A server behind a proxy; a session through it.
async fn far_away() -> (PostgresServer, TcpProxy, PgConnectOptions) {
    let server = PostgresServer::start(ServerOptions::volatile()).await.unwrap();
    let near: PgConnectOptions = server.url().parse().unwrap();
    migrate(&near).await.unwrap();
    let proxy = TcpProxy::start(server.port()).await;
    let far = near.host("127.0.0.1").port(proxy.port());
    (server, proxy, far)
}

/// Together they take longer than a call may: asked for again and again in one piece, none of them
/// would ever be claimed.
#[tokio::test]
async fn a_crowd_of_large_tasks_gets_over_a_slow_link() {
    const TASKS: usize = 16;
    let (_server, proxy, far) = far_away().await;
    let ledger = Arc::new(PostgresLedger::new(PostgresOptions {
        call_timeout: Duration::from_secs(1),
        committers: 1,
        ..PostgresOptions::new(far, WorkerId::random())
    }));
    granted(ledger.claim(&task("first")).await);
    proxy.throttle(4_000_000);
    let payload = vec![b'x'; 512 << 10];
    let mut claims = JoinSet::new();
    for n in 0..TASKS {
        let (ledger, task) = (Arc::clone(&ledger), task_with(&n.to_string(), &payload, None));
        claims.spawn(async move {
            loop {
                match ledger.claim_in_company(&task).await {
                    Ok(Claimed::Granted(_)) => return,
                    Ok(other) => assert!(matches!(other, Claimed::Running { .. }), "{other:?}"),
                    Err(error) => assert!(error.is_transient(), "{error}"),
                }
            }
        });
    }
    let all = tokio::time::timeout(Duration::from_secs(40), claims.join_all());
    assert_eq!(all.await.expect("all are claimed in time").len(), TASKS);
}

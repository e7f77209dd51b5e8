//! A server that is gone or silent: calls end, nothing leaks, and nobody's crash is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use queue_worker::domain::WorkerId;
use queue_worker::ledger::{
    Claimed, Effect, EffectConnection, EffectError, EffectItem, Ledger, LedgerError, Performed,
    PostgresLedger, PostgresOptions, Recorded, Status, Verdict, migrate,
};
use queue_worker::private_servers::{PostgresOptions as ServerOptions, PostgresServer};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};
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

/// A server behind a proxy.
struct FarAway {
    server: PostgresServer,
    proxy: TcpProxy,
}

impl FarAway {
    async fn start() -> Self {
        let server = PostgresServer::start(ServerOptions::volatile()).await.unwrap();
        migrate(&server.url().parse().unwrap()).await.unwrap();
        let proxy = TcpProxy::start(server.port()).await;
        Self { server, proxy }
    }

    /// A ledger with one committer, through the proxy.
    fn ledger(&self) -> Arc<PostgresLedger> {
        let near: PgConnectOptions = self.server.url().parse().unwrap();
        let far = near.host("127.0.0.1").port(self.proxy.port());
        Arc::new(PostgresLedger::new(PostgresOptions {
            lease: Duration::from_secs(1),
            call_timeout: Duration::from_secs(1),
            committers: 1,
            ..PostgresOptions::new(far, WorkerId::random())
        }))
    }

    /// Waits, past the proxy, until a session sleeps.
    async fn sleeper(&self) -> i32 {
        let mut near = PgConnection::connect(&self.server.url()).await.unwrap();
        eventually(async || {
            sqlx::query_scalar("SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
                .fetch_optional(&mut near)
                .await
                .unwrap()
        })
        .await
    }

    /// The server ends a session, which never hears of it; everything else goes on.
    async fn forget(&self, pid: i32) {
        self.proxy.silence();
        let mut near = PgConnection::connect(&self.server.url()).await.unwrap();
        sqlx::query("SELECT pg_terminate_backend($1, 20000)")
            .bind(pid)
            .execute(&mut near)
            .await
            .unwrap();
        self.proxy.forward();
    }
}

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// Sleeps for long the first time.
#[derive(Default)]
struct Sleeps(AtomicBool);

#[async_trait]
impl Effect for Sleeps {
    fn name(&self) -> &'static str {
        "sleeps"
    }

    fn batch(&self) -> usize {
        64
    }

    fn single_commit(&self) -> bool {
        true
    }

    async fn apply(
        &self,
        connection: EffectConnection<'_>,
        _: &[EffectItem],
    ) -> Result<(), EffectError> {
        if !self.0.swap(true, Ordering::Relaxed) {
            let sleep = sqlx::query("SELECT pg_sleep(600)");
            sleep.execute(connection.postgres()?).await?;
        }
        Ok(())
    }
}

/// Together they take longer than a call may: asked for again and again in one piece, none of them
/// would ever be claimed.
#[tokio::test]
async fn a_crowd_of_large_tasks_gets_over_a_slow_link() {
    const TASKS: usize = 16;
    let far_away = FarAway::start().await;
    let ledger = far_away.ledger();
    granted(ledger.claim(&task("first")).await);
    far_away.proxy.throttle(4_000_000);
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

/// Performs a task after its claim, and leaves it to itself while the effect sleeps.
async fn asleep(
    far_away: &FarAway,
    ledger: &Arc<PostgresLedger>,
    effect: &Arc<dyn Effect>,
) -> (JoinSet<Result<Performed, LedgerError>>, i32) {
    let (ledger, effect, task) = (Arc::clone(ledger), Arc::clone(effect), task("sleeps"));
    let grant = granted(ledger.claim(&task).await);
    let mut performing = JoinSet::new();
    performing.spawn(async move { ledger.perform(&task, Some(&grant), &effect, LONG).await });
    (performing, far_away.sleeper().await)
}

async fn performed(ledger: &PostgresLedger, effect: &Arc<dyn Effect>, id: &str) -> Performed {
    let grant = granted(ledger.claim(&task(id)).await);
    let task = task(id);
    let next = ledger.perform(&task, Some(&grant), effect, LONG);
    tokio::time::timeout(Duration::from_secs(20), next).await.expect("an answer").unwrap()
}

#[tokio::test]
async fn an_effect_that_nobody_waits_for_holds_up_nobody() {
    let far_away = FarAway::start().await;
    let (ledger, effect) = (far_away.ledger(), Arc::new(Sleeps::default()) as Arc<dyn Effect>);
    let (mut performing, _) = asleep(&far_away, &ledger, &effect).await;
    far_away.proxy.silence();
    performing.shutdown().await;
    far_away.proxy.forward();
    assert_eq!(performed(&ledger, &effect, "next").await, Performed::Committed);
    assert_eq!(ledger.task("sleeps").await.unwrap().unwrap().status, Status::Running);
}

#[tokio::test]
async fn an_effect_whose_server_is_gone_without_a_word_is_tried_again() {
    let far_away = FarAway::start().await;
    let (ledger, effect) = (far_away.ledger(), Arc::new(Sleeps::default()) as Arc<dyn Effect>);
    let (mut performing, pid) = asleep(&far_away, &ledger, &effect).await;
    far_away.forget(pid).await;
    let told = tokio::time::timeout(Duration::from_secs(20), performing.join_next());
    let error = told.await.expect("an answer").unwrap().unwrap().unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
    assert_eq!(performed(&ledger, &effect, "next").await, Performed::Committed);
}

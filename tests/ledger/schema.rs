//! The schema: migrated once however often, checked, and every statement fits it.

use queue_worker::domain::WorkerId;
use queue_worker::ledger::{
    Ledger, LedgerError, PostgresLedger, PostgresOptions, expected_version, migrate,
};
use sqlx::{Executor, SqlSafeStr};

use crate::server::Server;

#[tokio::test]
async fn migrating_twice_and_at_once_is_migrating_once() {
    let server = Server::empty().await;
    let options = server.connect_options();
    let ledger = server.ledger();
    let error = ledger.check().await.unwrap_err();
    assert!(matches!(error, LedgerError::Schema { .. }), "{error}");
    assert!(error.to_string().contains("run `queue-worker migrate`"), "{error}");
    let (one, two, three) = tokio::join!(migrate(&options), migrate(&options), migrate(&options));
    for report in [one, two, three] {
        assert_eq!(report.unwrap().to, expected_version());
    }
    let again = migrate(&options).await.unwrap();
    assert_eq!((again.from, again.applied), (Some(expected_version()), vec![]));
    ledger.check().await.unwrap();
    let strays: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = 'public'",
    )
    .fetch_one(&mut server.connect().await)
    .await
    .unwrap();
    assert_eq!(strays, 0, "everything is in the schema queue_worker");
}

#[tokio::test]
async fn a_schema_one_version_newer_is_borne_and_two_are_not() {
    let server = Server::migrated().await;
    let ledger = server.ledger();
    let mut connection = server.connect().await;
    for (ahead, fine) in [(1, true), (2, false)] {
        sqlx::query("INSERT INTO queue_worker.migrations VALUES ($1, 'later', now(), true, '', 0)")
            .bind(expected_version() + ahead)
            .execute(&mut connection)
            .await
            .unwrap();
        assert_eq!(ledger.check().await.is_ok(), fine);
        // And the older program's migrate leaves it alone.
        migrate(&server.connect_options()).await.unwrap();
    }
}

#[tokio::test]
async fn every_statement_can_be_prepared() {
    let server = Server::migrated().await;
    let mut connection = server.connect().await;
    for (name, sql) in PostgresLedger::statements() {
        if let Err(error) = (&mut connection).prepare((*sql).into_sql_str()).await {
            panic!("{name}: {error}");
        }
    }
}

#[tokio::test]
async fn an_older_fence_is_not_accepted() {
    let server = Server::migrated().await;
    let mut connection = server.connect().await;
    for (resource, fence, accepted) in
        [("r", 5, true), ("r", 5, true), ("r", 4, false), ("r", 6, true), ("s", 1, true)]
    {
        let answer: bool = sqlx::query_scalar("SELECT queue_worker.accept_fence($1, $2)")
            .bind(resource)
            .bind(i64::from(fence))
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(answer, accepted, "{resource} {fence}");
    }
}

#[tokio::test]
async fn a_ledger_without_a_server_is_made_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let connect = sqlx::postgres::PgConnectOptions::new_without_pgpass()
        .socket(directory.path())
        .username("me")
        .password("secret");
    let ledger = PostgresLedger::new(PostgresOptions::new(connect, WorkerId::random()));
    let error = ledger.check().await.unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
    assert!(!error.to_string().contains("secret"));
}

#[tokio::test]
async fn a_missing_database_and_role_are_told_apart() {
    let server = Server::empty().await;
    let ledger = |connect| PostgresLedger::new(PostgresOptions::new(connect, WorkerId::random()));
    let error = ledger(server.connect_options().database("none")).check().await.unwrap_err();
    assert!(error.to_string().contains("create the database"), "{error}");
    let error = ledger(server.connect_options().username("nobody")).check().await.unwrap_err();
    assert!(matches!(error, LedgerError::LoginRefused { .. }), "{error}");
}

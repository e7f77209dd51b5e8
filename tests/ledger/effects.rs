//! Effects: there if and only if their task has succeeded.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_worker::domain::{Failure, Fence};
use queue_worker::ledger::{
    Claimed, Effect, EffectConnection, EffectError, EffectItem, Grant, Ledger, Performed,
    PostgresLedger, Status,
};

use crate::server::{Server, granted, row, task, task_with};

const LIMIT: Duration = Duration::from_secs(3);

/// Inserts the task's id; the payload can ask for trouble.
struct Note {
    batch: usize,
}

#[async_trait]
impl Effect for Note {
    fn name(&self) -> &'static str {
        "note"
    }

    fn batch(&self) -> usize {
        self.batch
    }

    fn single_commit(&self) -> bool {
        true
    }

    async fn apply(
        &self,
        connection: EffectConnection<'_>,
        items: &[EffectItem],
    ) -> Result<(), EffectError> {
        let connection = connection.postgres()?;
        for item in items {
            sqlx::query("INSERT INTO notes (id, fence) VALUES ($1, $2)")
                .bind(item.task.id.as_str())
                .bind(item.fence.0)
                .execute(&mut *connection)
                .await?;
            match &item.task.payload[..] {
                b"twice" => {
                    sqlx::query("INSERT INTO notes (id) VALUES ($1)")
                        .bind(item.task.id.as_str())
                        .execute(&mut *connection)
                        .await?;
                }
                b"slow" => {
                    sqlx::query("SELECT pg_sleep(60)").execute(&mut *connection).await?;
                }
                b"refuse" => return Err(EffectError::Failed(Failure::for_good("will not"))),
                b"panic" => panic!("as asked"),
                b"full" => {
                    let full = "DO $$ BEGIN RAISE 'no room' USING ERRCODE = '53100'; END $$";
                    sqlx::query(full).execute(&mut *connection).await?;
                }
                b"die" => {
                    sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())")
                        .execute(&mut *connection)
                        .await?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

async fn prepared() -> (Server, Arc<PostgresLedger>, Arc<dyn Effect>) {
    let server = Server::migrated().await;
    sqlx::raw_sql("CREATE TABLE notes (id text PRIMARY KEY, fence bigint)")
        .execute(&mut server.connect().await)
        .await
        .unwrap();
    let ledger = Arc::new(server.ledger());
    (server, ledger, Arc::new(Note { batch: 64 }))
}

async fn notes(server: &Server) -> Vec<(String, Option<i64>)> {
    sqlx::query_as("SELECT id, fence FROM notes ORDER BY id")
        .fetch_all(&mut server.connect().await)
        .await
        .unwrap()
}

#[tokio::test]
async fn one_commit_claims_applies_and_completes() {
    let (server, ledger, note) = prepared().await;
    let task = task("a");
    let performed = ledger.perform(&task, None, &note, LIMIT).await.unwrap();
    assert_eq!(performed, Performed::Committed);
    assert_eq!(notes(&server).await, [("a".to_owned(), Some(1))]);
    assert_eq!(row(&server, "a").await, ("succeeded".into(), 1, 0, 0, false, false));
    let again = ledger.perform(&task, None, &note, LIMIT).await.unwrap();
    assert_eq!(again, Performed::NotClaimed(Claimed::Done(Status::Succeeded)));
    assert_eq!(notes(&server).await.len(), 1);
}

#[tokio::test]
async fn a_claim_made_before_is_completed_under_its_fence() {
    let (server, ledger, note) = prepared().await;
    let task = task("a");
    let grant = granted(ledger.claim(&task).await);
    let stale = Grant {
        held: queue_worker::domain::Held { fence: Fence(0), ..grant.held.clone() },
        ..grant.clone()
    };
    let performed = ledger.perform(&task, Some(&stale), &note, LIMIT).await.unwrap();
    assert_eq!(performed, Performed::Stale);
    assert!(notes(&server).await.is_empty());
    for _ in 0..2 {
        // The second time stands for a lost reply.
        let performed = ledger.perform(&task, Some(&grant), &note, LIMIT).await.unwrap();
        if performed == Performed::Committed {
            continue;
        }
        // The effect itself met the row of the first time.
        assert!(matches!(performed, Performed::Failed(_)), "{performed:?}");
    }
    assert_eq!(notes(&server).await.len(), 1);
    assert_eq!(row(&server, "a").await.0, "succeeded");
}

#[tokio::test]
async fn a_row_that_is_gone_is_not_made_up() {
    let (server, ledger, note) = prepared().await;
    let task = task("a");
    let grant = granted(ledger.claim(&task).await);
    sqlx::query("DELETE FROM queue_worker.processed_tasks")
        .execute(&mut server.connect().await)
        .await
        .unwrap();
    let performed = ledger.perform(&task, Some(&grant), &note, LIMIT).await.unwrap();
    assert_eq!(performed, Performed::Stale);
    assert!(notes(&server).await.is_empty());
    assert!(ledger.task("a").await.unwrap().is_none());
}

#[tokio::test]
async fn one_bad_item_does_not_harm_the_others() {
    let (server, ledger, note) = prepared().await;
    for held in [false, true] {
        let mut runs = tokio::task::JoinSet::new();
        for n in 0..40 {
            let payload: &[u8] = match n {
                7 => b"twice",
                13 => b"refuse",
                20 => b"panic",
                _ => b"good",
            };
            let task = task_with(&format!("{held}-{n:02}"), payload, None);
            let (ledger, note) = (Arc::clone(&ledger), Arc::clone(&note));
            runs.spawn(async move {
                let grant = if held { Some(granted(ledger.claim(&task).await)) } else { None };
                (n, ledger.perform(&task, grant.as_ref(), &note, LIMIT).await.unwrap())
            });
        }
        while let Some(run) = runs.join_next().await {
            let (n, performed) = run.unwrap();
            let status = match performed {
                Performed::Committed => None,
                Performed::Failed(failure) => Some(failure.status),
                other => panic!("{other:?}"),
            };
            let expected = match n {
                7 => Some(Some("sqlstate 23505".to_owned())),
                13 => Some(None),
                20 => Some(Some("panic".to_owned())),
                _ => None,
            };
            assert_eq!(status, expected, "{n}");
        }
    }
    assert_eq!(notes(&server).await.len(), 2 * 37);
    assert!(ledger.task("false-07").await.unwrap().is_none(), "the claim is gone too");
    assert_eq!(row(&server, "true-07").await.0, "running");
}

#[tokio::test]
async fn the_time_limit_is_the_tasks_failure() {
    let (server, ledger, note) = prepared().await;
    let slow = task_with("slow", b"slow", None);
    let performed = ledger.perform(&slow, None, &note, Duration::from_millis(50)).await.unwrap();
    let Performed::Failed(failure) = performed else { panic!("{performed:?}") };
    assert_eq!(failure.status.as_deref(), Some("timeout"));
    assert!(notes(&server).await.is_empty());
}

#[tokio::test]
async fn a_broken_connection_is_nobodys_failure() {
    let (server, ledger, note) = prepared().await;
    let dies = task_with("dies", b"die", None);
    let error = ledger.perform(&dies, None, &note, LIMIT).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(notes(&server).await.is_empty());
    let performed = ledger.perform(&task("next"), None, &note, LIMIT).await.unwrap();
    assert_eq!(performed, Performed::Committed);
}

/// Objects often belong to a role that logins take on, and that one sees little of their sessions.
#[tokio::test]
async fn a_role_that_sees_no_sessions_can_work() {
    let (server, ledger, note) = prepared().await;
    let role = "CREATE ROLE owner; \
        GRANT ALL ON SCHEMA queue_worker, public TO owner; \
        GRANT ALL ON ALL TABLES IN SCHEMA queue_worker, public TO owner; \
        GRANT ALL ON ALL SEQUENCES IN SCHEMA queue_worker TO owner; \
        ALTER ROLE CURRENT_USER SET role = 'owner'";
    sqlx::raw_sql(role).execute(&mut server.connect().await).await.unwrap();
    let sees =
        "SELECT backend_start IS NOT NULL FROM pg_stat_activity WHERE pid = pg_backend_pid()";
    let sees: bool = sqlx::query_scalar(sees).fetch_one(&mut server.connect().await).await.unwrap();
    assert!(!sees, "the role is to see nothing");
    let task = task("a");
    let grant = granted(ledger.claim(&task).await);
    let performed = ledger.perform(&task, Some(&grant), &note, LIMIT).await.unwrap();
    assert_eq!(performed, Performed::Committed);
}

#[tokio::test]
async fn what_a_server_that_goes_on_refuses_hinders() {
    let (server, ledger, note) = prepared().await;
    let full = task_with("full", b"full", None);
    let grant = granted(ledger.claim(&full).await);
    for held in [None, Some(&grant)] {
        let performed = ledger.perform(&full, held, &note, LIMIT).await.unwrap();
        let expected = if held.is_none() { "not claimed" } else { "sqlstate 53100" };
        let found = match performed {
            Performed::Hindered(failure) => failure.status.unwrap(),
            Performed::NotClaimed(_) => "not claimed".to_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(found, expected);
    }
    let fresh = task_with("fresh", b"full", None);
    let performed = ledger.perform(&fresh, None, &note, LIMIT).await.unwrap();
    assert!(matches!(performed, Performed::Hindered(_)), "{performed:?}");
    assert!(notes(&server).await.is_empty());
    assert!(ledger.task("fresh").await.unwrap().is_none(), "the claim is gone too");
}

#[tokio::test]
async fn a_resource_is_freed_with_the_effect() {
    let (server, ledger, note) = prepared().await;
    let keyed = |id: &str| task_with(id, b"good", Some("repo"));
    for (id, next) in [("a", "b"), ("b", "c")] {
        let grant = granted(ledger.claim(&keyed(id)).await);
        let contended = ledger.claim(&keyed(next)).await.unwrap();
        assert!(matches!(contended, Claimed::Contended { .. }), "{contended:?}");
        let performed = ledger.perform(&keyed(id), Some(&grant), &note, LIMIT).await.unwrap();
        assert_eq!(performed, Performed::Committed);
    }
    granted(ledger.claim(&keyed("c")).await);
    let fences: Vec<_> = notes(&server).await.into_iter().filter_map(|(_, fence)| fence).collect();
    assert_eq!(fences, [1, 2]);
}

#[tokio::test]
async fn a_task_in_anothers_hands_is_left_to_them() {
    let (server, ledger, note) = prepared().await;
    let task = task("a");
    granted(ledger.claim(&task).await);
    let mut other = server.connect().await;
    sqlx::raw_sql("BEGIN; SELECT FROM queue_worker.processed_tasks FOR UPDATE")
        .execute(&mut other)
        .await
        .unwrap();
    let performed = ledger.perform(&task, None, &note, Duration::from_millis(200)).await.unwrap();
    let running = matches!(performed, Performed::NotClaimed(Claimed::Running { .. }));
    assert!(running, "{performed:?}");
    assert!(notes(&server).await.is_empty());
}

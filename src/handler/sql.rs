//! Runs tasks as a statement of SQL within the transaction in which they succeed.
//!
//! The statement sees the payload as `$1` (bytea), the task's id as `$2` (text) and the fence as
//! `$3` (bigint); it need not use them all, and may be several statements. It runs once per task,
//! in order, each seeing what the earlier ones did, and all tasks of a group in one round trip: for
//! that it is wrapped, once per connection, into a function in the temporary schema, which takes
//! nothing but the right to create temporary objects (`TEMPORARY`, which everybody has by default).
//!
//! What Postgres holds against the statement is the task's failure, with the SQLSTATE as its status
//! (`sqlstate 23505`). `RAISE EXCEPTION '…' USING ERRCODE = 'QW065'` fails it for good. Deadlocks,
//! serialization failures, shutdowns and broken connections are nobody's failure and burn nothing.

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, PgConnection};

use super::blame::blame;
use crate::domain::Failure;
use crate::ledger::{Effect, EffectConnection, EffectError, EffectItem};

/// What to run for a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlOptions {
    /// The kind.
    pub kind: String,
    /// One or more statements; trusted as the configuration is.
    pub statement: String,
    /// How many tasks may share a transaction; at least 1.
    pub batch: usize,
}

/// The effect of kinds with a statement.
#[derive(Debug)]
pub struct SqlEffect {
    kind: String,
    batch: usize,
    /// For `to_regprocedure`.
    signature: String,
    define: String,
    call: String,
}

impl SqlEffect {
    /// Prepares the texts; the statement itself is looked at by Postgres when it first runs.
    pub fn new(options: SqlOptions) -> Self {
        let SqlOptions { kind, statement, batch } = options;
        let hash = Sha256::digest(statement.as_bytes());
        let hash = hash[..12].iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        // The name follows from the statement, so that a changed one is another function; and so
        // does the quote, which therefore cannot occur in it. The line ends keep a comment at the
        // statement's end from reaching further. Bodies go unchecked so that a missing table is
        // the failure of the tasks that need it.
        let function = format!("pg_temp.qw_{hash}");
        let define = format!(
            "SET LOCAL check_function_bodies = off; \
             CREATE FUNCTION {function}(bytea, text, bigint) RETURNS void \
             LANGUAGE sql VOLATILE AS $qw_{hash}$\n{statement}\n$qw_{hash}$"
        );
        let call = format!(
            "SELECT {function}(payload, id, fence) \
             FROM unnest($1::bytea[], $2::text[], $3::bigint[]) \
             WITH ORDINALITY AS task (payload, id, fence, place) ORDER BY place"
        );
        let signature = format!("{function}(bytea,text,bigint)");
        Self { kind, batch: batch.max(1), signature, define, call }
    }

    /// Creates the function unless this session has it. Asking Postgres costs a round trip per
    /// group; whatever we remembered ourselves could be wrong after a rollback or behind a pooler.
    async fn define(&self, connection: &mut PgConnection) -> Result<(), EffectError> {
        let missing: bool = sqlx::query_scalar("SELECT to_regprocedure($1) IS NULL")
            .bind(&self.signature)
            .fetch_one(&mut *connection)
            .await
            .map_err(blame)?;
        if !missing {
            return Ok(());
        }
        let define = sqlx::raw_sql(AssertSqlSafe(self.define.as_str())).execute(connection).await;
        define.map(drop).map_err(|error| match blame(error) {
            EffectError::Failed(failure) => EffectError::Failed(Failure {
                message: format!(
                    "the statement could not be prepared: {}; the role needs TEMPORARY on the \
                     database",
                    failure.message
                ),
                ..failure
            }),
            database @ EffectError::Database(_) => database,
        })
    }
}

#[async_trait]
impl Effect for SqlEffect {
    fn name(&self) -> &str {
        &self.kind
    }

    fn batch(&self) -> usize {
        self.batch
    }

    /// A statement cannot bring the worker's process down.
    fn single_commit(&self) -> bool {
        true
    }

    async fn apply(
        &self,
        connection: EffectConnection<'_>,
        items: &[EffectItem],
    ) -> Result<(), EffectError> {
        let connection = connection.postgres()?;
        self.define(connection).await?;
        let payloads: Vec<&[u8]> = items.iter().map(|item| &item.task.payload[..]).collect();
        let ids: Vec<&str> = items.iter().map(|item| item.task.id.as_str()).collect();
        let fences: Vec<i64> = items.iter().map(|item| item.fence.0).collect();
        sqlx::query(AssertSqlSafe(self.call.as_str()))
            .bind(payloads)
            .bind(ids)
            .bind(fences)
            .execute(connection)
            .await
            .map(drop)
            .map_err(blame)
    }
}

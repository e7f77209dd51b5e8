//! Statements about the rows of tasks, and of the resources that they hold: claim, delay, renew, and
//! how they end.
//!
//! The statements that judge a crash share their first three parameters: `$1` the lease in
//! milliseconds, `$2` the worker, `$3` the ids whose claim by this worker was left without an answer.

/// 1 if taking over this row counts as a crash: it ran under another's claim, its lease is over, and
/// Postgres was up all the time, so that the lease could have been renewed.
macro_rules! crash {
    () => {
        "(t.status = 'running' AND NOT (t.worker = $2 AND t.task_id = ANY($3)) \
          AND pg_postmaster_start_time() < t.lease_until - $1 * interval '1 millisecond')::int"
    };
}

/// Whether the row's state lets it be claimed.
macro_rules! claimable {
    () => {
        "(t.status = 'released' \
          OR (t.status = 'delayed' AND t.run_at <= clock_timestamp()) \
          OR (t.status = 'running' AND (t.lease_until <= clock_timestamp() \
              OR (t.worker = $2 AND t.task_id = ANY($3)))))"
    };
}

/// `$5` ids, `$6` queues, `$7` kinds, `$8` hashes, `$9` lock keys, `$4` crashes allowed, `$10`
/// whether the task succeeds in this same transaction, `$11` from how many crashes on a task is left
/// alone, `$12` payloads, `$13` limits of attempts, `$14` time limits in milliseconds, `$15`
/// traceparents, `$16` when to look after a claim, in milliseconds after its lease. A first claim
/// leaves `run_at` alone, or its completion would be no heap-only update: see [`super::STRAYS`].
pub(in crate::ledger::postgres) const CLAIM: &str = concat!(
    "INSERT INTO queue_worker.processed_tasks AS t (task_id, queue, kind, hash, lock_key, status, \
         fence, worker, lease_until, started_at, processed_at, payload, max_attempts, timeout_ms, \
         traceparent) \
     SELECT k.id, k.queue, k.kind, k.hash, k.lock_key, \
         CASE WHEN $10 THEN 'succeeded' ELSE 'running' END::queue_worker.status, 1, $2, \
         CASE WHEN NOT $10 THEN clock_timestamp() + $1 * interval '1 millisecond' END, \
         clock_timestamp(), CASE WHEN $10 THEN clock_timestamp() END, k.payload, k.max_attempts, \
         k.timeout_ms, k.traceparent \
     FROM unnest($5::text[], $6::text[], $7::text[], $8::bytea[], $9::text[], $12::bytea[], \
             $13::int[], $14::bigint[], $15::text[]) \
         AS k (id, queue, kind, hash, lock_key, payload, max_attempts, timeout_ms, traceparent) \
     ON CONFLICT (task_id) DO UPDATE SET status = excluded.status, fence = t.fence + 1, \
         worker = excluded.worker, crashes = t.crashes + ",
    crash!(),
    ", lease_until = CASE WHEN NOT $10 THEN clock_timestamp() + $1 * interval '1 millisecond' END, \
         started_at = clock_timestamp(), processed_at = excluded.processed_at, \
         run_at = CASE WHEN NOT $10 THEN clock_timestamp() + ($1 + $16) * interval '1 millisecond' END, \
         waits_since = NULL, entry = NULL, queue = excluded.queue, payload = excluded.payload, \
         max_attempts = excluded.max_attempts, timeout_ms = excluded.timeout_ms, \
         traceparent = excluded.traceparent \
     WHERE t.hash = excluded.hash AND ",
    claimable!(),
    " AND (t.status <> 'running' OR t.crashes + ",
    crash!(),
    " <= $4::int) AND t.crashes + ",
    crash!(),
    " < $11::int RETURNING t.task_id, t.fence, t.attempts, t.crashes"
);

/// `$4` ids. What stands in the way of a claim; the last column is since when a suspect waits: for as
/// long as it was not run, its lease or an earlier wait tells.
pub(in crate::ledger::postgres) const CLASSIFY: &str = concat!(
    "SELECT t.task_id, t.status::text, t.hash, \
         COALESCE(EXTRACT(EPOCH FROM t.lease_until - clock_timestamp()) * 1000, 0)::bigint, \
         t.crashes + ",
    crash!(),
    ", ",
    claimable!(),
    ", COALESCE(EXTRACT(EPOCH FROM clock_timestamp() - COALESCE(t.waits_since, \
         CASE WHEN t.status = 'running' THEN t.lease_until END)) * 1000, 0)::bigint \
     FROM queue_worker.processed_tasks t WHERE t.task_id = ANY($4::text[])"
);

/// `$1` ids, `$2` fences, `$3` results. Says only how many; see [`OUTCOMES`].
pub(in crate::ledger::postgres) const SUCCEED: &str = "\
    UPDATE queue_worker.processed_tasks t SET status = 'succeeded', lease_until = NULL, \
        processed_at = clock_timestamp(), result = k.result, error = NULL, error_status = NULL, \
        payload = NULL, run_at = NULL \
    FROM unnest($1::text[], $2::bigint[], $3::bytea[]) AS k (id, fence, result) \
    WHERE t.task_id = k.id AND t.fence = k.fence AND t.status = 'running'";

/// The same for a session with the users' planner settings: an upsert always goes through the key.
/// A row that is not there would be made by it; the answer tells, and it is rolled back.
pub(in crate::ledger::postgres) const SUCCEED_AFTER_EFFECT: &str = "\
    WITH done AS ( \
        INSERT INTO queue_worker.processed_tasks AS t (task_id, queue, kind, hash, status, fence) \
        SELECT k.id, '', '', '', 'succeeded', k.fence \
        FROM unnest($1::text[], $2::bigint[]) AS k (id, fence) \
        ON CONFLICT (task_id) DO UPDATE SET status = 'succeeded', lease_until = NULL, \
            processed_at = clock_timestamp(), error = NULL, error_status = NULL, payload = NULL, \
            run_at = NULL \
        WHERE t.fence = excluded.fence AND t.status = 'running' \
        RETURNING t.xmax = 0 AS made) \
    SELECT count(*) FILTER (WHERE NOT made) FROM done";

/// `$1` ids. What became of rows that a fenced write may not have found.
pub(in crate::ledger::postgres) const OUTCOMES: &str = "\
    SELECT task_id, status::text, fence, worker FROM queue_worker.processed_tasks \
    WHERE task_id = ANY($1::text[])";

/// `$1` ids, `$2` fences, `$3` statuses (`delayed`, `failed`, `released`), `$4` delays in
/// milliseconds, `$5` payloads, `$6` limits of attempts, `$7` time limits in milliseconds, `$8`
/// traceparents, `$9` errors, `$10` their statuses, `$11` whether an attempt is burnt.
pub(in crate::ledger::postgres) const SETTLE: &str = "\
    UPDATE queue_worker.processed_tasks t SET status = k.status::queue_worker.status, \
        fence = t.fence + (k.status = 'released')::int, \
        attempts = t.attempts + k.burns::int, \
        crashes = CASE WHEN k.status = 'released' THEN t.crashes ELSE 0 END, \
        lease_until = NULL, entry = NULL, payload = k.payload, \
        run_at = clock_timestamp() + k.delay * interval '1 millisecond', \
        processed_at = CASE WHEN k.status = 'failed' THEN clock_timestamp() END, \
        max_attempts = k.max_attempts, timeout_ms = k.timeout_ms, traceparent = k.traceparent, \
        error = COALESCE(k.error, t.error), \
        error_status = CASE WHEN k.error IS NULL THEN t.error_status ELSE k.error_status END \
    FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bytea[], $6::int[], \
        $7::bigint[], $8::text[], $9::text[], $10::text[], $11::bool[]) AS k (id, fence, status, \
        delay, payload, max_attempts, timeout_ms, traceparent, error, error_status, burns) \
    WHERE t.task_id = k.id AND t.fence = k.fence AND t.status = 'running' \
    RETURNING t.task_id, t.attempts";

/// `$1` ids, `$2` events, `$3` fences, `$4` attempts, `$5` details, `$6` the worker.
pub(in crate::ledger::postgres) const EVENTS: &str = "\
    INSERT INTO queue_worker.task_events (task_id, event, fence, attempt, detail, worker) \
    SELECT k.id, k.event, k.fence, k.attempt, k.detail, $6 \
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::int[], $5::text[]) \
        AS k (id, event, fence, attempt, detail)";

/// `$4` crashes allowed, `$5` id, `$6` hash, `$7` message, `$8` limit of attempts, `$9` time limit in
/// milliseconds, `$10` traceparent: for a requeue.
pub(in crate::ledger::postgres) const CONDEMN: &str = concat!(
    "UPDATE queue_worker.processed_tasks t SET status = 'dead', lease_until = NULL, payload = NULL, \
         run_at = NULL, processed_at = clock_timestamp(), error = $7, error_status = 'crashed', \
         max_attempts = $8, timeout_ms = $9, traceparent = $10, \
         crashes = t.crashes + ",
    crash!(),
    " WHERE t.task_id = $5 AND t.hash = $6 AND t.status = 'running' \
         AND t.lease_until <= clock_timestamp() AND t.crashes + ",
    crash!(),
    " > $4::int RETURNING t.fence, t.attempts, t.crashes"
);

/// `$5` ids, `$6` queues, `$7` kinds, `$8` hashes, `$9` lock keys, `$10` the shortest waits in
/// milliseconds, `$11` payloads, `$12` limits of attempts, `$13` time limits in milliseconds, `$14`
/// traceparents, `$15` whether the wait is timed, `$16` the longest waits in milliseconds, `$17` the
/// parts of them that are waited, `$18` whether it is a suspect's, which has waited since the lease
/// of its last run was over, `$4` crashes allowed. See `protocol::backoff::Growing`. A row that somebody
/// runs is not even locked, or those who ask for it would keep its heartbeat from renewing it.
pub(in crate::ledger::postgres) const DELAY: &str = concat!(
    "INSERT INTO queue_worker.processed_tasks AS t (task_id, queue, kind, hash, lock_key, status, \
         fence, run_at, payload, max_attempts, timeout_ms, traceparent, waits_since) \
     SELECT k.id, k.queue, k.kind, k.hash, k.lock_key, 'delayed', 0, \
         clock_timestamp() + k.jitter * LEAST(k.most * interval '1 millisecond', \
             GREATEST(k.delay * interval '1 millisecond', (clock_timestamp() - CASE \
                 WHEN k.timed THEN o.waits_since ELSE COALESCE(o.started_at, o.created_at) END) / 2)), \
         k.payload, k.max_attempts, k.timeout_ms, k.traceparent, \
         CASE WHEN k.suspect AND o.status = 'running' THEN o.lease_until \
             WHEN k.timed THEN clock_timestamp() END \
     FROM unnest($5::text[], $6::text[], $7::text[], $8::bytea[], $9::text[], $10::bigint[], \
         $11::bytea[], $12::int[], $13::bigint[], $14::text[], $15::bool[], $16::bigint[], \
         $17::float8[], $18::bool[]) AS k (id, queue, kind, hash, lock_key, delay, payload, \
         max_attempts, timeout_ms, traceparent, timed, most, jitter, suspect) \
     LEFT JOIN queue_worker.processed_tasks o ON o.task_id = k.id \
     WHERE o.status IS DISTINCT FROM 'running' OR o.lease_until <= clock_timestamp() \
         OR (o.worker = $2 AND o.task_id = ANY($3)) \
     ON CONFLICT (task_id) DO UPDATE SET status = 'delayed', \
         fence = t.fence + (t.status = 'running')::int, crashes = t.crashes + ",
    crash!(),
    ", worker = NULL, lease_until = NULL, entry = NULL, queue = excluded.queue, \
         run_at = excluded.run_at, payload = excluded.payload, \
         max_attempts = excluded.max_attempts, timeout_ms = excluded.timeout_ms, \
         traceparent = excluded.traceparent, waits_since = CASE \
             WHEN excluded.waits_since IS NOT NULL \
             THEN COALESCE(t.waits_since, excluded.waits_since) END \
     WHERE t.hash = excluded.hash AND (t.status = 'delayed' OR ",
    claimable!(),
    ") AND (t.status <> 'running' OR t.crashes + ",
    crash!(),
    " <= $4::int) RETURNING t.task_id, t.fence, t.attempts, t.crashes, COALESCE(EXTRACT(EPOCH FROM \
         clock_timestamp() - t.waits_since) * 1000, 0)::bigint"
);

/// `$1` ids, `$2` message. Of rows that this transaction has delayed.
pub(in crate::ledger::postgres) const GIVE_UP: &str = "\
    UPDATE queue_worker.processed_tasks t SET status = 'dead', run_at = NULL, payload = NULL, \
        processed_at = clock_timestamp(), error = $2, error_status = 'unknown_kind' \
    WHERE t.task_id = ANY($1::text[]) AND t.status = 'delayed'";

/// `$1` ids, `$2` fences, `$3` the lease in milliseconds, `$4` when to look after the task, in
/// milliseconds after its lease. What another transaction has locked is passed over.
pub(in crate::ledger::postgres) const RENEW_TASKS: &str = "\
    WITH ours AS ( \
        SELECT t.task_id FROM unnest($1::text[], $2::bigint[]) AS k (id, fence) \
        JOIN queue_worker.processed_tasks t ON t.task_id = k.id \
        WHERE t.fence = k.fence AND t.status = 'running' FOR NO KEY UPDATE OF t SKIP LOCKED) \
    UPDATE queue_worker.processed_tasks t \
    SET lease_until = clock_timestamp() + $3 * interval '1 millisecond', \
        run_at = CASE WHEN t.run_at > clock_timestamp() THEN t.run_at \
            ELSE clock_timestamp() + ($3 + $4) * interval '1 millisecond' END \
    FROM ours WHERE t.task_id = ours.task_id RETURNING t.task_id, t.fence";

/// `$1` keys, `$2` holders, `$3` the lease in milliseconds. A busy resource is not even locked, or a
/// crowd that wants it would keep its holder's heartbeat from renewing it.
pub(in crate::ledger::postgres) const CLAIM_RESOURCES: &str = "\
    INSERT INTO queue_worker.resources AS r (key, fence, holder, lease_until) \
    SELECT k.key, 1, k.holder, clock_timestamp() + $3 * interval '1 millisecond' \
    FROM unnest($1::text[], $2::text[]) AS k (key, holder) \
    WHERE NOT EXISTS (SELECT FROM queue_worker.resources b WHERE b.key = k.key \
        AND b.holder <> k.holder AND b.lease_until > clock_timestamp()) \
    ON CONFLICT (key) DO UPDATE SET fence = r.fence + 1, holder = excluded.holder, \
        lease_until = clock_timestamp() + $3 * interval '1 millisecond' \
    WHERE r.holder IS NULL OR r.holder = excluded.holder OR r.lease_until <= clock_timestamp() \
    RETURNING r.key, r.fence";

/// `$1` keys. How long resources are held for yet.
pub(in crate::ledger::postgres) const RESOURCE_LEASES: &str = "\
    SELECT key, COALESCE(EXTRACT(EPOCH FROM lease_until - clock_timestamp()) * 1000, 0)::bigint \
    FROM queue_worker.resources WHERE key = ANY($1::text[])";

/// `$1` keys, `$2` fences, `$3` holders.
pub(in crate::ledger::postgres) const FREE_RESOURCES: &str = "\
    UPDATE queue_worker.resources r SET holder = NULL, lease_until = NULL \
    FROM unnest($1::text[], $2::bigint[], $3::text[]) AS k (key, fence, holder) \
    WHERE r.key = k.key AND r.fence = k.fence AND r.holder = k.holder RETURNING r.key";

/// `$1` keys, `$2` fences, `$3` the lease in milliseconds.
pub(in crate::ledger::postgres) const RENEW_RESOURCES: &str = "\
    WITH ours AS ( \
        SELECT r.key FROM unnest($1::text[], $2::bigint[]) AS k (key, fence) \
        JOIN queue_worker.resources r ON r.key = k.key \
        WHERE r.fence = k.fence AND r.holder IS NOT NULL FOR NO KEY UPDATE OF r SKIP LOCKED) \
    UPDATE queue_worker.resources r \
    SET lease_until = clock_timestamp() + $3 * interval '1 millisecond' \
    FROM ours WHERE r.key = ours.key RETURNING r.key, r.fence";

/// `$1` keys.
pub(in crate::ledger::postgres) const RESOURCE_FENCES: &str = "\
    SELECT key, fence FROM queue_worker.resources \
    WHERE key = ANY($1::text[]) AND holder IS NOT NULL";

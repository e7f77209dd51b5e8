//! Every statement of the ledger, in one place, so that a test can prepare them all against a
//! migrated database.
//!
//! Group statements take one array per column and join through the primary key. Where a lease is
//! judged, it is by `clock_timestamp()`: the statement may have waited for a lock. The statements
//! that judge a crash share their first three parameters: `$1` the lease in milliseconds, `$2` the
//! worker, `$3` the ids whose claim by this worker was left without an answer.

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
/// leaves `run_at` alone, or its completion would be no heap-only update: see [`STRAYS`].
pub(super) const CLAIM: &str = concat!(
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
pub(super) const CLASSIFY: &str = concat!(
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

/// `$1` keys, `$2` holders, `$3` the lease in milliseconds. A busy resource is not even locked, or a
/// crowd that wants it would keep its holder's heartbeat from renewing it.
pub(super) const CLAIM_RESOURCES: &str = "\
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
pub(super) const RESOURCE_LEASES: &str = "\
    SELECT key, COALESCE(EXTRACT(EPOCH FROM lease_until - clock_timestamp()) * 1000, 0)::bigint \
    FROM queue_worker.resources WHERE key = ANY($1::text[])";

/// `$1` keys, `$2` fences, `$3` holders.
pub(super) const FREE_RESOURCES: &str = "\
    UPDATE queue_worker.resources r SET holder = NULL, lease_until = NULL \
    FROM unnest($1::text[], $2::bigint[], $3::text[]) AS k (key, fence, holder) \
    WHERE r.key = k.key AND r.fence = k.fence AND r.holder = k.holder RETURNING r.key";

/// `$1` ids, `$2` fences, `$3` results. Says only how many; see [`OUTCOMES`].
pub(super) const SUCCEED: &str = "\
    UPDATE queue_worker.processed_tasks t SET status = 'succeeded', lease_until = NULL, \
        processed_at = clock_timestamp(), result = k.result, error = NULL, error_status = NULL, \
        payload = NULL, run_at = NULL \
    FROM unnest($1::text[], $2::bigint[], $3::bytea[]) AS k (id, fence, result) \
    WHERE t.task_id = k.id AND t.fence = k.fence AND t.status = 'running'";

/// The same for a session with the users' planner settings: an upsert always goes through the key.
/// A row that is not there would be made by it; the answer tells, and it is rolled back.
pub(super) const SUCCEED_AFTER_EFFECT: &str = "\
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
pub(super) const OUTCOMES: &str = "\
    SELECT task_id, status::text, fence, worker FROM queue_worker.processed_tasks \
    WHERE task_id = ANY($1::text[])";

/// `$1` ids, `$2` fences, `$3` statuses (`delayed`, `failed`, `released`), `$4` delays in
/// milliseconds, `$5` payloads, `$6` limits of attempts, `$7` time limits in milliseconds, `$8`
/// traceparents, `$9` errors, `$10` their statuses, `$11` whether an attempt is burnt.
pub(super) const SETTLE: &str = "\
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
pub(super) const EVENTS: &str = "\
    INSERT INTO queue_worker.task_events (task_id, event, fence, attempt, detail, worker) \
    SELECT k.id, k.event, k.fence, k.attempt, k.detail, $6 \
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::int[], $5::text[]) \
        AS k (id, event, fence, attempt, detail)";

/// `$1` letter ids, `$2` task ids, `$3` queues, `$4` kinds, `$5` reasons, `$6` messages, `$7`
/// statuses, `$8` tails, `$9` attempts, `$10` crashes, `$11` traceparents, `$12` payloads, `$13` the
/// worker.
pub(super) const LETTERS: &str = "\
    INSERT INTO queue_worker.dead_letters (id, task_id, queue, kind, reason, message, status, tail, \
        attempts, crashes, traceparent, payload, worker) \
    SELECT k.*, $13 \
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], \
        $7::text[], $8::bytea[], $9::int[], $10::int[], $11::text[], $12::bytea[]) AS k";

/// `$1` id, `$2` queue, `$3` entry, `$4` reason, `$5` message, `$6` names and values, `$7` the
/// worker, `$8` task id, `$9` kind, `$10` the status: whether it was cut.
pub(super) const BURY: &str = "\
    INSERT INTO queue_worker.dead_letters (id, queue, entry, reason, message, fields, worker, \
        task_id, kind, status) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (queue, entry) DO NOTHING";

/// `$4` crashes allowed, `$5` id, `$6` hash, `$7` message, `$8` limit of attempts, `$9` time limit in
/// milliseconds, `$10` traceparent: for a requeue.
pub(super) const CONDEMN: &str = concat!(
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
/// of its last run was over, `$4` crashes allowed. See `protocol::backoff::Growing`.
pub(super) const DELAY: &str = concat!(
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
pub(super) const GIVE_UP: &str = "\
    UPDATE queue_worker.processed_tasks t SET status = 'dead', run_at = NULL, payload = NULL, \
        processed_at = clock_timestamp(), error = $2, error_status = 'unknown_kind' \
    WHERE t.task_id = ANY($1::text[]) AND t.status = 'delayed'";

/// `$1` how many, `$2` for how long they are reserved, in milliseconds, `$3` how many bytes of
/// payload: the row that passes the limit is the last. The reservation is the lease, and `run_at`
/// stays: a row that is due can be claimed as soon as its entry is in the stream. A running row with
/// a payload whose lease is over is looked at too, since its entry may be gone; its lease tells of the
/// crash and stays, and it is reserved for `$4` milliseconds by its `run_at`.
pub(super) const DUE_TASKS: &str = "\
    WITH due AS MATERIALIZED ( \
        SELECT task_id, run_at, COALESCE(octet_length(payload), 0) AS size \
        FROM queue_worker.processed_tasks \
        WHERE run_at <= statement_timestamp() AND payload IS NOT NULL \
            AND status IN ('delayed', 'released', 'running') \
            AND (lease_until IS NULL OR lease_until <= clock_timestamp()) \
        ORDER BY run_at LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED), \
    taken AS MATERIALIZED ( \
        SELECT task_id, sum(size) OVER (ORDER BY run_at, task_id) - size AS before FROM due) \
    UPDATE queue_worker.processed_tasks t \
    SET lease_until = CASE WHEN t.status = 'running' THEN t.lease_until \
            ELSE clock_timestamp() + $2 * interval '1 millisecond' END, \
        run_at = CASE WHEN t.status = 'running' \
            THEN clock_timestamp() + $4 * interval '1 millisecond' ELSE t.run_at END \
    FROM taken WHERE t.task_id = taken.task_id AND taken.before < $3 \
    RETURNING t.task_id, t.fence, t.queue, t.kind, t.payload, t.lock_key, t.max_attempts, \
        t.timeout_ms, t.traceparent, CASE WHEN t.status <> 'delayed' THEN t.entry END";

/// `$1` how many, `$2` for how long they are reserved, in milliseconds.
pub(super) const DUE_LETTERS: &str = "\
    WITH due AS MATERIALIZED ( \
        SELECT id FROM queue_worker.dead_letters WHERE run_at <= statement_timestamp() \
        ORDER BY run_at LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED) \
    UPDATE queue_worker.dead_letters l \
    SET run_at = clock_timestamp() + $2 * interval '1 millisecond' \
    FROM due WHERE l.id = due.id RETURNING l.id, l.queue, l.fields";

/// `$1` ids, `$2` fences, `$3` entries, `$4` when to look after them again, in milliseconds. Only
/// while the reservation stands: a worker that got the entry first may have delayed the task again,
/// and then the entry is gone.
pub(super) const PROMOTED_TASKS: &str = "\
    UPDATE queue_worker.processed_tasks t SET entry = k.entry, \
        status = CASE WHEN t.status = 'running' THEN t.status ELSE 'released' END, \
        lease_until = CASE WHEN t.status = 'running' THEN t.lease_until END, \
        run_at = clock_timestamp() + $4 * interval '1 millisecond' \
    FROM unnest($1::text[], $2::bigint[], $3::text[]) AS k (id, fence, entry) \
    WHERE t.task_id = k.id AND t.fence = k.fence AND t.lease_until IS NOT NULL \
        AND t.status IN ('delayed', 'released', 'running')";

/// Running tasks that nobody looks after: their worker went away before its first heartbeat, and
/// unless Redis still has their entry, nobody will ask for them. Each row is looked at once, a while
/// after it was made, by whichever worker's turn it is.
pub(super) const STRAYS: &str = "\
    WITH turn AS MATERIALIZED ( \
        SELECT upto FROM queue_worker.sweeps WHERE name = 'strays' FOR UPDATE SKIP LOCKED), \
    range AS ( \
        UPDATE queue_worker.sweeps s SET upto = now() - $1 * interval '1 millisecond' FROM turn \
        WHERE s.name = 'strays' AND turn.upto < now() - $1 * interval '1 millisecond' \
        RETURNING turn.upto AS since, s.upto) \
    UPDATE queue_worker.processed_tasks t SET run_at = clock_timestamp() FROM range \
    WHERE t.created_at > range.since AND t.created_at <= range.upto \
        AND t.status = 'running' AND t.run_at IS NULL AND t.lease_until <= clock_timestamp()";

/// `$1` letter ids.
pub(super) const PROMOTED_LETTERS: &str = "\
    UPDATE queue_worker.dead_letters SET run_at = NULL WHERE id = ANY($1::uuid[])";

/// `$1` ids, `$2` fences, `$3` the lease in milliseconds, `$4` when to look after the task, in
/// milliseconds after its lease. What another transaction has locked is passed over.
pub(super) const RENEW_TASKS: &str = "\
    WITH ours AS ( \
        SELECT t.task_id FROM unnest($1::text[], $2::bigint[]) AS k (id, fence) \
        JOIN queue_worker.processed_tasks t ON t.task_id = k.id \
        WHERE t.fence = k.fence AND t.status = 'running' FOR NO KEY UPDATE OF t SKIP LOCKED) \
    UPDATE queue_worker.processed_tasks t \
    SET lease_until = clock_timestamp() + $3 * interval '1 millisecond', \
        run_at = CASE WHEN t.run_at > clock_timestamp() THEN t.run_at \
            ELSE clock_timestamp() + ($3 + $4) * interval '1 millisecond' END \
    FROM ours WHERE t.task_id = ours.task_id RETURNING t.task_id, t.fence";

/// `$1` keys, `$2` fences, `$3` the lease in milliseconds.
pub(super) const RENEW_RESOURCES: &str = "\
    WITH ours AS ( \
        SELECT r.key FROM unnest($1::text[], $2::bigint[]) AS k (key, fence) \
        JOIN queue_worker.resources r ON r.key = k.key \
        WHERE r.fence = k.fence AND r.holder IS NOT NULL FOR NO KEY UPDATE OF r SKIP LOCKED) \
    UPDATE queue_worker.resources r \
    SET lease_until = clock_timestamp() + $3 * interval '1 millisecond' \
    FROM ours WHERE r.key = ours.key RETURNING r.key, r.fence";

/// `$1` keys.
pub(super) const RESOURCE_FENCES: &str = "\
    SELECT key, fence FROM queue_worker.resources \
    WHERE key = ANY($1::text[]) AND holder IS NOT NULL";

/// `$1` letter ids. A letter of a task sets its row to delayed and due; one of an entry is due
/// itself. Those requeued before, and those whose task has moved on, are passed over.
pub(super) const REQUEUE: &str = "\
    WITH tasks AS ( \
        UPDATE queue_worker.processed_tasks t SET status = 'delayed', fence = t.fence + 1, \
            payload = l.payload, run_at = now(), attempts = 0, crashes = 0, waits_since = NULL, \
            lease_until = NULL, processed_at = NULL, entry = NULL \
        FROM queue_worker.dead_letters l \
        WHERE l.id = ANY($1::uuid[]) AND l.requeued_at IS NULL AND l.fields IS NULL \
            AND t.task_id = l.task_id AND t.status IN ('failed', 'dead') \
        RETURNING l.id, t.task_id, t.fence), \
    events AS ( \
        INSERT INTO queue_worker.task_events (task_id, event, fence) \
        SELECT task_id, 'requeued', fence FROM tasks) \
    UPDATE queue_worker.dead_letters l SET requeued_at = now(), \
        run_at = CASE WHEN l.fields IS NOT NULL THEN now() END \
    WHERE l.id = ANY($1::uuid[]) AND l.requeued_at IS NULL \
        AND CASE WHEN l.fields IS NULL THEN l.id IN (SELECT id FROM tasks) \
            ELSE l.status IS DISTINCT FROM 'cut' END \
    RETURNING l.id";

/// Rows by queue and status. Reads the whole table.
pub(super) const COUNTS: &str = "\
    SELECT queue, status::text, count(*) FROM queue_worker.processed_tasks GROUP BY 1, 2 ORDER BY 1, 2";

/// Reads the whole table of letters.
pub(super) const OPEN_LETTERS: &str = "\
    SELECT queue, count(*) FROM queue_worker.dead_letters WHERE requeued_at IS NULL GROUP BY 1";

/// `$1` status or null, `$2` queue or null, `$3` kind or null, `$4` how many, newest first. Reads
/// the whole table.
pub(super) const TASKS: &str = "\
    SELECT task_id, queue, kind, status::text, attempts, crashes, error, \
        (EXTRACT(EPOCH FROM created_at) * 1000)::bigint, \
        (EXTRACT(EPOCH FROM processed_at) * 1000)::bigint \
    FROM queue_worker.processed_tasks \
    WHERE ($1::text IS NULL OR status::text = $1) AND ($2::text IS NULL OR queue = $2) \
        AND ($3::text IS NULL OR kind = $3) \
    ORDER BY created_at DESC, task_id LIMIT $4";

/// `$1` how many, oldest claim first. Reads the whole table.
pub(super) const RUNNING: &str = "\
    SELECT task_id, queue, kind, fence, worker, lock_key, attempts, crashes, \
        COALESCE(EXTRACT(EPOCH FROM clock_timestamp() - started_at) * 1000, 0)::bigint, \
        COALESCE(EXTRACT(EPOCH FROM lease_until - clock_timestamp()) * 1000, 0)::bigint \
    FROM queue_worker.processed_tasks WHERE status = 'running' ORDER BY started_at LIMIT $1";

/// `$1` id.
pub(super) const TASK: &str = "\
    SELECT queue, kind, status::text, fence, worker, lock_key, attempts, crashes, max_attempts, \
        timeout_ms, entry, traceparent, result, error, error_status, payload, \
        (EXTRACT(EPOCH FROM created_at) * 1000)::bigint, \
        (EXTRACT(EPOCH FROM started_at) * 1000)::bigint, \
        (EXTRACT(EPOCH FROM processed_at) * 1000)::bigint, \
        (EXTRACT(EPOCH FROM run_at) * 1000)::bigint, \
        (EXTRACT(EPOCH FROM lease_until) * 1000)::bigint \
    FROM queue_worker.processed_tasks WHERE task_id = $1";

/// `$1` id, `$2` how many, newest first.
pub(super) const HISTORY: &str = "\
    SELECT (EXTRACT(EPOCH FROM at) * 1000)::bigint, event, fence, attempt, worker, detail \
    FROM queue_worker.task_events WHERE task_id = $1 ORDER BY id DESC LIMIT $2";

/// `$1` whether those already requeued are shown, `$2` queue or null, `$3` reason or null, `$4`
/// how many, newest first, `$5` an id or null, `$6` whether payload, tail and fields are wanted.
pub(super) const SHOW_LETTERS: &str = "\
    SELECT id, task_id, queue, kind, entry, reason, message, status, attempts, crashes, worker, \
        (EXTRACT(EPOCH FROM created_at) * 1000)::bigint, \
        (EXTRACT(EPOCH FROM requeued_at) * 1000)::bigint, \
        CASE WHEN $6 THEN tail END, CASE WHEN $6 THEN payload END, CASE WHEN $6 THEN fields END \
    FROM queue_worker.dead_letters \
    WHERE ($1 OR requeued_at IS NULL) AND ($2::text IS NULL OR queue = $2) \
        AND ($3::text IS NULL OR reason = $3) AND ($5::uuid IS NULL OR id = $5) \
    ORDER BY created_at DESC LIMIT $4";

/// `$1` how many, `$2` the age of succeeded tasks and `$3` of failed and dead ones, in milliseconds.
/// Oldest first; the events of a task go with it. Resources and accepted fences are never pruned: a
/// fence that starts again would let a stale write through.
pub(super) const PRUNE_TASKS: &str = "\
    WITH old AS ( \
        DELETE FROM queue_worker.processed_tasks WHERE task_id IN ( \
            SELECT task_id FROM queue_worker.processed_tasks \
            WHERE created_at < now() - least($2::bigint, $3::bigint) * interval '1 millisecond' \
                AND ((status = 'succeeded' \
                        AND processed_at < now() - $2::bigint * interval '1 millisecond') \
                    OR (status IN ('failed', 'dead') \
                        AND processed_at < now() - $3::bigint * interval '1 millisecond')) \
            ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED) \
        RETURNING task_id), \
    events AS ( \
        DELETE FROM queue_worker.task_events e USING old WHERE e.task_id = old.task_id) \
    SELECT count(*) FROM old";

/// `$1` how many, `$2` their age in milliseconds. A letter that waits to be put back into the stream
/// stays.
pub(super) const PRUNE_LETTERS: &str = "\
    WITH old AS ( \
        DELETE FROM queue_worker.dead_letters WHERE id IN ( \
            SELECT id FROM queue_worker.dead_letters \
            WHERE created_at < now() - $2::bigint * interval '1 millisecond' AND run_at IS NULL \
            ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED) \
        RETURNING id) \
    SELECT count(*) FROM old";

/// `$1` letter ids. The rows of their tasks stay, and so does what they say of a duplicate.
pub(super) const PURGE: &str = "\
    DELETE FROM queue_worker.dead_letters WHERE id = ANY($1::uuid[]) AND run_at IS NULL \
    RETURNING id";

/// The newest migration that was applied.
pub(super) const SCHEMA_VERSION: &str =
    "SELECT max(version) FROM queue_worker.migrations WHERE success";

/// Each statement with its name.
pub(super) const ALL: &[(&str, &str)] = &[
    ("CLAIM", CLAIM),
    ("CLASSIFY", CLASSIFY),
    ("CLAIM_RESOURCES", CLAIM_RESOURCES),
    ("RESOURCE_LEASES", RESOURCE_LEASES),
    ("FREE_RESOURCES", FREE_RESOURCES),
    ("SUCCEED", SUCCEED),
    ("SUCCEED_AFTER_EFFECT", SUCCEED_AFTER_EFFECT),
    ("OUTCOMES", OUTCOMES),
    ("SETTLE", SETTLE),
    ("EVENTS", EVENTS),
    ("LETTERS", LETTERS),
    ("BURY", BURY),
    ("CONDEMN", CONDEMN),
    ("DELAY", DELAY),
    ("GIVE_UP", GIVE_UP),
    ("DUE_TASKS", DUE_TASKS),
    ("DUE_LETTERS", DUE_LETTERS),
    ("PROMOTED_TASKS", PROMOTED_TASKS),
    ("PROMOTED_LETTERS", PROMOTED_LETTERS),
    ("STRAYS", STRAYS),
    ("RENEW_TASKS", RENEW_TASKS),
    ("RENEW_RESOURCES", RENEW_RESOURCES),
    ("RESOURCE_FENCES", RESOURCE_FENCES),
    ("REQUEUE", REQUEUE),
    ("COUNTS", COUNTS),
    ("OPEN_LETTERS", OPEN_LETTERS),
    ("TASKS", TASKS),
    ("RUNNING", RUNNING),
    ("TASK", TASK),
    ("HISTORY", HISTORY),
    ("SHOW_LETTERS", SHOW_LETTERS),
    ("PRUNE_TASKS", PRUNE_TASKS),
    ("PRUNE_LETTERS", PRUNE_LETTERS),
    ("PURGE", PURGE),
    ("SCHEMA_VERSION", SCHEMA_VERSION),
];

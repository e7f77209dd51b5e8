//! Statements that only ask: for people, for the metrics, and for the schema's version.

/// Rows by queue and status. Reads the whole table.
pub(in crate::ledger::postgres) const COUNTS: &str = "\
    SELECT queue, status::text, count(*) FROM queue_worker.processed_tasks GROUP BY 1, 2 ORDER BY 1, 2";

/// Reads the whole table of letters.
pub(in crate::ledger::postgres) const OPEN_LETTERS: &str = "\
    SELECT queue, count(*) FROM queue_worker.dead_letters WHERE requeued_at IS NULL GROUP BY 1";

/// `$1` queues, `$2` how many rows and letters are looked at: for the metrics, so bounded, and each by
/// an index. Delayed tasks and open letters by queue.
pub(in crate::ledger::postgres) const BACKLOG: &str = "\
    SELECT queue, sum(delayed)::bigint, sum(letters)::bigint FROM ( \
        SELECT queue, 1 AS delayed, 0 AS letters FROM ( \
            SELECT queue, status FROM queue_worker.processed_tasks \
            WHERE run_at IS NOT NULL ORDER BY run_at LIMIT $2) AS rows \
        WHERE status = 'delayed' \
        UNION ALL \
        SELECT queue, 0, 1 FROM ( \
            SELECT queue, requeued_at FROM queue_worker.dead_letters \
            ORDER BY created_at DESC LIMIT $2) AS letters \
        WHERE requeued_at IS NULL) AS waiting \
    WHERE queue = ANY($1) GROUP BY 1";

/// `$1` status or null, `$2` queue or null, `$3` kind or null, `$4` how many, newest first. Reads
/// the whole table.
pub(in crate::ledger::postgres) const TASKS: &str = "\
    SELECT task_id, queue, kind, status::text, attempts, crashes, error, \
        (EXTRACT(EPOCH FROM created_at) * 1000)::bigint, \
        (EXTRACT(EPOCH FROM processed_at) * 1000)::bigint \
    FROM queue_worker.processed_tasks \
    WHERE ($1::text IS NULL OR status::text = $1) AND ($2::text IS NULL OR queue = $2) \
        AND ($3::text IS NULL OR kind = $3) \
    ORDER BY created_at DESC, task_id LIMIT $4";

/// `$1` how many, oldest claim first. Reads the whole table.
pub(in crate::ledger::postgres) const RUNNING: &str = "\
    SELECT task_id, queue, kind, fence, worker, lock_key, attempts, crashes, \
        COALESCE(EXTRACT(EPOCH FROM clock_timestamp() - started_at) * 1000, 0)::bigint, \
        COALESCE(EXTRACT(EPOCH FROM lease_until - clock_timestamp()) * 1000, 0)::bigint \
    FROM queue_worker.processed_tasks WHERE status = 'running' ORDER BY started_at LIMIT $1";

/// `$1` id.
pub(in crate::ledger::postgres) const TASK: &str = "\
    SELECT queue, kind, status::text, fence, worker, lock_key, attempts, crashes, max_attempts, \
        timeout_ms, entry, traceparent, result, error, error_status, payload, \
        (EXTRACT(EPOCH FROM created_at) * 1000)::bigint, \
        (EXTRACT(EPOCH FROM started_at) * 1000)::bigint, \
        (EXTRACT(EPOCH FROM processed_at) * 1000)::bigint, \
        (EXTRACT(EPOCH FROM run_at) * 1000)::bigint, \
        (EXTRACT(EPOCH FROM lease_until) * 1000)::bigint \
    FROM queue_worker.processed_tasks WHERE task_id = $1";

/// `$1` ids.
pub(in crate::ledger::postgres) const STATUSES: &str = "\
    SELECT task_id, status::text FROM queue_worker.processed_tasks WHERE task_id = ANY($1)";

/// `$1` id, `$2` how many, newest first.
pub(in crate::ledger::postgres) const HISTORY: &str = "\
    SELECT (EXTRACT(EPOCH FROM at) * 1000)::bigint, event, fence, attempt, worker, detail \
    FROM queue_worker.task_events WHERE task_id = $1 ORDER BY id DESC LIMIT $2";

/// `$1` whether those already requeued are shown, `$2` queue or null, `$3` reason or null, `$4`
/// how many, newest first, `$5` an id or null, `$6` whether payload, tail and fields are wanted.
pub(in crate::ledger::postgres) const SHOW_LETTERS: &str = "\
    SELECT id, task_id, queue, kind, entry, reason, message, status, attempts, crashes, worker, \
        (EXTRACT(EPOCH FROM created_at) * 1000)::bigint, \
        (EXTRACT(EPOCH FROM requeued_at) * 1000)::bigint, \
        CASE WHEN $6 THEN tail END, CASE WHEN $6 THEN payload END, CASE WHEN $6 THEN fields END \
    FROM queue_worker.dead_letters \
    WHERE ($1 OR requeued_at IS NULL) AND ($2::text IS NULL OR queue = $2) \
        AND ($3::text IS NULL OR reason = $3) AND ($5::uuid IS NULL OR id = $5) \
    ORDER BY created_at DESC LIMIT $4";

/// The newest migration that was applied.
pub(in crate::ledger::postgres) const SCHEMA_VERSION: &str =
    "SELECT max(version) FROM queue_worker.migrations WHERE success";

/// The process of this session, and when it was started in microseconds.
pub(in crate::ledger::postgres) const OWN_BACKEND: &str = "\
    SELECT pid, (EXTRACT(EPOCH FROM backend_start) * 1000000)::bigint \
    FROM pg_stat_activity WHERE pid = pg_backend_pid()";

/// `$1` pid, `$2` when it was started in microseconds: whether there is such a process, or one of which
/// that cannot be seen.
pub(in crate::ledger::postgres) const HAS_BACKEND: &str = "\
    SELECT EXISTS (SELECT FROM pg_stat_activity \
        WHERE pid = $1 AND (backend_start IS NULL \
            OR (EXTRACT(EPOCH FROM backend_start) * 1000000)::bigint = $2))";

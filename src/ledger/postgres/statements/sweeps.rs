//! Statements of the sweeps: what is due, what nobody looks after, and what is old enough to go.

/// `$1` how many, `$2` for how long they are reserved, in milliseconds, `$3` how many bytes of
/// payload: the row that passes the limit is the last. The reservation is the lease, and `run_at`
/// stays: a row that is due can be claimed as soon as its entry is in the stream. A running row with
/// a payload whose lease is over is looked at too, since its entry may be gone; its lease tells of the
/// crash and stays, and it is reserved for `$4` milliseconds by its `run_at`.
pub(in crate::ledger::postgres) const DUE_TASKS: &str = "\
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
pub(in crate::ledger::postgres) const DUE_LETTERS: &str = "\
    WITH due AS MATERIALIZED ( \
        SELECT id FROM queue_worker.dead_letters WHERE run_at <= statement_timestamp() \
        ORDER BY run_at LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED) \
    UPDATE queue_worker.dead_letters l \
    SET run_at = clock_timestamp() + $2 * interval '1 millisecond' \
    FROM due WHERE l.id = due.id RETURNING l.id, l.queue, l.fields";

/// `$1` ids, `$2` fences, `$3` entries, `$4` when to look after them again, in milliseconds. Only
/// while the reservation stands: a worker that got the entry first may have delayed the task again,
/// and then the entry is gone.
pub(in crate::ledger::postgres) const PROMOTED_TASKS: &str = "\
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
pub(in crate::ledger::postgres) const STRAYS: &str = "\
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
pub(in crate::ledger::postgres) const PROMOTED_LETTERS: &str = "\
    UPDATE queue_worker.dead_letters SET run_at = NULL WHERE id = ANY($1::uuid[])";

/// `$1` how many, `$2` the age of succeeded tasks and `$3` of failed and dead ones, in milliseconds.
/// Oldest first; the events of a task go with it. Resources and accepted fences are never pruned: a
/// fence that starts again would let a stale write through.
pub(in crate::ledger::postgres) const PRUNE_TASKS: &str = "\
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
pub(in crate::ledger::postgres) const PRUNE_LETTERS: &str = "\
    WITH old AS ( \
        DELETE FROM queue_worker.dead_letters WHERE id IN ( \
            SELECT id FROM queue_worker.dead_letters \
            WHERE created_at < now() - $2::bigint * interval '1 millisecond' AND run_at IS NULL \
            ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED) \
        RETURNING id) \
    SELECT count(*) FROM old";

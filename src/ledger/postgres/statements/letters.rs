//! Statements that write dead letters, put them back to work, or throw them away.

/// `$1` letter ids, `$2` task ids, `$3` queues, `$4` kinds, `$5` reasons, `$6` messages, `$7`
/// statuses, `$8` tails, `$9` attempts, `$10` crashes, `$11` traceparents, `$12` payloads, `$13` the
/// worker.
pub(in crate::ledger::postgres) const LETTERS: &str = "\
    INSERT INTO queue_worker.dead_letters (id, task_id, queue, kind, reason, message, status, tail, \
        attempts, crashes, traceparent, payload, worker) \
    SELECT k.*, $13 \
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], \
        $7::text[], $8::bytea[], $9::int[], $10::int[], $11::text[], $12::bytea[]) AS k";

/// `$1` id, `$2` queue, `$3` entry, `$4` reason, `$5` message, `$6` names and values, `$7` the
/// worker, `$8` task id, `$9` kind, `$10` the status: whether it was cut.
pub(in crate::ledger::postgres) const BURY: &str = "\
    INSERT INTO queue_worker.dead_letters (id, queue, entry, reason, message, fields, worker, \
        task_id, kind, status) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (queue, entry) DO NOTHING";

/// `$1` letter ids. A letter of a task sets its row to delayed and due; one of an entry is due
/// itself. Those requeued before, and those whose task has moved on, are passed over; so is a letter
/// with another content than the row: the first row was pruned, its id was used again, and the row's
/// hash would refuse the letter's payload for ever.
pub(in crate::ledger::postgres) const REQUEUE: &str = "\
    WITH tasks AS ( \
        UPDATE queue_worker.processed_tasks t SET status = 'delayed', fence = t.fence + 1, \
            payload = l.payload, run_at = now(), attempts = 0, crashes = 0, waits_since = NULL, \
            lease_until = NULL, processed_at = NULL, entry = NULL \
        FROM queue_worker.dead_letters l \
        WHERE l.id = ANY($1::uuid[]) AND l.requeued_at IS NULL AND l.fields IS NULL \
            AND t.task_id = l.task_id AND t.status IN ('failed', 'dead') \
            AND t.hash = sha256( \
                int8send(octet_length(convert_to(l.kind, 'UTF8'))) || convert_to(l.kind, 'UTF8') \
                || int8send(octet_length(l.payload)) || l.payload \
                || int8send(octet_length(convert_to(COALESCE(t.lock_key, ''), 'UTF8'))) \
                || convert_to(COALESCE(t.lock_key, ''), 'UTF8')) \
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

/// Letters to be chosen from, without their bytes: `$1` whether those already requeued are meant, `$2`
/// queue or null, `$3` reason or null, `$4` their age at least, in milliseconds, `$5` the id that was
/// the last one before, `$6` how many.
pub(in crate::ledger::postgres) const LETTER_IDS: &str = "\
    SELECT id FROM queue_worker.dead_letters \
    WHERE id > $5 AND ($1 OR requeued_at IS NULL) AND ($2::text IS NULL OR queue = $2) \
        AND ($3::text IS NULL OR reason = $3) \
        AND created_at <= now() - $4::bigint * interval '1 millisecond' \
    ORDER BY id LIMIT $6";

/// `$1` letter ids. The rows of their tasks stay, and so does what they say of a duplicate.
pub(in crate::ledger::postgres) const PURGE: &str = "\
    DELETE FROM queue_worker.dead_letters WHERE id = ANY($1::uuid[]) AND run_at IS NULL \
    RETURNING id";

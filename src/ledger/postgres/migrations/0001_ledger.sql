-- The ledger of queue-worker. Everything lives in the schema `queue_worker`, which the migration
-- creates before this file runs. Migrations are additive: version N of the program runs on schema
-- N + 1.

CREATE TYPE queue_worker.status AS ENUM
    ('running', 'released', 'delayed', 'succeeded', 'failed', 'dead');

-- One row per task. A claim followed by a completion touches no indexed column, so the second write
-- is a heap-only update as long as its page has room: hence the fillfactor, and hence no index on
-- `status`. Columns that only a waiting task needs are null on the fast path.
CREATE TABLE queue_worker.processed_tasks (
    fence        bigint NOT NULL,
    lease_until  timestamptz,
    started_at   timestamptz,
    processed_at timestamptz,
    run_at       timestamptz,
    waits_since  timestamptz,
    created_at   timestamptz NOT NULL DEFAULT now(),
    timeout_ms   bigint,
    status       queue_worker.status NOT NULL,
    attempts     integer NOT NULL DEFAULT 0,
    crashes      integer NOT NULL DEFAULT 0,
    max_attempts integer,
    worker       uuid,
    task_id      text COLLATE "C" PRIMARY KEY,
    queue        text NOT NULL,
    kind         text NOT NULL,
    hash         bytea NOT NULL,
    lock_key     text,
    traceparent  text,
    entry        text,
    error        text,
    error_status text,
    result       bytea,
    payload      bytea
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);

COMMENT ON TABLE queue_worker.processed_tasks IS
    'the authority: one row per task, keyed by its idempotency key';
COMMENT ON COLUMN queue_worker.processed_tasks.fence IS
    'rises with each claim; a write under an older fence changes nothing';
COMMENT ON COLUMN queue_worker.processed_tasks.lease_until IS
    'of a running task: when another worker may take over; of a waiting one: reserved by a promotion';
COMMENT ON COLUMN queue_worker.processed_tasks.run_at IS
    'of a delayed task: when it is due; of a released one: when to look whether its entry still exists';
COMMENT ON COLUMN queue_worker.processed_tasks.hash IS
    'SHA-256 over kind, payload and lock key, each with its length';
COMMENT ON COLUMN queue_worker.processed_tasks.payload IS
    'only while the task waits here instead of in the stream';

CREATE INDEX processed_tasks_run_at ON queue_worker.processed_tasks (run_at)
    WHERE run_at IS NOT NULL;

-- For pruning by age. The column never changes, so it costs the fast path one entry at the end of
-- the index, and no update its place on the page.
CREATE INDEX processed_tasks_created_at ON queue_worker.processed_tasks (created_at);

-- What tasks with a lock key share. Never pruned: its fence must never start again.
CREATE TABLE queue_worker.resources (
    key         text COLLATE "C" PRIMARY KEY,
    fence       bigint NOT NULL,
    holder      text COLLATE "C",
    lease_until timestamptz
) WITH (fillfactor = 50);

COMMENT ON TABLE queue_worker.resources IS
    'what tasks with a lock key work on, one at a time; never delete a row, or its fence starts again';

-- What can never run, and what will not run again unless somebody requeues it.
CREATE TABLE queue_worker.dead_letters (
    id          uuid PRIMARY KEY,
    created_at  timestamptz NOT NULL DEFAULT now(),
    requeued_at timestamptz,
    run_at      timestamptz,
    task_id     text COLLATE "C",
    queue       text NOT NULL,
    kind        text,
    entry       text,
    reason      text NOT NULL CHECK (reason IN
        ('malformed', 'oversized', 'refused', 'failed', 'crashed', 'unknown_kind')),
    message     text NOT NULL,
    status      text,
    tail        bytea,
    attempts    integer NOT NULL DEFAULT 0,
    crashes     integer NOT NULL DEFAULT 0,
    worker      uuid,
    traceparent text,
    payload     bytea,
    fields      bytea[],
    UNIQUE (queue, entry)
);

COMMENT ON COLUMN queue_worker.dead_letters.fields IS
    'of an entry that was refused: its names and values in turn, byte for byte';
COMMENT ON COLUMN queue_worker.dead_letters.run_at IS
    'set by a requeue of such an entry, until it is back in the stream';

CREATE INDEX dead_letters_created_at ON queue_worker.dead_letters (created_at);
CREATE INDEX dead_letters_task_id ON queue_worker.dead_letters (task_id);
CREATE INDEX dead_letters_run_at ON queue_worker.dead_letters (run_at) WHERE run_at IS NOT NULL;

-- What happened to a task besides being claimed and done.
CREATE TABLE queue_worker.task_events (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    fence   bigint,
    attempt integer,
    worker  uuid,
    task_id text COLLATE "C" NOT NULL,
    event   text NOT NULL,
    detail  text
);

CREATE INDEX task_events_task_id ON queue_worker.task_events (task_id, id);

-- For tables of the users' own: a write asks first whether its fence is still the newest.
CREATE TABLE queue_worker.accepted_fences (
    resource text COLLATE "C" PRIMARY KEY,
    fence    bigint NOT NULL
) WITH (fillfactor = 50);

CREATE FUNCTION queue_worker.accept_fence(resource text, fence bigint) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
    WITH accepted AS (
        INSERT INTO queue_worker.accepted_fences AS a (resource, fence) VALUES ($1, $2)
        ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence WHERE a.fence <= excluded.fence
        RETURNING 1
    )
    SELECT EXISTS (SELECT FROM accepted)
$$;

COMMENT ON FUNCTION queue_worker.accept_fence(text, bigint) IS
    'true, and remembered, if no newer fence was seen for the resource; call it in the transaction of '
    'the write that it guards, and give the write up if it answers false';

-- For people: the status as text, and only what is worth a glance.
CREATE VIEW queue_worker.tasks AS
SELECT task_id, queue, kind, status::text AS status, attempts, crashes, fence, worker, lock_key,
       lease_until, run_at, created_at, started_at, processed_at, error, error_status
FROM queue_worker.processed_tasks;

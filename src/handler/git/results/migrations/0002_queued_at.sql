-- When a commit was queued: what waits in a stream is younger than what was queued before.
ALTER TABLE queue_worker_git.analyses ADD COLUMN queued_at timestamptz NOT NULL DEFAULT now();
COMMENT ON COLUMN queue_worker_git.analyses.queued_at IS
    'not before the entry of task_id was added to its stream, as long as the status is queued';

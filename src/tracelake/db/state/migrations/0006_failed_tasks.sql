-- Tasks that failed for good and wait for a person: few, written once each, and to be found behind any queue.
CREATE INDEX tasks_failed ON tasks (job_id, task_id)
    WHERE status = 'Failed' AND next_retry_at IS NULL AND skipped_at IS NULL;

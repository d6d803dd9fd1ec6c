-- NOT VALID: each constraint allows more than the one it replaces, so that no row has to be looked at.

-- A `Canceled` that nobody requested is a failure for good.
ALTER TABLE tasks DROP CONSTRAINT failed_was_claimed,
    ADD CONSTRAINT failed_was_claimed CHECK (
        status <> 'Failed' OR (attempt > 0 AND outcome IN ('Timeout', 'Failed', 'Canceled'))) NOT VALID;

-- A gap that a person accepted stays accepted while a timed-out attempt comes back and fails after all.
ALTER TABLE tasks DROP CONSTRAINT only_failed_skips,
    ADD CONSTRAINT completed_is_no_gap CHECK (skipped_at IS NULL OR status <> 'Completed') NOT VALID;

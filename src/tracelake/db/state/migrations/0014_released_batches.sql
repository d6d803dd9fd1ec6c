-- Sinks see a batch once it is released: with the completion of the attempt that published it, or at once if the task
-- has no end. Until then it is pinned and nothing more. A batch of an attempt that never completes is never released;
-- the collector removes its artifact. The default serves a Dispatcher of the version before, which releases at once.
ALTER TABLE buffer_publishes ADD COLUMN released_at timestamptz;
UPDATE buffer_publishes SET released_at = created_at;
ALTER TABLE buffer_publishes
    ALTER COLUMN released_at SET DEFAULT trace_now(),
    ADD CONSTRAINT only_released_batches_settle
        CHECK (released_at IS NOT NULL OR (committed_at IS NULL AND dead_at IS NULL));

-- How long a batch has waited for a sink counts from its release.
DROP INDEX buffer_publishes_open;
CREATE INDEX buffer_publishes_open ON buffer_publishes (released_at, publish_id)
    WHERE released_at IS NOT NULL AND committed_at IS NULL AND dead_at IS NULL;
DROP INDEX buffer_publishes_backlog;
CREATE INDEX buffer_publishes_backlog ON buffer_publishes (dataset_uuid, released_at)
    WHERE released_at IS NOT NULL AND committed_at IS NULL AND dead_at IS NULL;
CREATE INDEX buffer_publishes_pinned ON buffer_publishes (dataset_uuid, created_at)
    WHERE released_at IS NULL AND collected_at IS NULL;

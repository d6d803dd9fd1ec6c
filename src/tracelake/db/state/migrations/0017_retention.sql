-- What is kept for a while and then removed; see docs/adr/0018-retention-and-durability.md.

-- Oldest first.
CREATE INDEX triggers_by_age ON triggers (created_at, org_id, idempotency_key);
CREATE INDEX task_attempts_by_age ON task_attempts (claimed_at, task_id, attempt);
-- trace_now() is stable: rows that are there get the time of this migration, and none is rewritten.
ALTER TABLE spark_metrics ADD COLUMN recorded_at timestamptz NOT NULL DEFAULT trace_now();
CREATE INDEX spark_metrics_by_age ON spark_metrics (recorded_at, task_id, attempt);
CREATE INDEX tasks_without_node ON tasks (finished_at, task_id) WHERE node_id IS NULL AND finished_at IS NOT NULL;

-- A node that no version has any more. Its hash was changed, so that no deploy finds it: a document that would need it
-- again makes a new one. Its rows go a batch at a time.
ALTER TABLE nodes ADD COLUMN retired_at timestamptz;
CREATE INDEX nodes_retired ON nodes (node_id) WHERE retired_at IS NOT NULL;

-- A generation whose units, events and tasks are gone. The row stays, and is all that is left.
ALTER TABLE dataset_versions ADD COLUMN removed_at timestamptz;

-- Whoever removes a manifest has to show that no pointer needs it.
CREATE INDEX dataset_units_by_manifest ON dataset_units (manifest_id);

-- Generations whose rows are gone and whose files are to go: the rows first, so that nobody is sent to a file that is not
-- there.
CREATE TABLE removed_prefixes (
    prefix     text PRIMARY KEY,
    removed_at timestamptz NOT NULL DEFAULT trace_now()
);

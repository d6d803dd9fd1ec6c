-- The tables of buffered datasets, as a sink should keep them: the newest schema that was deployed.
CREATE TABLE buffered_tables (
    dataset_uuid uuid PRIMARY KEY REFERENCES datasets,
    schema       json NOT NULL,
    on_conflict  text NOT NULL CHECK (on_conflict IN ('update', 'nothing')),
    changed_at   timestamptz NOT NULL DEFAULT trace_now(),
    -- What waits before it, as a queue (see `pressure`).
    org_id          uuid NOT NULL REFERENCES orgs,
    max_depth       integer CHECK (max_depth > 0),
    max_age_seconds integer CHECK (max_age_seconds > 0),
    depth           integer NOT NULL DEFAULT 0 CHECK (depth >= 0),
    level           smallint NOT NULL DEFAULT 0 CHECK (level BETWEEN 0 AND 2),
    since           timestamptz,
    because         text,
    CONSTRAINT pressed_since CHECK ((level > 0) = (since IS NOT NULL))
);
CREATE INDEX buffered_tables_by_org ON buffered_tables (org_id);
INSERT INTO buffered_tables (dataset_uuid, schema, on_conflict, org_id)
SELECT d.dataset_uuid, v.schema, 'update', d.org_id
FROM datasets d JOIN dataset_versions v ON v.dataset_uuid = d.dataset_uuid AND v.dataset_version = d.current_version
WHERE d.storage = 'buffered' AND v.schema IS NOT NULL;

-- A batch is open until it is in the table (committed_at) or cannot get there (dead_at). A dead letter keeps its artifact
-- until it was dropped; committed ones lose theirs by age (collected_at).
ALTER TABLE buffer_publishes
    ADD COLUMN commit_seq   bigint CHECK (commit_seq > 0),
    ADD COLUMN dead_at      timestamptz,
    ADD COLUMN dead_code    text,
    ADD COLUMN dead_reason  text,
    ADD COLUMN dead_line    bigint CHECK (dead_line > 0),
    ADD COLUMN dead_excerpt text,
    ADD COLUMN dropped_at   timestamptz,
    ADD COLUMN collected_at timestamptz,
    ADD CONSTRAINT dead_is_not_committed CHECK (dead_at IS NULL OR committed_at IS NULL),
    ADD CONSTRAINT dead_says_why CHECK ((dead_at IS NULL) = (dead_code IS NULL) AND (dead_at IS NULL) = (dead_reason IS NULL)),
    ADD CONSTRAINT only_dead_ones_are_dropped CHECK (dropped_at IS NULL OR dead_at IS NOT NULL);

DROP INDEX buffer_publishes_open;
CREATE INDEX buffer_publishes_open ON buffer_publishes (created_at, publish_id)
    WHERE committed_at IS NULL AND dead_at IS NULL;
CREATE INDEX buffer_publishes_backlog ON buffer_publishes (dataset_uuid, created_at)
    WHERE committed_at IS NULL AND dead_at IS NULL;
CREATE INDEX buffer_publishes_dead ON buffer_publishes (org_id, publish_seq)
    WHERE dead_at IS NOT NULL AND dropped_at IS NULL;
CREATE INDEX buffer_publishes_to_collect ON buffer_publishes (coalesce(committed_at, dropped_at))
    WHERE collected_at IS NULL AND (committed_at IS NOT NULL OR dropped_at IS NOT NULL);

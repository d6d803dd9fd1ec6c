-- Tables of buffered datasets, as they are now. The row is the lock of its dataset: whoever commits batches or changes
-- the table holds it, so numbers of commits become visible in their order.
CREATE TABLE buffer_tables (
    dataset_uuid uuid PRIMARY KEY,
    definition   json NOT NULL,
    next_commit  bigint NOT NULL DEFAULT 1 CHECK (next_commit > 0),
    changed_at   timestamptz NOT NULL DEFAULT trace_now()
);

-- Batches that are in their tables, written with their rows: a repeat is seen here.
CREATE TABLE buffer_commits (
    publish_id   uuid PRIMARY KEY,
    dataset_uuid uuid NOT NULL REFERENCES buffer_tables,
    publish_seq  bigint NOT NULL,
    commit_seq   bigint NOT NULL CHECK (commit_seq > 0),
    row_count    bigint NOT NULL CHECK (row_count >= 0),
    committed_at timestamptz NOT NULL DEFAULT trace_now()
);
CREATE INDEX buffer_commits_by_commit ON buffer_commits (dataset_uuid, commit_seq);

-- Where batches are loaded before they are merged; what a killed sink left is dropped by its age.
CREATE SCHEMA staging;
CREATE TABLE buffer_staging (
    name       text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT trace_now()
);

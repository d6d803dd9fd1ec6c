-- A live dataset is files up to a boundary and a table above it.
ALTER TABLE datasets DROP CONSTRAINT datasets_storage_check;
ALTER TABLE datasets ADD CONSTRAINT datasets_storage_check
    CHECK (storage IN ('s3', 'postgres', 'buffered', 'live', 'none'));

-- Where the files of a live dataset end. Rows of its table that files hold are at or below the boundary, which moves in
-- the transaction that commits such files: over all committed units from the first position of the table on, up to the
-- first gap. Files below `table_start` were never in the table.
CREATE TABLE live_boundaries (
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    table_start     bigint NOT NULL CHECK (table_start >= 0),
    boundary        bigint NOT NULL CHECK (boundary >= table_start - 1),
    moved_at        timestamptz NOT NULL DEFAULT trace_now(),
    PRIMARY KEY (dataset_uuid, dataset_version),
    FOREIGN KEY (dataset_uuid, dataset_version) REFERENCES dataset_versions
);

-- A person's permission to follow a reorganisation that reached final blocks, from this one on.
ALTER TABLE source_state ADD COLUMN repair_from bigint CHECK (repair_from >= 0), ADD COLUMN repair_at timestamptz;

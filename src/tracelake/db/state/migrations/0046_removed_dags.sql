-- DAGs that were removed, and may be restored for a while; see docs/removing.md.

-- `removed_version`: the version that was active, or that was being built if none was. `restorable_until` is what the person
-- who removed the DAG was told; NULL: until somebody purges it. `purged_at`: its rows are being deleted, and nothing brings
-- it back. The row goes last, so that its name is free only when nothing is left.
ALTER TABLE dags
    ADD COLUMN removed_at       timestamptz,
    ADD COLUMN removed_by       text,
    ADD COLUMN removed_version  uuid REFERENCES dag_versions,
    ADD COLUMN restorable_until timestamptz,
    ADD COLUMN purged_at        timestamptz,
    ADD CONSTRAINT removed_by_somebody  CHECK ((removed_at IS NULL) = (removed_by IS NULL)),
    ADD CONSTRAINT removed_is_inactive  CHECK (removed_at IS NULL OR (active_version IS NULL AND building_version IS NULL)),
    ADD CONSTRAINT only_removed_returns CHECK (removed_at IS NOT NULL OR (removed_version IS NULL AND restorable_until IS NULL)),
    ADD CONSTRAINT only_removed_purged  CHECK (removed_at IS NOT NULL OR purged_at IS NULL);
CREATE INDEX dags_removed ON dags (removed_at, org_id, dag_name) WHERE removed_at IS NOT NULL;

-- Datasets of a removed DAG: nobody finds them by their name, and nobody else gets the name.
ALTER TABLE datasets ADD COLUMN removed_at timestamptz;

-- Tables of Postgres data that are to be dropped. A sink drops one and says so; then its queue is emptied and the row goes.
CREATE TABLE removed_tables (
    dataset_uuid uuid PRIMARY KEY,
    removed_at   timestamptz NOT NULL DEFAULT trace_now(),
    dropped_at   timestamptz
);

-- Entries of the audit log expire by their age.
CREATE INDEX audit_log_by_age ON audit_log (at, audit_id);

-- Batches of a dataset that goes: few others look for all of them.
CREATE INDEX buffer_publishes_by_dataset ON buffer_publishes (dataset_uuid, dataset_version);

-- Tables that were dropped with their DAG: whoever has an older declaration of one does not create it again. Rows expire.
CREATE TABLE removed_tables (
    dataset_uuid uuid PRIMARY KEY,
    removed_at   timestamptz NOT NULL DEFAULT trace_now()
);
CREATE INDEX removed_tables_by_age ON removed_tables (removed_at);

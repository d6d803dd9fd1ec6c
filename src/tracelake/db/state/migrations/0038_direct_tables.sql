-- Tables of Postgres data that tasks write themselves, as their writers should keep them: the newest activated schema,
-- which fits the rows of every generation.
CREATE TABLE direct_tables (
    dataset_uuid uuid PRIMARY KEY REFERENCES datasets,
    org_id       uuid NOT NULL REFERENCES orgs,
    schema       json NOT NULL,
    changed_at   timestamptz NOT NULL DEFAULT trace_now()
);

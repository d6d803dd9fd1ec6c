-- Batch queries: people's queries that run as tasks of the operator `query`. A query is as far as its task is until its
-- outcome is recorded here; from then on the outcome is final, and neither text nor pins are kept.
CREATE TABLE batch_queries (
    org_id       uuid NOT NULL REFERENCES orgs,
    query_id     uuid NOT NULL,
    task_id      uuid NOT NULL UNIQUE REFERENCES tasks,
    subject      text NOT NULL,
    request_hash text NOT NULL,
    config       json,
    sql_sha256   text NOT NULL CHECK (sql_sha256 ~ '^[0-9a-f]{64}$'),
    datasets     json NOT NULL,
    input_bytes  bigint NOT NULL CHECK (input_bytes >= 0),
    created_at   timestamptz NOT NULL DEFAULT trace_now(),
    outcome      text,
    ended_at     timestamptz,
    PRIMARY KEY (org_id, query_id),
    CONSTRAINT ended_has_its_outcome CHECK ((outcome IS NULL) = (ended_at IS NULL)),
    CONSTRAINT only_open_has_a_text  CHECK ((config IS NULL) = (ended_at IS NOT NULL))
);
CREATE INDEX batch_queries_open ON batch_queries (org_id, subject) WHERE ended_at IS NULL;
CREATE INDEX batch_queries_ended ON batch_queries (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX batch_queries_of_person ON batch_queries (org_id, subject, task_id);

-- The generations that open queries read: they are not swept meanwhile. Files are those that were committed by `as_of`.
CREATE TABLE batch_query_inputs (
    task_id         uuid NOT NULL REFERENCES batch_queries (task_id) ON DELETE CASCADE,
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    as_of           timestamptz,
    PRIMARY KEY (task_id, dataset_uuid),
    FOREIGN KEY (dataset_uuid, dataset_version) REFERENCES dataset_versions
);
CREATE INDEX batch_query_inputs_by_generation ON batch_query_inputs (dataset_uuid, dataset_version);

-- Results are units of a dataset of the org whose name no document can give to one of its own.
ALTER TABLE datasets DROP CONSTRAINT datasets_name_check,
    ADD CONSTRAINT datasets_name_check CHECK (name ~ '^_?[a-z][a-z0-9_]{0,127}$');

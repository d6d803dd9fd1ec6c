-- Postgres state: the only truth of the control plane. Written by the Dispatcher alone.
--
-- Two rules shape the tables. Impossible rows are impossible: what the state machine forbids, a CHECK forbids.
-- Costs follow what happens, not what is stored: every index that a loop reads is partial on live rows.

-- All time is this function. statement_timestamp() is STABLE, so that comparisons with it can use an index.
CREATE FUNCTION trace_now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT statement_timestamp() $$;

CREATE TABLE orgs (
    org_id     uuid PRIMARY KEY,
    name       text NOT NULL UNIQUE CHECK (name ~ '^[a-z][a-z0-9_]{0,127}$'),
    created_at timestamptz NOT NULL DEFAULT trace_now()
);

CREATE TABLE datasets (
    dataset_uuid    uuid PRIMARY KEY,
    org_id          uuid NOT NULL REFERENCES orgs,
    name            text NOT NULL CHECK (name ~ '^[a-z][a-z0-9_]{0,127}$'),
    storage         text NOT NULL CHECK (storage IN ('s3', 'postgres', 'buffered', 'none')),
    current_version uuid NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT trace_now(),
    UNIQUE (org_id, name)
);

-- A generation. Its config_hash is set by the first publication and never changes.
CREATE TABLE dataset_versions (
    dataset_uuid    uuid NOT NULL REFERENCES datasets,
    dataset_version uuid NOT NULL,
    config_hash     text,
    created_at      timestamptz NOT NULL DEFAULT trace_now(),
    PRIMARY KEY (dataset_uuid, dataset_version)
);

ALTER TABLE datasets ADD CONSTRAINT datasets_current_version
    FOREIGN KEY (dataset_uuid, current_version) REFERENCES dataset_versions (dataset_uuid, dataset_version)
    DEFERRABLE INITIALLY DEFERRED;

-- A job row is one immutable definition: a changed definition is a new row, so definitions can be cached.
CREATE TABLE jobs (
    job_id          uuid PRIMARY KEY,
    org_id          uuid NOT NULL REFERENCES orgs,
    dag_name        text NOT NULL,
    name            text NOT NULL,
    runtime         text NOT NULL,
    operator        text NOT NULL,
    config          json NOT NULL,
    config_hash     text NOT NULL,
    definition_hash text NOT NULL,
    lease_seconds   integer NOT NULL CHECK (lease_seconds > 0),
    timeout_seconds integer CHECK (timeout_seconds > 0),
    max_attempts    integer CHECK (max_attempts > 0),
    created_at      timestamptz NOT NULL DEFAULT trace_now(),
    UNIQUE (org_id, dag_name, name, definition_hash)
);

CREATE TABLE job_outputs (
    job_id          uuid NOT NULL REFERENCES jobs,
    output_index    integer NOT NULL CHECK (output_index >= 0),
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    PRIMARY KEY (job_id, output_index),
    UNIQUE (job_id, dataset_uuid),
    FOREIGN KEY (dataset_uuid, dataset_version) REFERENCES dataset_versions
);

-- `outcome` is the last attempt's verdict: NULL while it runs, Timeout when only the clock has spoken, otherwise
-- the worker's final word. A re-queued task keeps its last attempt's lease_token and outcome until the next claim.
CREATE TABLE tasks (
    task_id          uuid PRIMARY KEY,
    org_id           uuid NOT NULL REFERENCES orgs,
    job_id           uuid NOT NULL REFERENCES jobs,
    status           text NOT NULL CHECK (status IN ('Queued', 'Running', 'Completed', 'Failed', 'Canceled')),
    attempt          integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    max_attempts     integer CHECK (max_attempts > 0),
    held             boolean NOT NULL DEFAULT false,
    cancel_requested boolean NOT NULL DEFAULT false,
    outcome          text CHECK (outcome IN ('Timeout', 'Completed', 'Failed', 'Canceled')),
    lease_token      uuid,
    lease_expires_at timestamptz,
    deadline_at      timestamptz,
    claimed_at       timestamptz,
    worker_id        text,
    claim_id         text,
    ready_at         timestamptz,
    next_retry_at    timestamptz,
    finished_at      timestamptz,
    error            text,
    result           json,
    inputs           json NOT NULL,
    unit             json,
    created_at       timestamptz NOT NULL DEFAULT trace_now(),

    CONSTRAINT attempts_are_bounded    CHECK (max_attempts IS NULL OR attempt <= max_attempts),
    CONSTRAINT claimed_has_lease_token CHECK ((attempt > 0) = (lease_token IS NOT NULL)),
    CONSTRAINT running_has_a_lease     CHECK ((status = 'Running') = (lease_expires_at IS NOT NULL)),
    CONSTRAINT running_was_claimed     CHECK (status <> 'Running' OR (attempt > 0 AND outcome IS NULL)),
    CONSTRAINT lease_ends_by_deadline  CHECK (lease_expires_at IS NULL OR deadline_at IS NULL OR lease_expires_at <= deadline_at),
    CONSTRAINT ended_attempt_has_word  CHECK (status = 'Running' OR attempt = 0 OR outcome IS NOT NULL),
    CONSTRAINT completed_by_its_worker CHECK ((status = 'Completed') = (outcome IS NOT DISTINCT FROM 'Completed')),
    CONSTRAINT failed_was_claimed      CHECK (status <> 'Failed' OR (attempt > 0 AND outcome IN ('Timeout', 'Failed'))),
    CONSTRAINT only_failed_waits       CHECK (next_retry_at IS NULL OR status = 'Failed'),
    CONSTRAINT only_queued_is_ready    CHECK ((ready_at IS NOT NULL) = (status = 'Queued')),
    CONSTRAINT only_queued_is_held     CHECK (NOT held OR status = 'Queued'),
    CONSTRAINT only_running_is_asked   CHECK (NOT cancel_requested OR status IN ('Running', 'Canceled')),
    CONSTRAINT ended_has_its_time      CHECK (
        (finished_at IS NOT NULL) = (status IN ('Completed', 'Canceled') OR (status = 'Failed' AND next_retry_at IS NULL)))
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);

-- The lease time is deliberately in no index: a heartbeat then rewrites one heap tuple and touches no index.
CREATE INDEX tasks_running ON tasks (task_id) WHERE status = 'Running';
CREATE INDEX tasks_waiting ON tasks (next_retry_at) WHERE next_retry_at IS NOT NULL;
CREATE INDEX tasks_ready   ON tasks (ready_at, task_id) WHERE status = 'Queued' AND NOT held;

-- Attempts that a newer claim replaced. The newest attempt is on the task row itself, so the usual task, done at its
-- first attempt, writes nothing here.
CREATE TABLE task_attempts (
    task_id     uuid NOT NULL REFERENCES tasks,
    attempt     integer NOT NULL CHECK (attempt > 0),
    lease_token uuid NOT NULL,
    worker_id   text,
    claimed_at  timestamptz NOT NULL,
    outcome     text NOT NULL,
    error       text,
    PRIMARY KEY (task_id, attempt)
);

-- One row per accepted event. `unit` spells the cursor (`c:12`) or the partition (`p:10-19`) for the idempotency key.
CREATE TABLE events (
    event_id        bigint GENERATED ALWAYS AS IDENTITY,
    org_id          uuid NOT NULL,
    producer        text NOT NULL,
    attempt         integer,
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    unit            text NOT NULL,
    revision        text NOT NULL DEFAULT '',
    cursor          bigint CHECK (cursor >= 0),
    partition_key   text,
    range_start     bigint CHECK (range_start >= 0),
    range_end       bigint,
    invalidates     json,
    state           text NOT NULL CHECK (state IN ('Routed', 'AwaitsCommit', 'NotCurrent')),
    commit_revision bigint,
    created_at      timestamptz NOT NULL DEFAULT trace_now(),
    PRIMARY KEY (producer, dataset_uuid, dataset_version, unit, revision),
    FOREIGN KEY (dataset_uuid, dataset_version) REFERENCES dataset_versions,
    CONSTRAINT cursor_or_partition CHECK ((cursor IS NULL) <> (partition_key IS NULL)),
    CONSTRAINT range_is_whole      CHECK ((range_start IS NULL) = (range_end IS NULL) AND range_start <= range_end),
    CONSTRAINT range_is_partition  CHECK (range_start IS NULL OR partition_key = range_start || '-' || range_end)
);
CREATE INDEX events_awaiting ON events (producer) WHERE state = 'AwaitsCommit';

-- The bytes a commit pinned. Manifests are never changed; the pointer in dataset_units says which one counts.
CREATE TABLE manifests (
    manifest_id     uuid PRIMARY KEY,
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    unit            text NOT NULL,
    revision        bigint NOT NULL CHECK (revision > 0),
    task_id         uuid NOT NULL REFERENCES tasks,
    attempt         integer NOT NULL,
    prefix          text NOT NULL,
    objects         json NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT trace_now(),
    UNIQUE (dataset_uuid, dataset_version, unit, revision),
    FOREIGN KEY (dataset_uuid, dataset_version) REFERENCES dataset_versions
);

CREATE TABLE dataset_units (
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    unit            text NOT NULL,
    range_start     bigint CHECK (range_start >= 0),
    range_end       bigint CHECK (range_end >= range_start),
    revision        bigint NOT NULL,
    manifest_id     uuid NOT NULL REFERENCES manifests,
    PRIMARY KEY (dataset_uuid, dataset_version, unit),
    CONSTRAINT range_is_whole CHECK ((range_start IS NULL) = (range_end IS NULL))
);
CREATE UNIQUE INDEX dataset_units_by_start ON dataset_units (dataset_uuid, dataset_version, range_start)
    WHERE range_start IS NOT NULL;

CREATE TABLE buffer_publishes (
    publish_id      uuid PRIMARY KEY,
    publish_seq     bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    org_id          uuid NOT NULL REFERENCES orgs,
    task_id         uuid NOT NULL REFERENCES tasks,
    attempt         integer NOT NULL CHECK (attempt > 0),
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    batch_uri       text NOT NULL,
    size_bytes      bigint NOT NULL CHECK (size_bytes >= 0),
    etag            text NOT NULL,
    record_count    bigint CHECK (record_count >= 0),
    content_type    text NOT NULL,
    committed_at    timestamptz,
    created_at      timestamptz NOT NULL DEFAULT trace_now(),
    UNIQUE (task_id, attempt, dataset_uuid, batch_uri),
    FOREIGN KEY (dataset_uuid, dataset_version) REFERENCES dataset_versions
);
CREATE INDEX buffer_publishes_open ON buffer_publishes (created_at) WHERE committed_at IS NULL;

-- Side effects, written in the transaction that causes them; the relay publishes a row and deletes it.
-- A transport that is away changes nothing here; `tries` counts rejections by the transport itself.
CREATE TABLE outbox (
    outbox_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        text NOT NULL CHECK (kind IN ('task_wakeup', 'buffer_batch')),
    queue       text NOT NULL,
    key         uuid NOT NULL,
    body        json,
    status      text NOT NULL DEFAULT 'Pending' CHECK (status IN ('Pending', 'Failed')),
    tries       integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    last_error  text,
    next_try_at timestamptz NOT NULL DEFAULT trace_now(),
    created_at  timestamptz NOT NULL DEFAULT trace_now(),
    CONSTRAINT wakeups_carry_only_their_key CHECK ((kind = 'task_wakeup') = (body IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000);

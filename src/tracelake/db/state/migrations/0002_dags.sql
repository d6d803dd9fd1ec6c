-- DAG versions, generations, routing.
--
-- Three kinds of rows. Definitions never change: dag_versions, nodes, jobs. Pointers say which of them count now: dags,
-- activations, datasets.current_version and staged_version, the phase of an edge. Progress grows with what happens:
-- events, tasks, the position of an edge, ranges.
--
-- One lock keeps the three consistent: whoever routes an event holds its org's advisory lock shared, whoever moves
-- pointers holds it exclusively (routing_lock_key). Moving pointers also raises orgs.routing_epoch, so that a
-- Dispatcher knows when what it remembers of an org's edges is out of date.

CREATE FUNCTION routing_lock_key(org uuid) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT hashtextextended('routing:' || org::text, 0) $$;

-- Shared, or not at all: for those who have others waiting behind them.
CREATE FUNCTION try_routing_lock(org uuid) RETURNS void
    LANGUAGE plpgsql
    AS $$ BEGIN
        IF NOT pg_try_advisory_xact_lock_shared(routing_lock_key(org)) THEN
            RAISE EXCEPTION 'the pointers of an org are being moved' USING ERRCODE = 'TR001', DETAIL = org::text;
        END IF;
    END $$;

ALTER TABLE orgs ADD COLUMN routing_epoch bigint NOT NULL DEFAULT 0;

-- One immutable YAML document. `document` is its canonical form; two texts that mean the same are one version.
CREATE TABLE dag_versions (
    dag_version_id uuid PRIMARY KEY,
    org_id         uuid NOT NULL REFERENCES orgs,
    dag_name       text NOT NULL CHECK (dag_name ~ '^[a-z][a-z0-9_]{0,127}$'),
    number         integer NOT NULL CHECK (number > 0),
    document_hash  text NOT NULL,
    document       json NOT NULL,
    source         text NOT NULL,
    created_by     text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT trace_now(),
    UNIQUE (org_id, dag_name, number),
    UNIQUE (org_id, dag_name, document_hash)
);

-- Which version counts, and which is being built beside it.
CREATE TABLE dags (
    org_id           uuid NOT NULL REFERENCES orgs,
    dag_name         text NOT NULL,
    active_version   uuid REFERENCES dag_versions,
    building_version uuid REFERENCES dag_versions,
    created_at       timestamptz NOT NULL DEFAULT trace_now(),
    PRIMARY KEY (org_id, dag_name),
    CONSTRAINT builds_another CHECK (building_version IS DISTINCT FROM active_version OR building_version IS NULL)
);

-- Every time a version was made to count, or was meant to.
CREATE TABLE activations (
    activation_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    org_id         uuid NOT NULL,
    dag_name       text NOT NULL,
    dag_version_id uuid NOT NULL REFERENCES dag_versions,
    state          text NOT NULL CHECK (state IN ('Building', 'Active', 'Superseded', 'Abandoned')),
    requested_by   text NOT NULL,
    requested_at   timestamptz NOT NULL DEFAULT trace_now(),
    cutover_at     timestamptz,
    ended_at       timestamptz,
    FOREIGN KEY (org_id, dag_name) REFERENCES dags,
    CONSTRAINT cut_over_unless_built CHECK ((cutover_at IS NOT NULL) = (state IN ('Active', 'Superseded'))),
    CONSTRAINT ended_is_past         CHECK ((ended_at IS NOT NULL) = (state IN ('Superseded', 'Abandoned')))
);
CREATE UNIQUE INDEX activations_building ON activations (org_id, dag_name) WHERE state = 'Building';
CREATE UNIQUE INDEX activations_active ON activations (org_id, dag_name) WHERE state = 'Active';
CREATE INDEX activations_by_version ON activations (dag_version_id);

-- What makes data: a job's name and everything that changes what it writes, its upstream nodes included. Two job
-- definitions that differ in limits alone are one node: its generations, edges and tasks go on.
--
-- A cutover moves so many tasks and no more, to be short whatever waits. `sweep` says that the node has more of them: to
-- cancel (Drop, for sweep_reason), or to bring back (Return). `uncounted`: tasks that are not in the depth of its queue.
CREATE TABLE nodes (
    node_id      uuid PRIMARY KEY,
    org_id       uuid NOT NULL REFERENCES orgs,
    dag_name     text NOT NULL,
    job_name     text NOT NULL,
    data_hash    text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT trace_now(),
    sweep        text CHECK (sweep IN ('Drop', 'Return')),
    sweep_reason text,
    uncounted    boolean NOT NULL DEFAULT false,
    UNIQUE (org_id, dag_name, job_name, data_hash),
    CONSTRAINT dropped_for_a_reason CHECK ((sweep_reason IS NOT NULL) = (sweep IS NOT NULL AND sweep = 'Drop'))
);
CREATE INDEX nodes_to_sweep ON nodes (org_id, node_id) WHERE sweep IS NOT NULL OR uncounted;
CREATE INDEX nodes_dropping ON nodes (node_id) WHERE sweep = 'Drop';

-- Jobs that no DAG made (POST /internal/jobs) have no node, and nothing is routed to them.
ALTER TABLE jobs
    ADD COLUMN node_id         uuid REFERENCES nodes,
    ADD COLUMN strategy        text NOT NULL DEFAULT 'PerUpdate' CHECK (strategy IN ('PerUpdate', 'PerPartition')),
    ADD COLUMN priority        text NOT NULL DEFAULT 'normal' CHECK (priority IN ('normal', 'bulk')),
    ADD COLUMN max_concurrency integer CHECK (max_concurrency > 0),
    ADD COLUMN document        json;
CREATE INDEX jobs_by_node ON jobs (node_id) WHERE node_id IS NOT NULL;

CREATE TABLE dag_version_jobs (
    dag_version_id uuid NOT NULL REFERENCES dag_versions,
    job_name       text NOT NULL,
    job_id         uuid NOT NULL REFERENCES jobs,
    PRIMARY KEY (dag_version_id, job_name)
);
CREATE INDEX dag_version_jobs_by_job ON dag_version_jobs (job_id);

-- Datasets of a DAG have an owner; `published` ones were named by a person, the others after their job.
ALTER TABLE datasets
    ADD COLUMN dag_name       text,
    ADD COLUMN published      boolean NOT NULL DEFAULT false,
    ADD COLUMN staged_version uuid,
    ADD CONSTRAINT datasets_staged_version FOREIGN KEY (dataset_uuid, staged_version)
        REFERENCES dataset_versions (dataset_uuid, dataset_version) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE dataset_versions
    ADD COLUMN node_id     uuid REFERENCES nodes,
    ADD COLUMN schema      json,
    ADD COLUMN schema_hash text;

-- History of pointers: each row held from `since` until the next one of its dataset.
CREATE TABLE dataset_pointers (
    dataset_uuid    uuid NOT NULL,
    since           timestamptz NOT NULL DEFAULT clock_timestamp(),
    dataset_version uuid NOT NULL,
    activation_id   bigint REFERENCES activations,
    PRIMARY KEY (dataset_uuid, since),
    FOREIGN KEY (dataset_uuid, dataset_version) REFERENCES dataset_versions
);

-- One input of a node, and how far it has come.
--
-- phase: Active edges get events; Staged ones belong to a version that is being built; Parked ones to a version that
-- does not count now. `position` is NULL while events are routed to the edge as they come. Otherwise it is the
-- routed_seq up to which the edge has seen its generation's events, and the drain loop takes it on from there (for a
-- build up to `drain_until`, the rest after the cutover). `routed` is the highest cursor it has made a task for.
CREATE TABLE edges (
    node_id         uuid NOT NULL REFERENCES nodes,
    input_index     integer NOT NULL CHECK (input_index >= 0),
    org_id          uuid NOT NULL REFERENCES orgs,
    job_id          uuid NOT NULL REFERENCES jobs,
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    filter          json,
    phase           text NOT NULL CHECK (phase IN ('Active', 'Staged', 'Parked')),
    routed          bigint NOT NULL DEFAULT -1 CHECK (routed >= -1),
    position        bigint CHECK (position >= 0),
    drain_until     bigint,
    failed_units    integer NOT NULL DEFAULT 0 CHECK (failed_units >= 0),
    PRIMARY KEY (node_id, input_index),
    FOREIGN KEY (dataset_uuid, dataset_version) REFERENCES dataset_versions,
    CONSTRAINT parked_has_position CHECK (phase <> 'Parked' OR position IS NOT NULL),
    CONSTRAINT held_has_position   CHECK (failed_units = 0 OR position IS NOT NULL)
);
CREATE INDEX edges_by_generation ON edges (dataset_uuid, dataset_version) WHERE phase <> 'Parked';
CREATE INDEX edges_behind ON edges (org_id, node_id) WHERE position IS NOT NULL AND phase <> 'Parked';

-- Units of a generation that are there, as runs of equal, adjoining ranges on one grid: `(range_end - range_start + 1)`
-- is a multiple of unit_size. Ten thousand partitions side by side are one row, and every boundary is still known.
-- (numeric: a single range may be as long as all of bigint, whose length is one more than bigint holds.)
CREATE TABLE dataset_runs (
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    unit_size       numeric NOT NULL CHECK (unit_size > 0),
    unit_offset     numeric NOT NULL,
    range_start     bigint NOT NULL CHECK (range_start >= 0),
    range_end       bigint NOT NULL,
    PRIMARY KEY (dataset_uuid, dataset_version, unit_size, unit_offset, range_start),
    FOREIGN KEY (dataset_uuid, dataset_version) REFERENCES dataset_versions,
    CONSTRAINT whole_units CHECK (range_end >= range_start AND (range_end::numeric - range_start + 1) % unit_size = 0),
    CONSTRAINT same_grid   CHECK (unit_offset = range_start % unit_size)
);

-- Units without a block range that are there: named partitions, and cursors where a join asks for them.
CREATE TABLE dataset_keys (
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    unit            text NOT NULL,
    PRIMARY KEY (dataset_uuid, dataset_version, unit),
    FOREIGN KEY (dataset_uuid, dataset_version) REFERENCES dataset_versions
);

-- The newest revision of a unit, where it is not the usual first one ('' or, for committed files, '1').
CREATE TABLE unit_revisions (
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    unit            text NOT NULL,
    revision        text NOT NULL,
    routed_seq      bigint NOT NULL DEFAULT 0,  -- of the event that said it: an older one, shown again, changes nothing
    PRIMARY KEY (dataset_uuid, dataset_version, unit)
);

-- An event that is (or was) allowed to make tasks has a routed_seq, given while its consumers' edges are locked, so
-- that for each edge the order of numbers is the order of commits. `effective_revision` is what consumers see.
CREATE SEQUENCE events_routed_seq;
SELECT nextval('events_routed_seq');  -- from now on last_value is a number that was given out
ALTER TABLE events
    ADD COLUMN routed_seq         bigint,
    ADD COLUMN effective_revision text NOT NULL DEFAULT '';
UPDATE events SET routed_seq = nextval('events_routed_seq') WHERE state = 'Routed';
ALTER TABLE events ADD CONSTRAINT routed_has_seq CHECK ((state = 'Routed') = (routed_seq IS NOT NULL));
CREATE INDEX events_routed ON events (dataset_uuid, dataset_version, routed_seq) WHERE routed_seq IS NOT NULL;
CREATE INDEX events_by_dataset ON events (dataset_uuid, event_id);
CREATE INDEX events_not_current ON events (dataset_uuid, dataset_version) WHERE state = 'NotCurrent';

-- What was declared wrong, and how many units of consumers were made anew at once for it.
CREATE TABLE invalidations (
    invalidation_id text PRIMARY KEY,
    org_id          uuid NOT NULL REFERENCES orgs,
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    range_start     bigint NOT NULL,
    range_end       bigint NOT NULL CHECK (range_end >= range_start),
    reason          text NOT NULL,
    producer        text NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT trace_now(),
    FOREIGN KEY (dataset_uuid, dataset_version) REFERENCES dataset_versions
);
CREATE INDEX invalidations_by_dataset ON invalidations (dataset_uuid, created_at);

-- What an invalidation still asks of a reader that has too many units for one transaction. Units are taken in a fixed
-- order, and the row says which came last: first ranges by their grid and start, then (`cursor` is not NULL) cursors.
-- The unit of the event itself has its task already.
CREATE TABLE invalidation_work (
    invalidation_id text NOT NULL REFERENCES invalidations,
    node_id         uuid NOT NULL,
    input_index     integer NOT NULL,
    org_id          uuid NOT NULL REFERENCES orgs,
    own_unit        text NOT NULL,
    unit_size       numeric NOT NULL DEFAULT 0,
    unit_offset     numeric NOT NULL DEFAULT 0,
    unit_start      bigint NOT NULL DEFAULT -1,
    cursor          bigint,
    PRIMARY KEY (node_id, input_index, invalidation_id),
    FOREIGN KEY (node_id, input_index) REFERENCES edges
);

-- What a routed task is for. `edge` is the input whose event made it, -1 for PerPartition (all inputs have the unit).
-- unit_start and unit_end are blocks: of a range, or after + 1 and to of a cursor. One index is the promise of exactly
-- one task per unit and revision, the way to a unit's predecessor, and the way to units that overlap a range.
-- The job says the org and the node; only the job is checked at every insert.
ALTER TABLE tasks
    DROP CONSTRAINT tasks_org_id_fkey,
    ADD COLUMN node_id    uuid,
    ADD COLUMN edge       integer CHECK (edge >= -1),
    ADD COLUMN unit_key   text,
    ADD COLUMN unit_start bigint,
    ADD COLUMN unit_end   bigint,
    ADD COLUMN revision   text NOT NULL DEFAULT '',
    ADD COLUMN limit_keys text[],
    ADD COLUMN held_by    text,
    ADD COLUMN skipped_at timestamptz,
    ADD COLUMN superseded text CHECK (superseded IN ('Dropped', 'Returning')),
    ADD CONSTRAINT routed_is_whole   CHECK ((node_id IS NULL) = (edge IS NULL) AND (node_id IS NULL) = (unit_key IS NULL)),
    ADD CONSTRAINT unit_range_whole  CHECK ((unit_start IS NULL) = (unit_end IS NULL)),
    ADD CONSTRAINT only_failed_skips CHECK (skipped_at IS NULL OR (status = 'Failed' AND next_retry_at IS NULL));
CREATE UNIQUE INDEX tasks_units ON tasks (node_id, edge, unit_end, unit_key, revision) NULLS NOT DISTINCT
    WHERE node_id IS NOT NULL;
CREATE INDEX tasks_by_job ON tasks (job_id, task_id);
CREATE INDEX tasks_live ON tasks (job_id, task_id) WHERE status IN ('Queued', 'Running', 'Failed');
CREATE INDEX tasks_held ON tasks (held_by, ready_at, task_id) WHERE held;

-- A task that a cutover cancelled is `Dropped`: its unit is made after all if its version counts again. One that still
-- runs then, and was already told to stop, is `Returning` until it has stopped.
CREATE INDEX tasks_superseded ON tasks (superseded, job_id, task_id) WHERE superseded IS NOT NULL;

-- Running work that is limited, per job and per operator. A task that is ready or running and names a key takes a place;
-- a task that finds none is held (by the first key that was full) until the transaction that frees one.
CREATE TABLE limits (
    limit_key   text PRIMARY KEY,
    max_running integer CHECK (max_running > 0),
    used        integer NOT NULL DEFAULT 0 CHECK (used >= 0)
) WITH (fillfactor = 50);

-- A trigger by a person or program: the same key again is the same trigger.
CREATE TABLE triggers (
    org_id          uuid NOT NULL REFERENCES orgs,
    idempotency_key text NOT NULL,
    request_hash    text NOT NULL,
    reply           json NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT trace_now(),
    PRIMARY KEY (org_id, idempotency_key)
);

-- Every change that a user made, written in the transaction of the change.
CREATE TABLE audit_log (
    audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    org_id   uuid NOT NULL REFERENCES orgs,
    at       timestamptz NOT NULL DEFAULT trace_now(),
    subject  text NOT NULL,
    action   text NOT NULL,
    target   text NOT NULL,
    details  json NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_log_by_org ON audit_log (org_id, audit_id);

-- Work that the Dispatcher starts itself (in its own process, or through the Invoker) waits in the outbox too.
ALTER TABLE outbox DROP CONSTRAINT outbox_kind_check,
    DROP CONSTRAINT wakeups_carry_only_their_key;
ALTER TABLE outbox ADD CONSTRAINT outbox_kind_check CHECK (kind IN ('task_wakeup', 'task_invoke', 'buffer_batch')),
    ADD CONSTRAINT wakeups_carry_only_their_key CHECK ((kind = 'buffer_batch') = (body IS NOT NULL));
CREATE INDEX outbox_invoke ON outbox (queue, outbox_id) WHERE kind = 'task_invoke';

-- Units that jobs choose themselves: windows of blocks or of time. Positions of a unit are blocks, or seconds since 1970 where
-- `dataset_versions.units` says that the units are windows of time.
ALTER TABLE jobs DROP CONSTRAINT jobs_strategy_check,
    ADD CONSTRAINT jobs_strategy_check CHECK (strategy IN ('PerUpdate', 'PerPartition', 'PerWindow'));
ALTER TABLE dataset_versions ADD COLUMN units json;

-- The times of the first and the last block of a unit, in seconds since 1970. They map windows of time to blocks. Manifests
-- keep those of every revision: a unit whose times change has left the windows that it was in before.
ALTER TABLE manifests ADD COLUMN time_min bigint, ADD COLUMN time_max bigint,
    ADD CONSTRAINT times_are_ordered CHECK ((time_min IS NULL) = (time_max IS NULL) AND time_min <= time_max);
ALTER TABLE dataset_units ADD COLUMN time_min bigint, ADD COLUMN time_max bigint;
CREATE INDEX dataset_units_by_time ON dataset_units (dataset_uuid, dataset_version, time_max) WHERE time_max IS NOT NULL;
CREATE INDEX manifests_by_time ON manifests (dataset_uuid, dataset_version, created_at);

-- What an attempt reads is fixed when it is claimed: of each input, as JSON, the time of its newest commit, or null.
ALTER TABLE tasks ADD COLUMN read_as_of text;

-- Units of a node that a change has touched and that have no task for it yet: their inputs do not cover them, or work
-- upstream that is still open will change them once more. `changed_seq` is the routed_seq of the newest change, `waits_for`
-- the open task whose end decides, `reason` why there is no task. What is `due` is looked at by the drain loop.
CREATE TABLE pending_units (
    node_id     uuid NOT NULL REFERENCES nodes,
    unit_start  bigint NOT NULL,
    unit_end    bigint NOT NULL,
    org_id      uuid NOT NULL REFERENCES orgs,
    changed_seq bigint NOT NULL,
    since       timestamptz NOT NULL DEFAULT trace_now(),
    reason      text NOT NULL DEFAULT '',
    waits_for   uuid,
    due         boolean NOT NULL DEFAULT false,
    traceparent text,
    revision_kind text NOT NULL DEFAULT 'event' CHECK (revision_kind IN ('event', 'manual', 'invalidation')),
    PRIMARY KEY (node_id, unit_start, unit_end)
);
CREATE INDEX pending_units_waiting ON pending_units (waits_for) WHERE waits_for IS NOT NULL;
CREATE INDEX pending_units_due ON pending_units (org_id, node_id, unit_start) WHERE due;

-- The next open task of a node at or behind a position.
CREATE INDEX tasks_open ON tasks (node_id, unit_end) INCLUDE (unit_start) WHERE finished_at IS NULL AND unit_end IS NOT NULL;

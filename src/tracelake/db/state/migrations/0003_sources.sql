-- Sources at work, and backpressure.

-- What a source has done so far; one row from its first sign of life on. It belongs to the node, which a source that only
-- emits keeps through every version.
CREATE TABLE source_state (
    node_id    uuid PRIMARY KEY REFERENCES nodes,
    org_id     uuid NOT NULL REFERENCES orgs,
    last_slot  timestamptz,
    deliveries bigint NOT NULL DEFAULT 0 CHECK (deliveries >= 0),
    paused_by  text,
    paused_at  timestamptz,
    updated_at timestamptz NOT NULL DEFAULT trace_now(),
    CONSTRAINT paused_by_somebody CHECK ((paused_by IS NULL) = (paused_at IS NULL))
);

-- Jobs whose attempts have no end are always_on sources: the monitor asks for them every second, mostly in vain.
CREATE INDEX jobs_always_on ON jobs (node_id) WHERE timeout_seconds IS NULL AND max_attempts IS NULL;

-- Which source a webhook's path belongs to: taken by the first version that uses it, given up by none. A source that
-- moved has several; its secret, and so the rotation, is the same for all of them.
CREATE TABLE webhooks (
    path     text PRIMARY KEY,
    org_id   uuid NOT NULL REFERENCES orgs,
    dag_name text NOT NULL,
    job_name text NOT NULL,
    rotation integer NOT NULL DEFAULT 1 CHECK (rotation > 0),
    previous_until timestamptz
);
CREATE INDEX webhooks_by_job ON webhooks (org_id, dag_name, job_name);

-- What was delivered, kept as it came. `number` counts the deliveries of a source, and is the cursor of its event.
CREATE TABLE webhook_deliveries (
    node_id      uuid NOT NULL REFERENCES nodes,
    delivery_id  text NOT NULL,
    number       bigint NOT NULL CHECK (number > 0),
    body_hash    text NOT NULL,
    content_type text NOT NULL,
    body         bytea NOT NULL,
    received_at  timestamptz NOT NULL DEFAULT trace_now(),
    PRIMARY KEY (node_id, delivery_id),
    UNIQUE (node_id, number)
);

-- The queue of each node whose job has a threshold. `level`: 0 none, 1 bulk producers upstream are stopped, 2 all are.
-- Who is stopped is not stored: it follows from the levels downstream.
CREATE TABLE pressure (
    node_id         uuid PRIMARY KEY REFERENCES nodes,
    org_id          uuid NOT NULL REFERENCES orgs,
    max_depth       integer CHECK (max_depth > 0),
    max_age_seconds integer CHECK (max_age_seconds > 0),
    depth           integer NOT NULL DEFAULT 0 CHECK (depth >= 0),
    oldest_ready_at timestamptz,
    level           smallint NOT NULL DEFAULT 0 CHECK (level BETWEEN 0 AND 2),
    since           timestamptz,
    because         text,
    CONSTRAINT pressed_since CHECK ((level > 0) = (since IS NOT NULL))
) WITH (fillfactor = 50);
CREATE INDEX pressure_by_org ON pressure (org_id);

-- Counted in the depth of its node's queue while it is ready.
ALTER TABLE tasks ADD COLUMN counted boolean NOT NULL DEFAULT false;

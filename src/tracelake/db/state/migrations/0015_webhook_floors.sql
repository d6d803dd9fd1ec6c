-- The rotations of webhooks as a restored state must go on from: a dump may be older than a webhook, and its secret follows
-- from the rotation alone. Whoever takes a path begins no lower. Written by a restore; no row is ever removed. The org is no
-- reference: the dump may be older than the org, too.
CREATE TABLE webhook_floors (
    org_id         uuid NOT NULL,
    dag_name       text NOT NULL,
    job_name       text NOT NULL,
    rotation       integer NOT NULL CHECK (rotation > 0),
    previous_until timestamptz,
    PRIMARY KEY (org_id, dag_name, job_name)
);

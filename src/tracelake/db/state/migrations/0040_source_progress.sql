-- How far sources that follow the head of a chain are, as their heartbeats said it last. There are no foreign keys: a
-- heartbeat waits for nobody's rows. Retention deletes a row with its node.
CREATE TABLE source_progress (
    node_id          uuid PRIMARY KEY,
    org_id           uuid NOT NULL,
    attempt          integer NOT NULL,
    state            text NOT NULL,
    head             bigint,
    stored           bigint,
    stored_time      bigint,
    announced        boolean NOT NULL,
    reorgs           bigint NOT NULL,
    reorgs_before    bigint NOT NULL DEFAULT 0,
    last_reorg_depth integer NOT NULL,
    max_reorg_depth  integer NOT NULL,
    told_at          timestamptz NOT NULL DEFAULT trace_now()
);
COMMENT ON COLUMN source_progress.reorgs_before IS 'Those of earlier attempts; reorgs counts those of this one.';

-- When a sink last asked what there is to drain: one row, so that people can be told whether there is one at all.
CREATE TABLE sinks_seen (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    at  timestamptz NOT NULL
);

-- Dead letters that lie there, by dataset, the oldest first.
CREATE INDEX buffer_publishes_dead_of ON buffer_publishes (dataset_uuid, dead_at, publish_id)
    WHERE dead_at IS NOT NULL AND dropped_at IS NULL;

-- Starts and ends of attempts that an OpenLineage receiver has yet to hear of. Written in the transaction of the
-- transition, and only where `openlineage_url` is set; a row is deleted when it was received. There are no foreign
-- keys: nothing waits for these rows, and a task may go before its events are sent.
CREATE TABLE lineage_events (
    event_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id    uuid NOT NULL,
    attempt    integer NOT NULL,
    event_type text NOT NULL CHECK (event_type IN ('START', 'COMPLETE', 'FAIL', 'ABORT')),
    event_time timestamptz NOT NULL,
    error      text
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000);

-- Which Dispatcher sends them: one at a time, so that a receiver hears them in their order.
CREATE TABLE lineage_sender (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    holder      uuid,
    held_until  timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO lineage_sender DEFAULT VALUES;

-- The queue database: live messages and dead letters, nothing else. See adapters/lite/postgres_queue.py.

-- All time is this function. Tests replace it with an offset version; nothing else may.
CREATE FUNCTION trace_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT statement_timestamp() $$;

-- A message is visible when visible_at has passed, else it is held under `receipt` (or waits for its time).
-- There is no index on message_id alone: who acks or extends knows the key too, and every index is one more
-- entry to write for each receive. (key, message_id) serves ack, extend and the search for lost wake-ups.
CREATE TABLE messages (
    message_id   bigint      GENERATED ALWAYS AS IDENTITY,
    queue        text        COLLATE "C" NOT NULL CHECK (length(queue) BETWEEN 1 AND 128),
    key          text        COLLATE "C" NOT NULL CHECK (length(key) BETWEEN 1 AND 512),
    body         bytea       NOT NULL CHECK (octet_length(body) <= 262144),
    published_at timestamptz NOT NULL,
    visible_at   timestamptz NOT NULL,
    receives     integer     NOT NULL DEFAULT 0 CHECK (receives >= 0),
    receipt      bigint,
    PRIMARY KEY (key, message_id),
    CONSTRAINT a_receipt_means_a_receive CHECK (receipt IS NULL OR receives > 0)
) WITH (
    -- Every message is written once and updated once or twice in seconds: leave room for that on its page.
    fillfactor = 50,
    -- Rows live for seconds, so dead ones pile up at the rate of the traffic. Vacuum early, by number and not
    -- by share, and at full speed: what it finds is small and in memory.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 100000,
    vacuum_truncate = off
);

CREATE INDEX messages_due ON messages (queue, visible_at);

CREATE TABLE dead_letters (
    message_id   bigint      PRIMARY KEY,
    queue        text        COLLATE "C" NOT NULL CHECK (length(queue) BETWEEN 1 AND 128),
    key          text        COLLATE "C" NOT NULL CHECK (length(key) BETWEEN 1 AND 512),
    body         bytea       NOT NULL CHECK (octet_length(body) <= 262144),
    published_at timestamptz NOT NULL,
    receives     integer     NOT NULL CHECK (receives > 0),
    died_at      timestamptz NOT NULL,
    reason       text        NOT NULL CHECK (reason <> '')
);

CREATE INDEX dead_letters_by_queue ON dead_letters (queue, message_id);

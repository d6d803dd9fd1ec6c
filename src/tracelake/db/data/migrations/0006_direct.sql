-- Who may write a scope of a table that tasks write directly: the newest attempt of its newest task. Raised in the
-- transaction that writes the rows.
CREATE TABLE direct_fences (
    dataset_uuid uuid NOT NULL REFERENCES buffer_tables,
    scope        text NOT NULL CHECK (octet_length(scope) BETWEEN 1 AND 512),
    -- In the rows of the scope.
    scope_id     integer NOT NULL GENERATED ALWAYS AS IDENTITY UNIQUE,
    task_id      uuid NOT NULL,
    attempt      integer NOT NULL CHECK (attempt > 0),
    raised_at    timestamptz NOT NULL DEFAULT trace_now(),
    PRIMARY KEY (dataset_uuid, scope)
);

-- Events of rows that are committed, until the Dispatcher has them. Written with the rows.
CREATE TABLE direct_events (
    event_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dataset_uuid uuid NOT NULL,
    scope        text NOT NULL,
    task_id      uuid NOT NULL,
    attempt      integer NOT NULL,
    event        json NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT trace_now(),
    FOREIGN KEY (dataset_uuid, scope) REFERENCES direct_fences
);
CREATE INDEX direct_events_by_scope ON direct_events (dataset_uuid, scope, event_id);

-- Every query that the Query Service answered or refused. The text of a query and its values are not stored: equal
-- queries have equal hashes. `org` is a name, since a token may be of an org that has nothing yet.
CREATE TABLE query_audit (
    org         text NOT NULL CHECK (org ~ '^[a-z][a-z0-9_]{0,127}$'),
    run_id      uuid NOT NULL,
    query_id    uuid NOT NULL,
    at          timestamptz NOT NULL DEFAULT trace_now(),
    subject     text NOT NULL,
    datasets    json NOT NULL DEFAULT '[]',
    row_count   bigint NOT NULL CHECK (row_count >= 0),
    bytes_read  bigint NOT NULL CHECK (bytes_read >= 0),
    duration_ms bigint NOT NULL CHECK (duration_ms >= 0),
    outcome     text NOT NULL,
    sql_sha256  text NOT NULL CHECK (sql_sha256 ~ '^[0-9a-f]{64}$'),
    PRIMARY KEY (org, run_id)
);
CREATE INDEX query_audit_by_age ON query_audit (at, org, run_id);

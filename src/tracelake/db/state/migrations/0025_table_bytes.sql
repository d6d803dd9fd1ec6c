-- What the table of a buffered dataset takes in Postgres data, with its indexes, as the sink measured it with its last
-- commit. It counts as stored bytes of the org.
ALTER TABLE buffered_tables ADD COLUMN table_bytes bigint NOT NULL DEFAULT 0 CHECK (table_bytes >= 0);

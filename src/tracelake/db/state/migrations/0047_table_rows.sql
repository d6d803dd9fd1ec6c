-- How many rows the tables of datasets have, as sinks measure it now and then: exact for small tables, else an estimate of
-- Postgres. The size of buffered tables is reported with each commit (0025); that of direct ones is measured too.
ALTER TABLE buffered_tables ADD COLUMN table_rows bigint CHECK (table_rows >= 0);
ALTER TABLE direct_tables ADD COLUMN table_rows bigint CHECK (table_rows >= 0),
    ADD COLUMN table_bytes bigint CHECK (table_bytes >= 0);

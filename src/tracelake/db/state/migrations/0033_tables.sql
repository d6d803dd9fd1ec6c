-- Of rows with one key the one with the highest value of a column stays.
ALTER TABLE buffered_tables
    ADD COLUMN version_column text,
    DROP CONSTRAINT buffered_tables_on_conflict_check,
    ADD CONSTRAINT buffered_tables_on_conflict_check CHECK (on_conflict IN ('update', 'nothing', 'newest')),
    ADD CONSTRAINT newest_has_a_column CHECK ((on_conflict = 'newest') = (version_column IS NOT NULL));

-- The number of batches that an attempt wrote for its unit, all released with its completion: sinks show them together. NULL
-- if the rows have no unit: of a run without an end, or from before.
ALTER TABLE buffer_publishes
    ADD COLUMN unit_batches integer CHECK (unit_batches > 0);

-- A dropped batch waits for a sink like any other, which takes it without its rows: its unit may wait for it.
ALTER TABLE buffer_publishes DROP CONSTRAINT only_dead_ones_are_dropped;

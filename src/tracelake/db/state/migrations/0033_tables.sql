-- Of rows with one key the one with the highest value of a column stays.
ALTER TABLE buffered_tables
    ADD COLUMN version_column text,
    DROP CONSTRAINT buffered_tables_on_conflict_check,
    ADD CONSTRAINT buffered_tables_on_conflict_check CHECK (on_conflict IN ('update', 'nothing', 'newest')),
    ADD CONSTRAINT newest_has_a_column CHECK ((on_conflict = 'newest') = (version_column IS NOT NULL));

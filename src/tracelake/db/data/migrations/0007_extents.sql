-- Which positions a table of a live dataset has had, which are final, and which are only in files by now.
CREATE TABLE table_extents (
    dataset_uuid uuid PRIMARY KEY REFERENCES buffer_tables,
    -- The first position that was ever written. Rows before it are in files of other tasks.
    table_start  bigint NOT NULL CHECK (table_start >= 0),
    -- Rows at or below it never change again. Raised by the writer, in the transaction of a write.
    sealed_to    bigint CHECK (sealed_to >= table_start),
    -- Rows at or below it were removed, after their files were committed. Raised in the transaction that removes them.
    removed_to   bigint,
    CHECK (removed_to IS NULL OR (sealed_to IS NOT NULL AND removed_to <= sealed_to))
);

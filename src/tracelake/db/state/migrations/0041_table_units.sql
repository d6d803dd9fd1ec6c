-- What was announced of tables that tasks write directly: ranges of positions, and the time of each position. Windows
-- find their blocks by it, as they find files by `dataset_units`.
CREATE TABLE table_units (
    dataset_uuid    uuid NOT NULL,
    dataset_version uuid NOT NULL,
    range_start     bigint NOT NULL CHECK (range_start >= 0),
    range_end       bigint NOT NULL,
    times           bigint[],
    time_min        bigint,
    time_max        bigint,
    PRIMARY KEY (dataset_uuid, dataset_version, range_start),
    FOREIGN KEY (dataset_uuid, dataset_version) REFERENCES dataset_versions,
    CONSTRAINT range_is_whole   CHECK (range_end >= range_start),
    CONSTRAINT time_of_each     CHECK (cardinality(times) = range_end - range_start + 1),
    CONSTRAINT times_are_whole  CHECK ((times IS NULL) = (time_min IS NULL) AND (times IS NULL) = (time_max IS NULL))
);
CREATE INDEX table_units_by_time ON table_units (dataset_uuid, dataset_version, time_max) WHERE time_max IS NOT NULL;

-- The first position of the write that an event announces; `cursor` or `range_end` is its last.
ALTER TABLE events ADD COLUMN first_position bigint CHECK (first_position <= coalesce(cursor, range_end));

-- What windows can read: units of files, and ranges of tables. Of a live dataset a position may be in both: the files
-- with the rows of a table that were there before.
CREATE VIEW readable_units AS
    SELECT dataset_uuid, dataset_version, range_start, range_end, time_min, time_max FROM dataset_units
    UNION ALL
    SELECT dataset_uuid, dataset_version, range_start, range_end, time_min, time_max FROM table_units;

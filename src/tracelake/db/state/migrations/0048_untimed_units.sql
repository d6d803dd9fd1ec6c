-- Units of files without times, which windows of time cannot be made of: few, but for those that are windows themselves.
CREATE INDEX dataset_units_untimed ON dataset_units (dataset_uuid, dataset_version, range_start)
    WHERE time_max IS NULL AND range_start IS NOT NULL;
CREATE INDEX table_units_untimed ON table_units (dataset_uuid, dataset_version, range_start) WHERE time_max IS NULL;

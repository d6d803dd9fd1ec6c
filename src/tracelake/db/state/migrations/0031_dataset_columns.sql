-- The columns of a generation as its DAG was read with them, before anything ran. NULL: deployed before they were
-- recorded, or unknown.
ALTER TABLE dataset_versions ADD COLUMN columns json;

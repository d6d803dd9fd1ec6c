-- Hashes of blocks of live datasets, at the ends of units: they stay when the rows are in files alone, so a follower finds
-- which files a reorganisation of final blocks has changed.
CREATE TABLE table_marks (
    dataset_uuid uuid NOT NULL REFERENCES table_extents,
    position     bigint NOT NULL CHECK (position >= 0),
    mark         bytea NOT NULL,
    PRIMARY KEY (dataset_uuid, position)
);

-- The permission of the last repair, which is good for one write.
ALTER TABLE table_extents ADD COLUMN permit_id bigint;

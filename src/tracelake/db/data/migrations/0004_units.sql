-- Batches that hold rows of a unit. Those of one attempt are one contribution: they become visible together, and take the
-- place of what an earlier task of the same unit wrote. Rows of batches that are not here have no unit, and stay.
CREATE TABLE buffer_parts (
    dataset_uuid uuid NOT NULL REFERENCES buffer_tables,
    publish_seq  bigint NOT NULL,
    node_id      uuid NOT NULL,
    unit         text NOT NULL,
    task_id      uuid NOT NULL,
    attempt      integer NOT NULL,
    -- All batches of the contribution are loaded.
    complete     boolean NOT NULL,
    PRIMARY KEY (dataset_uuid, publish_seq)
);
CREATE INDEX buffer_parts_by_unit ON buffer_parts (dataset_uuid, node_id, unit);

-- Whether the table has a second one for rows that are not visible, and the writers whose rows may be (NULL: all).
ALTER TABLE buffer_tables
    ADD COLUMN has_hidden boolean NOT NULL DEFAULT false,
    ADD COLUMN writers    uuid[];

-- A batch that a user dropped: its rows are not in the table.
ALTER TABLE buffer_commits ADD COLUMN dropped boolean NOT NULL DEFAULT false;

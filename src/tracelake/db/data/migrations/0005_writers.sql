-- What a commit did besides adding rows, if anything: readers by commit need it, also if it is reported again.
CREATE TABLE buffer_changes (
    dataset_uuid uuid NOT NULL REFERENCES buffer_tables,
    commit_seq   bigint NOT NULL,
    -- No row became visible or went: nobody needs to read the commit.
    hidden       boolean NOT NULL,
    -- Ranges of earlier commits, as [[first, last], ...], whose rows went.
    gone         json NOT NULL,
    -- The commit changed the writers whose rows are visible, and the Dispatcher has not heard of it yet.
    unannounced  boolean NOT NULL DEFAULT false,
    committed_at timestamptz NOT NULL DEFAULT trace_now(),
    PRIMARY KEY (dataset_uuid, commit_seq)
);
CREATE INDEX buffer_changes_unannounced ON buffer_changes (dataset_uuid) WHERE unannounced;
CREATE INDEX buffer_changes_by_age ON buffer_changes (committed_at) WHERE NOT unannounced;
